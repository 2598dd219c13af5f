"""What unit-numeric makes of what a runner left: its plan, its judgement of kept outputs, and the verdict. No process.

The runner's side runs here, on the stock op in a candidate's place; what it leaves is then changed.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from kgen.contract import DTYPES, Op
from kgen.gates import judge, localise, numeric, perf
from kgen.gates.numeric import Failure
from kgen.gates.runner import numeric as job_side
from kgen.gates.runner.host import Outcome
from kgen.gates.runner.job import LoadSpec, stock_spec
from kgen.gates.runner.numeric import FAMILY, GRAPH, PADDED, Check
from kgen.gates.runner.out import Out
from kgen.gates.skipping import fitting
from kgen.ops import REGISTRY
from kgen.records import Status, strict_json, to_json

MOE, KDA = REGISTRY.get("moe_shared"), REGISTRY.get("kda_core")
Plan = list[tuple[LoadSpec, list[Check]]]


def at(op: Op, tokens: int, arch: str = "sm_90a") -> LoadSpec:
    return stock_spec(op.problem("nano", tokens, arch))


def left(folder: Path, plan: Plan) -> Outcome:
    """What an honest runner leaves of a plan."""
    out = Out(folder)
    items = [{"spec": to_json(s), "checks": [to_json(c) for c in checks]} for s, checks in plan]
    result = job_side.run({"items": items, "cache": str(folder), "device": "cpu"}, out)
    out.finish(result)
    lines = (folder / "records.jsonl").read_bytes().splitlines()
    return Outcome("done", "", "", folder, tuple(strict_json(line) for line in lines), result)


def only(op: Op, tokens: int, *checks: Check) -> Plan:
    return [(at(op, tokens), list(checks))]


WIDE = only(
    MOE, 16, Check(0, FAMILY, MOE.families[0].name, 5), Check(1, PADDED, MOE.families[0].name, 6, 1, 12),
    Check(2, GRAPH, MOE.families[0].name, 7),
)  # fmt: skip
LONG = max(KDA.families, key=lambda f: f.steps).name
STEPPED = only(KDA, 2, Check(0, FAMILY, LONG, 9, steps=18))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return left(tmp_path_factory.mktemp("wide"), WIDE)


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return left(tmp_path_factory.mktemp("stepped"), STEPPED)


def judged(op: Op, plan: Plan, outcome: Outcome) -> tuple[list[Failure], judge.Table, localise.Places]:
    table, places = judge.Table(), localise.Places()
    return numeric.judge_outcome(op, plan, outcome, table, "cpu", places), table, places


def changed(outcome: Outcome, change: Callable[[list[dict[str, Any]]], None], **fields: Any) -> Outcome:
    records = copy.deepcopy([dict(r) for r in outcome.records])
    change(records)
    return replace(outcome, records=tuple(records), **fields)


def spoiled(folder: Path, outcome: Outcome, ref: Mapping[str, Any]) -> Outcome:
    """One tensor's bytes exchanged for those of a tensor of ones."""
    data = bytearray((outcome.folder / "tensors.bin").read_bytes())
    ones = torch.ones(ref["shape"], dtype=getattr(torch, str(ref["dtype"])))
    data[ref["offset"] : ref["offset"] + ref["nbytes"]] = ones.view(torch.uint8).numpy(force=True).tobytes()
    (folder / "tensors.bin").write_bytes(data)
    return replace(outcome, folder=folder)


def refs(outcome: Outcome, number: int) -> list[dict[str, Any]]:
    """What a check kept: an entry a step or graph set."""
    return list(outcome.records[number]["outputs"])


def test_an_honest_run_has_no_failure_and_every_kept_output_is_in_the_table(wide: Outcome, stepped: Outcome) -> None:
    failures, table, places = judged(MOE, WIDE, wide)
    rows = {row.what: table.judged[key] for key, row in table.worst.items()}
    assert failures == [] and not places.as_json()
    assert rows == {MOE.families[0].name: 1, "padded 12": 1, "graph": 9}
    failures, table, _ = judged(KDA, STEPPED, stepped)
    assert failures == [] and {table.judged[key] for key in table.worst} == {2}, "steps 15 and 17"
    assert all(row.errors is None or row.errors.candidate_true == row.errors.stock_true for row in table.worst.values())


def test_judging_needs_no_place_to_note_where(wide: Outcome) -> None:
    assert numeric.judge_outcome(MOE, WIDE, wide, judge.Table(), "cpu") == []


@pytest.mark.parametrize(
    ("number", "what", "common"),
    [
        (0, MOE.families[0].name, f"only on input {MOE.families[0].name}"),
        (1, "padded 12", "only when tokens < 16"),
        (2, "graph", ""),
    ],
)
def test_a_wrong_output_of_any_check_fails_and_its_place_is_known(
    wide: Outcome, tmp_path: Path, number: int, what: str, common: str
) -> None:
    (name, ref), *_ = refs(wide, number)[-1]["tensors"].items()
    failures, table, places = judged(MOE, WIDE, spoiled(tmp_path, wide, ref))
    assert [f.code for f in failures] == ["error"]
    assert failures[0].text.startswith(f"moe_shared/nano/t16/sm_90a {what}: ")
    *shared, where = places.as_json()
    assert [entry["patterns"] for entry in shared] == ([[common]] if common else [])
    assert (where["what"], where["output"], where["step"]) == (what, name, 1)
    assert [row.what for row in table.failed()] == [what]


def test_of_equal_failures_one_place_is_looked_at(wide: Outcome, tmp_path: Path) -> None:
    first, second = (entry["tensors"]["y"] for entry in refs(wide, 2)[:2])
    (tmp_path / "more").mkdir()
    outcome = spoiled(tmp_path / "more", spoiled(tmp_path, wide, first), second)
    failures, _, places = judged(MOE, WIDE, outcome)
    assert len(failures) == 2 and len(places.as_json()) == 1


@pytest.mark.parametrize(("kept", "step"), [(0, 16), (1, 18)])
def test_a_wrong_state_of_any_kept_step_fails_at_that_step(
    stepped: Outcome, tmp_path: Path, kept: int, step: int
) -> None:
    outcome = spoiled(tmp_path, stepped, refs(stepped, 0)[kept]["tensors"]["s"])
    failures, table, places = judged(KDA, STEPPED, outcome)
    assert {f.code for f in failures} & {"error", "hard_rule"}
    assert {row.seed for row in table.failed()} == {9 + step - 1}
    assert {entry["step"] for entry in places.as_json() if "step" in entry} == {step}


def test_what_the_runner_found_is_a_failure_under_its_code(wide: Outcome) -> None:
    def found(records: list[dict[str, Any]]) -> None:
        records[1]["findings"] = [["guard", "wrote outside y"], ["padding", "garbage rows change y"]]

    failures, _, _ = judged(MOE, WIDE, changed(wide, found))
    key = "moe_shared/nano/t16/sm_90a"
    assert failures == [
        Failure("guard", f"{key}: wrote outside y"), Failure("padding", f"{key}: garbage rows change y"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "code"), [("fault", "crash"), ("crashed", "crash"), ("hung", "timeout"), ("error", "")]
)
def test_how_the_runner_ended_names_the_failure(wide: Outcome, status: str, code: str) -> None:
    """What is missing then is no failure of its own; our own error is none of the candidate's."""
    outcome = replace(wide, status=status, message="said so", records=wide.records[:1])
    failures, _, _ = judged(MOE, WIDE, outcome)
    assert failures == ([Failure(code, "said so")] if code else [])


def test_a_check_without_a_record_counts_as_unwritten(wide: Outcome) -> None:
    failures, _, _ = judged(MOE, WIDE, replace(wide, records=wide.records[:1]))
    assert failures == [Failure("unwritten", "2 checks left no record")]


@pytest.mark.parametrize(
    ("ended", "want"),
    [
        (["race", "two warps"], [Failure("race", "two warps")]),
        (["memory", "past the end"], [Failure("memory", "past the end")]),
        (["unsupported", "wgmma"], []),
        (["budget", "too long"], []),
    ],
)
def test_an_interpreted_call_that_ends_early_is_a_failure_only_for_what_it_did(
    wide: Outcome, ended: list[str], want: list[Failure]
) -> None:
    outcome = replace(wide, records=wide.records[:1], result={"ended": ended})
    assert judged(MOE, WIDE, outcome)[0] == want


EVIDENCE: dict[str, Any] = {"device": "cpu"}
FAILED = [Failure("error", "too far off"), Failure("guard", "wrote outside"), Failure("graph", "differs")]


@pytest.mark.parametrize(
    ("failures", "ended", "error", "want"),
    [
        ([], [], "", (Status.PASS, "numeric.pass", "3 points, all families within the rule")),
        (FAILED, [], "", (Status.FAIL, "numeric.guard", "wrote outside")),
        (FAILED[::2], [], "ours", (Status.FAIL, "numeric.graph", "differs")),
        ([], [], "ours", (Status.ERROR, "numeric.runner", "ours")),
        ([], ["unsupported", "wgmma"], "", (Status.SKIP, "numeric.unsupported", "wgmma")),
        ([], ["budget", "too long"], "", (Status.ERROR, "numeric.budget", "too long")),
        (FAILED[:1], ["budget", "too long"], "", (Status.FAIL, "numeric.error", "too far off")),
    ],
)
def test_the_most_basic_failure_names_the_result(
    failures: list[Failure], ended: list[str], error: str, want: tuple[Status, str, str]
) -> None:
    got = numeric.verdict(failures, ended, error, EVIDENCE, 3, 1.5)
    assert (got.status, got.code, got.message) == want
    assert (got.gate, got.evidence, got.seconds) == ("unit-numeric", EVIDENCE, 1.5)


def test_a_pass_of_the_interpreter_says_so() -> None:
    got = numeric.verdict([], [], "", {"device": "ptx"}, 1, 0.0)
    assert (got.code, got.passed) == ("numeric.ptx_pass", True)
    assert got.message == "1 points, all families within the rule in the PTX interpreter, no finding"


@pytest.mark.parametrize(
    ("log", "words"), [("", ""), (" \n", ""), ("one\ntwo \n", " (two)"), ("x" * 300, f" ({'x' * 200})")]
)
def test_of_a_log_the_last_line_is_told(log: str, words: str) -> None:
    assert numeric._last_words(Outcome("error", "", "", Path(), log=log)) == words


def drafted(op: Op, tokens: int, interpreted: bool = False) -> list[tuple[str, str, int, int, int]]:
    ((_, checks),) = numeric.make_plan(op, [at(op, tokens)], interpreted)
    return [(c.kind, c.family, c.steps, c.true_tokens, c.repeats) for c in checks]


def test_a_plan_has_every_family_the_padded_counts_and_a_graph() -> None:
    first = MOE.families[0].name
    assert drafted(MOE, 16) == [
        *((FAMILY, f.name, f.steps, 0, 2 if f.name == first else 1) for f in MOE.families),
        (PADDED, first, 1, 12, 1),
        (GRAPH, first, 1, 0, 1),
    ]
    assert drafted(MOE, 2)[-2][0] == FAMILY, "nothing is padded into the bin of 2"


def test_the_interpreter_takes_few_steps_repeats_only_the_first_family_and_has_no_graphs() -> None:
    first = KDA.families[0].name
    assert max(f.steps for f in KDA.families) > 3
    assert drafted(KDA, 2, interpreted=True) == [
        (FAMILY, f.name, min(f.steps, 3), 0, 2 if f.name == first else 0) for f in KDA.families
    ]
    assert drafted(MOE, 16, interpreted=True)[-1] == (PADDED, MOE.families[0].name, 1, 12, 0)


def test_counts_that_an_op_refuses_at_a_point_are_not_padded() -> None:
    """At a verify width of 8, 12 tokens are no whole number of requests."""
    q8 = stock_spec(KDA.problem("nano", 16, "sm_90a", {"q": "8"}))
    q4 = stock_spec(KDA.problem("nano", 16, "sm_90a", {"q": "4"}))
    plan = numeric.make_plan(KDA, [q8, q4])
    assert [[c.true_tokens for c in checks if c.kind == PADDED] for _, checks in plan] == [[], [12]]
    numbers = [c.id for _, checks in plan for c in checks]
    assert numbers == list(range(len(numbers))), "ids are one row over all points"


def test_seeds_have_48_bits() -> None:
    seeds = [c.seed for _ in range(40) for _, checks in numeric.make_plan(MOE, [at(MOE, 1)]) for c in checks]
    assert 1 << 44 < max(seeds) < 1 << 48


def test_what_a_runner_will_leave_is_counted_in_bytes() -> None:
    """y[16, 256] in bf16 and, of kda_core, o and the states: once a kept step, nine times for a graph."""
    one = numeric.written_bytes(MOE, at(MOE, 16).problem)
    assert one == 16 * 256 * 2
    assert numeric.output_bytes(MOE, WIDE) == (1 + 1 + 9) * one
    problem = at(KDA, 2).problem
    sizes = KDA.sizes(problem)
    per_call = sum(math.prod(t.sizes(sizes)) * DTYPES[t.dtype].bytes for t in KDA.outputs(problem))
    assert numeric.output_bytes(KDA, STEPPED) == 2 * per_call


def test_artefacts_for_another_arch_are_left_out() -> None:
    both = [at(MOE, 1), at(MOE, 1, "sm_103a")]
    assert fitting(both, "sm_103a") == both[1:] and fitting(both, "sm_90") == []
    assert fitting(both, "") == both, "on a CPU the stock op stands in for any"


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without a GPU")
def test_without_a_gpu_nothing_is_run_and_nothing_is_said_of_speed() -> None:
    result, points, raw = perf.run_specs(MOE, [at(MOE, 1)], cache=Path("/nowhere"))
    assert (result.status, result.code, points, raw) == (Status.SKIP, "perf.no_gpu", (), {})
    assert numeric.run_specs(MOE, [at(MOE, 1)], cache=Path("/nowhere")).code == "numeric.no_gpu"


def test_artefacts_of_sizes_that_are_not_served_win_nothing() -> None:
    result, points, raw = perf.run_specs(MOE, [at(MOE, 1)], cache=Path("/nowhere"), device="cpu")
    assert (result.status, result.code, result.seconds, points, raw) == (Status.FAIL, "perf.no_win", 0.0, (), {})


class Unmoved(type(MOE)):  # type: ignore[misc]
    """An op whose reference ignores an input."""

    def reference(self, problem: Any, values: Any, rounded: bool) -> Any:
        return {n: torch.zeros_like(t) for n, t in super().reference(problem, values, rounded).items()}


def test_an_op_that_is_unfit_to_judge_is_our_error() -> None:
    result = numeric.run_specs(Unmoved(), [at(MOE, 1)], cache=Path("/nowhere"), device="cpu")
    assert (result.status, result.code, result.seconds) == (Status.ERROR, "numeric.contract", 0.0)
    for of_artefacts in (partial(numeric.run, device="cpu"), numeric.interpret):
        assert of_artefacts(Unmoved(), [], cache=Path("/nowhere")).code == "numeric.contract"


def test_without_an_artefact_there_is_nothing_to_win() -> None:
    result, points, raw = perf.run(MOE, [], cache=Path("/nowhere"), device="cpu")
    assert (result.code, points, raw) == ("perf.no_win", (), {})
