"""perf-sweep on every op: the stock stand-in's timed calls are right, and planted faults in outputs and states are not.

States and slots, padding rows, scenarios. The runner's code runs in this process here; tests/test_perf_gate.py covers
the process around it, tests/test_perf_plan.py what is planned. No time is looked at.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from kgen.contract import Role
from kgen.gates import perf, perf_judge, timing
from kgen.gates.perf_judge import Findings
from kgen.gates.runner import faults
from kgen.gates.runner import perf as job_side
from kgen.gates.runner.buffers import BufferSet
from kgen.gates.runner.contestants import Sampler, rotation
from kgen.gates.runner.host import Outcome
from kgen.gates.runner.job import stock_spec
from kgen.gates.runner.out import Out
from kgen.gates.runner.perf import CHAINED, COLD, GRAPH
from kgen.ops import REGISTRY

ALL = sorted(REGISTRY.ops)
FEW = {GRAPH: 1, CHAINED: 1, COLD: 2}
CALLS = 4  # of a graph
CHEAPER = {"mla_decode": {"q": "4"}}  # four requests instead of sixteen
L2 = 50 << 20
Got = dict[str, torch.Tensor]
Fault = Callable[[BufferSet, Got, int], Got]


class Bench:
    """Sweeps one point in this process, with a fault planted in the stand-in."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch, self.runs = folder, patch, 0

    def sweep(
        self, name: str, tokens: int, fault: Fault | None = None, scenarios: Sequence[str] = (), **axes: str
    ) -> Findings:
        op = REGISTRY.get(name)
        spec = stock_spec(op.problem("nano", tokens, "sm_90a", axes), "planted" if fault else "")
        every = perf.make_jobs(op, [spec], (), FEW)
        jobs = [j for j in every if j.scenario in scenarios] if scenarios else [j for j in every if not j.scenario]
        self.runs += 1
        folder = self.folder / str(self.runs)
        folder.mkdir()
        out = Out(folder)
        with self.patch.context() as patch:
            patch.setitem(faults.FAULTS, "planted", fault)  # type: ignore[arg-type]
            told = json.loads(json.dumps(perf.make_job(op, jobs, Path("/nowhere"), "cpu")))
            out.finish(job_side.run(told, out))
        records = tuple(json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines())
        return perf_judge.judge_outcome(op, jobs, Outcome("done", "", "", folder, records), "cpu", None)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(timing, "SETTLE", 0)
    monkeypatch.setattr(timing, "MIN_CALLS", CALLS)
    return Bench(tmp_path, monkeypatch)


def states_of(name: str, **axes: str) -> list[str]:
    op = REGISTRY.get(name)
    return [t.name for t in op.present(op.problem("nano", 16, "", axes)) if t.role is Role.STATE]


# ---- the stock op passes


def point_name(name: str, tokens: int, column: str, **axes: str) -> str:
    op = REGISTRY.get(name)
    return f"{op.problem('nano', op.bin_for(tokens), 'sm_90a', axes).key}/n{tokens}/{column}"


@pytest.mark.parametrize("name", ALL)
def test_the_stock_ops_timed_calls_are_right_at_full_and_at_padded_counts(name: str, bench: Bench) -> None:
    op, found = REGISTRY.get(name), bench.sweep(name, 16, **CHEAPER.get(name, {}))
    assert found.wrong == []
    columns = {GRAPH, COLD} | ({CHAINED} if op.chain else set())
    points = {(n, c) for n in (16, 12) for c in columns}
    assert {(p.tokens, p.column) for p in found.points} == points
    assert {row["what"] for row in found.table.as_json()} == {f"timed {c} n={n}" for n, c in points}
    assert set(found.states) == ({point_name(name, n, c) for n, c in points} if states_of(name) else set())


@pytest.mark.parametrize(("name", "axis", "value"), [("kda_core", "q", "4"), ("mla_kv_append", "cache", "e4m3")])
def test_padding_is_right_for_requests_of_several_tokens_and_for_8_bit_caches(
    name: str, axis: str, value: str, bench: Bench
) -> None:
    found = bench.sweep(name, 16, **{axis: value})
    assert found.wrong == [] and {p.tokens for p in found.points} == {16, 12}


# ---- faults in states and outputs of timed calls


def last_row(value: torch.Tensor) -> torch.Tensor:
    """A copy with 5 % more in the last row, or the next whole number."""
    new = value.clone()
    new[-1] = (new[-1].double() * 1.05).to(new.dtype) if new.is_floating_point() else new[-1] + 1
    return new


STATES = [(n, state) for n in ALL for state in states_of(n)]
OUTPUTS = [(n, REGISTRY.get(n).outputs(REGISTRY.get(n).problem("nano", 2, ""))[-1].name) for n in ALL]


@pytest.mark.parametrize(("name", "tensor"), sorted({*STATES, *OUTPUTS}))
def test_a_fault_in_a_state_or_an_output_of_timed_calls_is_refused(name: str, tensor: str, bench: Bench) -> None:
    assert bench.sweep(name, 2, lambda buffers, got, call: {**got, tensor: last_row(got[tensor])}).wrong


def null_slot(buffers: BufferSet, got: Got, call: int) -> Got:
    """What a kernel does that takes a padding row for a request with slot 0."""
    if bool((buffers.buffers["slots"].tensor > 0).all()):
        return got
    s = got["s"].clone()
    s[0] += 1.0
    return {**got, "s": s}


def last_cache_row(buffers: BufferSet, got: Got, call: int) -> Got:
    """A slot of -1 taken as the last row of the cache."""
    if bool((buffers.buffers["slots"].tensor >= 0).all()):
        return got
    cache = got["cache"].clone()
    cache[-1, -1] = 0.0
    return {**got, "cache": cache}


@pytest.mark.parametrize(("name", "fault"), [("kda_core", null_slot), ("mla_kv_append", last_cache_row)])
def test_a_state_that_is_written_for_padding_rows_is_refused(name: str, fault: Fault, bench: Bench) -> None:
    wrong = bench.sweep(name, 16, fault).wrong
    assert wrong and all("/n12/" in text for text in wrong)


# ---- of how many calls states are kept


def test_with_little_room_one_calls_states_are_kept_a_column_and_all_outputs_are_judged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perf, "STATE_BYTES", 1)
    found = bench.sweep("attn_res", 1)
    graph, cold = (point_name("attn_res", 1, c) for c in (GRAPH, COLD))
    assert found.wrong == [] and found.states == {graph: f"1 of {CALLS} calls", cold: "1 of 2 calls"}
    ((repetition, call),) = found.raw[graph]["states"]
    assert repetition == 0 and call in range(CALLS)
    judged = {(row["what"], row["output"]): row["judged"] for row in found.table.as_json()}
    assert judged == {
        **{("timed graph n=1", "out"): CALLS, ("timed cold n=1", "out"): 2},
        **{(f"timed {c} n=1", state): 1 for c in (GRAPH, COLD) for state in ("prefix", "blocks")},
    }
    assert bench.sweep("attn_res", 1, lambda b, got, n: {**got, "blocks": last_row(got["blocks"])}).wrong
    assert bench.sweep("attn_res", 1, lambda b, got, n: {**got, "out": last_row(got["out"])}).wrong


def test_with_room_the_states_of_all_calls_are_kept(bench: Bench) -> None:
    found = bench.sweep("mla_kv_append", 1)
    assert set(found.states.values()) == {f"{CALLS} of {CALLS} calls", "2 of 2 calls"}
    assert found.raw[point_name("mla_kv_append", 1, COLD)]["states"] == [[0, 0], [1, 0]]


def test_of_an_op_that_writes_states_alone_the_kept_calls_are_judged_and_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perf, "STATE_BYTES", 1)
    found = bench.sweep("mla_kv_append", 1)
    judged = {(row["what"], row["output"]): row["judged"] for row in found.table.as_json()}
    assert judged == {("timed graph n=1", "cache"): 1, ("timed cold n=1", "cache"): 1} and found.wrong == []


def test_a_column_without_a_kept_state_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sampler, "take", lambda self: False)
    wrong = bench.sweep("attn_res", 1).wrong
    assert len(wrong) == 2 and all(text.endswith("kept no state of a timed call") for text in wrong)


# ---- what the record says of L2


def test_the_record_says_warm_where_l2_was_not_flushed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "l2_bytes", lambda device: 5000)
    found = bench.sweep("mla_kv_append", 1)  # 15 kB are five sets of 3336 bytes
    assert found.warm == {} and found.raw[point_name("mla_kv_append", 1, GRAPH)]["sets"] == 5
    monkeypatch.setattr(timing, "MAX_SETS", CALLS)
    found = bench.sweep("mla_kv_append", 1)
    assert found.warm == {point_name("mla_kv_append", 1, GRAPH): "0.0133 MB"}
    assert found.raw[point_name("mla_kv_append", 1, GRAPH)]["warm"] == "0.0133 MB"
    assert "warm" not in found.raw[point_name("mla_kv_append", 1, COLD)]


# ---- scenarios


SCENARIOS = [  # op, tokens, scenarios
    ("attn_res", 1, ("nb0", "nb4_write")),
    ("oproj_allreduce_residual", 1, ("nb2",)),
    ("moe_experts", 8, ("routing_same", "routing_request")),
    ("mla_decode", 1, ("context_1", "context_4k")),
]


@pytest.mark.parametrize(("name", "tokens", "scenarios"), SCENARIOS)
def test_the_stock_op_is_right_in_scenarios_and_their_points_are_named(
    name: str, tokens: int, scenarios: tuple[str, ...], bench: Bench
) -> None:
    found = bench.sweep(name, tokens, scenarios=scenarios)
    assert found.wrong == [] and found.left_out == {}
    assert {(p.scenario, p.column, p.tokens) for p in found.points} == {
        (s, c, tokens) for s in scenarios for c in (GRAPH, COLD)
    }
    assert {row["what"] for row in found.table.as_json()} == {
        f"timed {c} n={tokens} {s}" for s in scenarios for c in (GRAPH, COLD)
    }


def test_a_fault_that_only_a_scenario_shows_is_refused(bench: Bench) -> None:
    """Rows past the first 2048 are ignored: no family is that long."""

    def short(buffers: BufferSet, got: Got, call: int) -> Got:
        values = buffers.values()
        lengths = buffers.buffers["lengths"].tensor
        run = REGISTRY.get("mla_decode").stock(buffers.problem)
        return run({**values, "lengths": lengths.clamp(max=2048)})

    assert bench.sweep("mla_decode", 1, short).wrong == []
    wrong = bench.sweep("mla_decode", 1, short, scenarios=("context_4k", "context_64")).wrong
    assert wrong and all("/n1/context_4k/" in text for text in wrong)


def test_a_scenario_that_does_not_fit_is_left_out_and_said_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "ROTATION_BYTES", 3_000_000)
    found = bench.sweep("mla_decode", 1, scenarios=("context_64", "context_4k"))
    assert {p.scenario for p in found.points} == {"context_64"} and found.wrong == []
    ((name, why),) = found.left_out.items()
    assert name.endswith("/n1/context_4k") and why == "one set takes 4.87 MB, a rotation may take 3"


# ---- what must not change


def test_the_sets_and_records_of_an_op_without_states_are_what_they_were(bench: Bench) -> None:
    op = REGISTRY.get("moe_shared")
    for dims, tokens, allocated in (("k3-tp8", 1, 33_058_816), ("k3-tp8", 64, 34_865_152)):
        assert op.cost(op.problem(dims, tokens, "")).bytes == allocated, "a call touches all of a set"
        assert timing.sets_needed(allocated, L2, allocated) == 5
    problem = op.problem("nano", 16, "")
    turns = rotation(op, problem, 77, "cpu", rows=12)
    for number, buffers in enumerate(turns.sets):
        want = op.inputs(problem, "normal", 77 + number, "cpu")
        assert not buffers.changed_inputs(want), "rows behind the last token too"
    found = bench.sweep("moe_shared", 1)
    keys = "samples sets calls rotation_bytes timer setup_s prepare_s"
    assert all(sorted(raw) == sorted(keys.split()) for raw in found.raw.values())
    assert not found.states and not found.warm
