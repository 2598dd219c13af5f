"""What timed samples become, by hand: a point's numbers, the fastest that is believed, what names the result."""

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kgen.gates import perf, perf_judge, timing
from kgen.gates.perf_judge import Findings, Moved
from kgen.gates.rates import Rates
from kgen.gates.runner import perf as job_side
from kgen.gates.runner.contestants import Functional, rotation, set_seed
from kgen.gates.runner.host import Outcome
from kgen.gates.runner.job import stock_spec
from kgen.gates.runner.out import Out
from kgen.gates.runner.perf import CHAINED, COLD, GRAPH, PointJob
from kgen.model.bind import uncompiled
from kgen.ops import REGISTRY
from kgen.records import PerfPoint, Status

MOE, KDA, APPEND = (REGISTRY.get(name) for name in ("moe_shared", "kda_core", "mla_kv_append"))
FEW = {GRAPH: 3, CHAINED: 2, COLD: 4}
FAST = Rates(read=4.0e12, nominal=5.0e12, source="made up")


def job(op: Any = MOE, tokens: int = 8, **changed: Any) -> PointJob:
    return replace(perf.make_jobs(op, [stock_spec(op.problem("nano", tokens, "sm_90a"))], (), FEW)[0], **changed)


def record(column: str = GRAPH, **samples: list[float]) -> dict[str, Any]:
    return {"column": column, "timer": "the timer", "samples": samples, "calls": 24, "sets": 3}


def test_a_point_is_named_by_what_there_is_of_it() -> None:
    key = "moe_shared/nano/t8/sm_90a"
    assert perf_judge.name_of(job()) == f"{key}/n8"
    assert perf_judge.name_of(job(tokens=8, scenario="far"), COLD) == f"{key}/n8/far/cold"


def test_a_points_numbers_are_those_of_its_samples() -> None:
    made = record(candidate=[2.0, 4.0, 6.0, 8.0], stock=[10.0, 10.0, 10.0, 10.0], compile=[9.0, 9.0, 11.0, 11.0])
    point = perf_judge.make_point(job(scenario="far"), made, Moved(8.0e6, 4.0e6), FAST)
    assert (point.candidate_us, point.baselines_us) == (5.0, {"stock": 10.0, "compile": 10.0})
    assert (point.best_baseline, point.ratio, point.samples) == ("stock", 0.5, 4)
    assert (point.floor_us, point.roofline) == (2.0, 0.4)  # 8 MB at 4 TB/s
    assert (point.tokens, point.column, point.timer, point.scenario) == (8, GRAPH, "the timer", "far")
    assert (point.label, 0.2 <= point.ratio_low <= 0.5 <= point.ratio_high <= 0.8) == ("win", True)


def test_without_known_rates_there_is_no_floor() -> None:
    point = perf_judge.make_point(job(), record(candidate=[1.0], stock=[1.0]), Moved(8.0e6, 8.0e6), None)
    assert (point.floor_us, point.roofline, point.label) == (0.0, 0.0, "win")


def said(time: float, column: str = GRAPH, limits: Rates | None = FAST, **more: str) -> str:
    made = {**record(column, candidate=[time], stock=[9.0]), **more}
    moved = Moved(8.0e6, 4.0e6)
    return perf_judge.impossible(job(), made, perf_judge.make_point(job(), made, moved, limits), moved, limits)


def test_a_time_is_believed_down_to_what_must_pass_at_the_nominal_peak() -> None:
    even = Rates(read=4.0e12, nominal=4.0e12, source="made up")
    assert said(1.0, limits=even) == ""  # 4 MB at 4 TB/s
    assert said(0.9999996, limits=even) != ""
    assert said(0.81) == ""
    assert said(0.79) == "moe_shared/nano/t8/sm_90a/n8/graph: 0.79 us, but its bytes need 0.80 us at peak"
    assert said(0.79, COLD) != ""
    assert said(0.01, CHAINED) == said(0.01, limits=None) == said(0.01, warm="1 MB") == ""


def states(count: int) -> list[dict[str, Any]]:
    return [{"repetition": r, "call": r + 1, "tensors": {}} for r in range(count)]


@pytest.mark.parametrize(("column", "timed"), [(GRAPH, 3 * 5), (COLD, 4)])
def test_it_is_noted_of_which_calls_states_were_kept(column: str, timed: int) -> None:
    found = Findings(raw={perf_judge.name_of(job(KDA), column): {}})
    perf_judge._note_states(KDA, job(KDA), {"column": column, "sets": 5, "states": states(2)}, found)
    ((name, text),) = found.states.items()
    assert text == f"2 of {timed} calls" and found.wrong == []
    assert found.raw[name]["states"] == [[0, 1], [1, 2]]
    perf_judge._note_states(KDA, job(KDA), {"column": column, "sets": 5, "states": []}, found)
    assert found.wrong == [f"{name}: the runner kept no state of a timed call"]


def test_of_an_op_without_states_nothing_is_noted() -> None:
    found = Findings()
    perf_judge._note_states(MOE, job(), {"column": GRAPH, "sets": 5}, found)
    assert found == Findings(table=found.table)


def test_bytes_of_a_replay_are_a_mean_and_of_cold_calls_a_median() -> None:
    op = REGISTRY.get("moe_experts")
    problem = op.problem("nano", 8, "sm_90a")
    sets = [op.inputs(problem, family, 3, "cpu") for family in ("routing_same", "routing_uniform", "routing_same")]
    one, other, _ = (op.cost_of(problem, values).bytes for values in sets)
    assert one != other
    given, made = job(op), {"column": GRAPH, "calls": 24}
    assert perf_judge.bytes_moved(op, given, made, sets, 0) == Moved((2 * one + other) / 3, (2 * one + other) / 3)
    cold = perf_judge.bytes_moved(op, given, {"column": COLD, "calls": 9}, sets, 0)
    assert cold == Moved(one, one)  # sets 0, 1, 2, 0


def test_what_a_call_leaves_in_its_states_need_not_pass_up_to_the_l2() -> None:
    op = APPEND
    problem = op.problem("nano", 8, "sm_90a")
    sets = [op.inputs(problem, op.families[0].name, 1, "cpu")]
    whole = op.cost_of(problem, sets[0]).bytes
    sizes = op.sizes(problem)
    state = next(t for t in op.present(problem) if t.role.name == "STATE")
    written = 2 * torch.Size(state.sizes(sizes)).numel()  # bf16
    made = {"column": GRAPH, "calls": 10}

    def soon(l2: int) -> float:
        return perf_judge.bytes_moved(op, job(op), made, sets, l2).soon

    assert soon(0) == whole and soon(100) == whole - 10
    assert soon(1 << 40) == max(0.0, whole - written)  # all that ten calls write
    assert perf_judge.bytes_moved(op, job(op), {"column": COLD, "calls": 10}, sets, 100).soon == whole - 100


def test_what_is_written_to_outputs_must_pass() -> None:
    problem = MOE.problem("nano", 8, "sm_90a")
    sets = [MOE.inputs(problem, MOE.families[0].name, 1, "cpu")]
    whole = MOE.cost(problem).bytes
    assert perf_judge.bytes_moved(MOE, job(), {"column": GRAPH, "calls": 3}, sets, 1 << 40) == Moved(whole, whole)


def point(label: str, problem: str = "p") -> PerfPoint:
    high = {"win": 1.0, "tie": 1.02, "left": 1.2}[label]
    return PerfPoint(problem, 1, GRAPH, "t", 1.0, {"stock": 1.0}, "stock", 1.0, 1.0, high, 0.5, 1.0, 3, label)


WIN = [point("win", "a"), point("win", "b"), point("tie", "c"), point("left", "d")]


@pytest.mark.parametrize(
    ("status", "found", "wanted", "code", "message"),
    [
        ("done", Findings(points=WIN), Status.PASS, "pass", "2 bins win, 1 tie, 1 leave the envelope"),
        ("done", Findings(points=WIN[2:]), Status.FAIL, "no_win", "0 bins win, 1 tie, 1 leave the envelope"),
        ("done", Findings(), Status.FAIL, "no_win", "0 bins win, 0 tie, 0 leave the envelope"),
        ("done", Findings(points=WIN, wrong=["w", "v"], impossible=["i"]), Status.FAIL, "wrong", "w"),
        ("done", Findings(points=WIN, impossible=["i", "j"]), Status.FAIL, "impossible", "i"),
        ("crashed", Findings(points=WIN, wrong=["w"]), Status.FAIL, "crash", "said"),
        ("fault", Findings(points=WIN, wrong=["w"]), Status.FAIL, "crash", "said"),
        ("hung", Findings(points=WIN, wrong=["w"]), Status.FAIL, "timeout", "said"),
        ("error", Findings(points=WIN), Status.ERROR, "runner", "said"),
        ("error", Findings(points=WIN, wrong=["w"]), Status.FAIL, "wrong", "w"),
    ],
)
def test_the_most_basic_finding_names_the_result(
    status: str, found: Findings, wanted: Status, code: str, message: str
) -> None:
    result = perf._result(Outcome(status, "said", "", Path()), found)
    assert (result.status, result.code, result.gate) == (wanted, f"perf.{code}", "perf-sweep")
    assert result.message.startswith(message)
    assert result.evidence == {"wrong": found.wrong, "impossible": found.impossible}


def test_the_evidence_lists_twenty_findings_at_most() -> None:
    many = [str(n) for n in range(30)]
    result = perf._result(Outcome("done", "", "", Path()), Findings(wrong=many, impossible=many))
    assert result.evidence == {"wrong": many[:20], "impossible": many[:20]}


def test_a_bin_is_timed_at_its_own_count_and_at_those_that_it_serves() -> None:
    assert perf.counts(MOE, 16) == (16, 12) and perf.counts(MOE, 8)[0] == 8
    served = [n for tokens in MOE.pack.bins for n in perf.counts(MOE, tokens)[1:]]
    assert sorted(served) == sorted(n for n in MOE.pack.padded if n not in MOE.pack.bins)


def test_a_state_ops_runner_is_told_how_much_it_may_keep() -> None:
    jobs = [job(KDA), job(KDA, repetitions={GRAPH: 1})]
    told = perf.make_job(KDA, jobs, Path("/c"), "cuda")
    columns = sum(len(j.repetitions) for j in jobs)
    assert told["state_bytes"] == 2_000_000_000 // columns and told["compile"] is True
    plain = perf.make_job(MOE, [job()], Path("/c"), "cpu")
    assert "state_bytes" not in plain and plain["compile"] is False and len(plain["points"]) == 1


def test_room_is_asked_for_all_outputs_and_the_states_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "l2_bytes", lambda device: 0)
    # three sets; y is 8 rows of 256 in bf16; a replay has 3 calls, a chain 24, a cold sample one
    y, given = 8 * 256 * 2, job()
    assert perf._output_bytes(MOE, given, "cpu", 0) == y * (3 * 3 + (24 * 2 if MOE.chain else 0) + 4)
    op, given = APPEND, job(APPEND, repetitions={GRAPH: 3, COLD: 4})
    problem = given.spec.problem
    sizes = op.sizes(problem)
    kept = {t.name: torch.Size(t.sizes(sizes)).numel() * 2 for t in op.present(problem) if t.role.name == "STATE"}
    outs = {t.name: torch.Size(t.sizes(sizes)).numel() * 2 for t in op.present(problem) if t.role.name == "OUT"}
    state, out = sum(kept.values()), sum(outs.values())
    calls = 24 * 3 + 4  # with states a replay is never shorter than MIN_CALLS
    assert perf._output_bytes(op, given, "cpu", 0) == out * calls + 2 * state
    assert perf._output_bytes(op, given, "cpu", 5 * state) == out * calls + 5 * state + min(5, 4) * state


@pytest.fixture
def swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[PointJob], Outcome]:
    """What the stock op leaves of one point in all its columns; the runner's code runs in this process."""
    monkeypatch.setattr(timing, "SETTLE", 0)
    monkeypatch.setattr(timing, "MIN_CALLS", 3)
    jobs = perf.make_jobs(MOE, [stock_spec(MOE.problem("nano", 1, "sm_90a"))], (), FEW)
    out = Out(tmp_path)
    out.finish(job_side.run(json.loads(json.dumps(perf.make_job(MOE, jobs, Path("/nowhere"), "cpu"))), out))
    records = tuple(json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines())
    return jobs, Outcome("done", "", "", tmp_path, records)


def judged(swept: tuple[list[PointJob], Outcome], limits: Rates | None = None, **changes: Any) -> Findings:
    """The first record changed, if anything is."""
    jobs, outcome = swept
    first, *rest = outcome.records
    return perf_judge.judge_outcome(MOE, jobs, replace(outcome, records=({**first, **changes}, *rest)), "cpu", limits)


def test_every_record_becomes_a_point_with_its_raw_samples(swept: tuple[list[PointJob], Outcome]) -> None:
    found, records = judged(swept), swept[1].records
    names = [perf_judge.name_of(swept[0][r["point"]], r["column"]) for r in records]
    assert [perf_judge.name_of(j) for j in swept[0]] == list(dict.fromkeys(n.rsplit("/", 1)[0] for n in names))
    assert [p.column for p in found.points] == [r["column"] for r in records]
    assert (found.wrong, found.impossible, found.left_out, found.warm) == ([], [], {}, {})
    keys = ("samples", "sets", "calls", "rotation_bytes", "timer", "setup_s", "prepare_s")
    assert found.raw == {n: {k: r[k] for k in keys} for n, r in zip(names, records, strict=True)}
    counted = {row["what"]: row["judged"] for row in found.table.as_json()}
    sets = records[0]["sets"]
    wanted = {GRAPH: FEW[GRAPH] * sets, COLD: FEW[COLD], CHAINED: FEW[CHAINED] * records[0]["calls"]}
    seeds = {set_seed(j.seed, number) for j in swept[0] for number in range(sets)}
    assert {row["seed"] for row in found.table.as_json()} <= seeds
    assert counted == {f"timed {r['column']} n={r['point'] + 1}": wanted[r["column"]] for r in records}


def test_findings_of_the_runner_and_warm_rotations_are_passed_on(swept: tuple[list[PointJob], Outcome]) -> None:
    name = perf_judge.name_of(swept[0][0], GRAPH)
    assert judged(swept, findings=["one", "two"]).wrong == [f"{name}: one", f"{name}: two"]
    found = judged(swept, warm="3 MB")
    assert found.warm == {name: "3 MB"} and found.raw[name]["warm"] == "3 MB"


def test_a_point_that_did_not_fit_is_left_out_and_nothing_else(swept: tuple[list[PointJob], Outcome]) -> None:
    found = judged(swept, left_out="too large")
    assert found.left_out == {perf_judge.name_of(swept[0][0]): "too large"}
    assert len(found.points) == len(swept[1].records) - 1 == len(found.raw)


def test_baselines_that_torch_could_not_compile_are_named_in_findings_and_in_the_message(
    swept: tuple[list[PointJob], Outcome],
) -> None:
    found = judged(swept, uncompiled={"compile": "no code"})
    assert found.uncompiled == {f"{perf_judge.name_of(swept[0][0])}/compile": "no code"}
    assert perf._result(swept[1], found).message.endswith("; torch could not compile 1 baseline (see uncompiled)")
    assert "compile" not in perf._result(swept[1], judged(swept)).message


def broken(error: Exception, least: int = 3) -> Any:
    """A compiler that fails on graphs of so many steps or more."""

    def backend(graph: Any, inputs: Any) -> Any:
        if sum(node.op == "call_function" for node in graph.graph.nodes) >= least:
            raise error
        return graph.forward

    return backend


NO_CODE = RuntimeError("no code\n for this shape")


def compiled_by(monkeypatch: pytest.MonkeyPatch, backend: Any, folder: Path) -> list[dict[str, Any]]:
    """Records of one point with a compiler's baselines; `backend` is the compiler."""
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    jobs = perf.make_jobs(MOE, [stock_spec(MOE.problem("nano", 1, "sm_90a"))], (), FEW)[:1]
    assert jobs[0].baselines == ("stock", "compile")
    out = Out(folder)
    job_side.run({**json.loads(json.dumps(perf.make_job(MOE, jobs, Path("/nowhere"), "cpu"))), "compile": True}, out)
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def test_where_torch_compiles_nothing_stock_runs_as_it_is_and_the_compiled_one_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    stock = type(MOE).stock

    def noted(op: Any, problem: Any, compile: Any = None) -> Any:
        asked.append(compile)
        return stock(op, problem, compile)

    monkeypatch.setattr(type(MOE), "stock", noted)
    found = compiled_by(monkeypatch, broken(NO_CODE), tmp_path)
    assert uncompiled in asked  # not None: that is the stock op of the judges, which copies its states
    for record in found:
        assert set(record["samples"]) == {"candidate", "stock"}
        assert set(record["uncompiled"]) == {"stock", "compile"}
        assert all("no code for this shape" in why for why in record["uncompiled"].values())


def test_where_torch_compiles_all_baselines_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for record in compiled_by(monkeypatch, "eager", tmp_path):
        assert set(record["samples"]) == {"candidate", "stock", "compile"} and "uncompiled" not in record


@pytest.mark.parametrize(
    ("error", "least"),
    [(NO_CODE, 0), (OSError(28, "No space left on device"), 3), (torch.OutOfMemoryError("no memory"), 3)],
    ids=["it never works", "a full disk", "no memory"],
)
def test_a_compiler_that_never_works_or_a_machine_in_need_is_no_reason_to_leave_a_baseline_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, least: int
) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        compiled_by(monkeypatch, broken(error, least), tmp_path)


def test_a_baseline_that_torch_would_run_without_compiling_it_fails_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on compilations makes a baseline slower than it can be; that is no reason to leave it out."""
    torch.compiler.reset()
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 1)
    monkeypatch.setattr(torch._dynamo.config, "fail_on_recompile_limit_hit", True)
    whole = torch.compile(lambda values: values["x"] * 2, backend="eager", dynamic=False)
    turns = rotation(MOE, MOE.problem("nano", 1, "sm_90a"), 1, "cpu")
    sides = [Functional("compile", whole, turns, [{"x": torch.ones(n)}] * len(turns.sets)) for n in (3, 4)]
    assert job_side.uncompilable(sides[0]) == ""
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        job_side.uncompilable(sides[1])


def test_times_that_no_memory_allows_are_collected(swept: tuple[list[PointJob], Outcome]) -> None:
    slow = Rates(read=1.0, nominal=1.0, source="a memory that moves a byte a second")
    columns = [r["column"] for r in swept[1].records]
    found = judged(swept, slow)
    assert len(found.impossible) == len([c for c in columns if c != CHAINED]) and not found.wrong
    assert found.impossible[0].startswith(perf_judge.name_of(swept[0][0], GRAPH) + ": ")
