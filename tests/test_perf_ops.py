"""perf-sweep on every op: the stock stand-in's timed calls are right, and planted faults in outputs and states are not.

States and slots, padding rows, counts that an op refuses, rotations that L2 may hold, costs that the values decide. The
runner's code runs in this process here; tests/test_perf_gate.py covers the process around it. No time is looked at.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kgen.contract import Role
from kgen.gates import perf, perf_judge, timing
from kgen.gates.perf_judge import Findings
from kgen.gates.rates import MEASURED
from kgen.gates.rows import pad, rows_of
from kgen.gates.runner import faults
from kgen.gates.runner import perf as job_side
from kgen.gates.runner.buffers import BufferSet
from kgen.gates.runner.contestants import Sampler, rotation
from kgen.gates.runner.host import Outcome
from kgen.gates.runner.job import stock_spec
from kgen.gates.runner.out import Out
from kgen.gates.runner.perf import CHAINED, COLD, GRAPH
from kgen.gates.runner.refill import rolled
from kgen.ops import REGISTRY

ALL = sorted(REGISTRY.ops)
FEW = {GRAPH: 1, CHAINED: 1, COLD: 2}
CALLS = 4  # of a graph
CHEAPER = {"mla_decode": {"q": "4"}}  # four requests instead of sixteen
H200 = MEASURED["NVIDIA H200"]
L2 = 50 << 20
Got = dict[str, torch.Tensor]
Fault = Callable[[BufferSet, Got, int], Got]


class Bench:
    """Sweeps one point in this process, with a fault planted in the stand-in."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch, self.runs = folder, patch, 0

    def sweep(self, name: str, tokens: int, fault: Fault | None = None, **axes: str) -> Findings:
        op = REGISTRY.get(name)
        spec = stock_spec(op.problem("nano", tokens, "sm_90a", axes), "planted" if fault else "")
        jobs = perf.make_jobs(op, [spec], (), FEW)
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


@pytest.mark.parametrize("name", ["kda_core", "mla_decode"])
def test_a_count_that_the_op_refuses_is_left_out(name: str) -> None:
    op = REGISTRY.get(name)
    for q, tokens, timed in (("1", 16, [16, 12]), ("4", 16, [16, 12]), ("8", 16, [16]), ("8", 32, [32, 24])):
        specs = [stock_spec(op.problem("nano", tokens, "sm_90a", {"q": q}))]
        assert [j.tokens for j in perf.make_jobs(op, specs, (), FEW)] == timed


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


def test_a_column_without_a_kept_state_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sampler, "take", lambda self: False)
    wrong = bench.sweep("attn_res", 1).wrong
    assert len(wrong) == 2 and all(text.endswith("kept no state of a timed call") for text in wrong)


def test_the_sampler_takes_exactly_as_many_as_wanted_and_any_of_them() -> None:
    seen = set()
    for _ in range(200):
        sampler = Sampler(2, 5)
        taken = [number for number in range(5) if sampler.take()]
        assert len(taken) == 2
        seen.add(tuple(taken))
    assert len(seen) == 10, "every pair comes up"
    every = Sampler(7, 3)
    assert all(every.take() for _ in range(3))


# ---- rotations and costs


@pytest.mark.parametrize(
    ("name", "tokens", "sets"),
    [("moe_experts", 1, 5), ("moe_experts", 64, 3), ("mla_decode", 64, 4), ("kda_core", 1, 64), ("kda_core", 64, 3)],
)
def test_a_rotation_is_sized_by_what_calls_touch(name: str, tokens: int, sets: int) -> None:
    """3 x 50 MiB is 157 MB. Touched: 35 MB of experts; 1.3 GB; 39 MB of cache rows; 2.1 MB of states; 56 MB."""
    op = REGISTRY.get(name)
    allocated = {"moe_experts": 1_966_000_000, "mla_decode": 82_000_000, "kda_core": 875_000 * (tokens + 3)}[name]
    touched = min(allocated, op.cost(op.problem("k3-tp8", tokens, "")).bytes)
    assert timing.sets_needed(touched, L2, allocated) == sets


def test_a_rotation_takes_no_more_memory_than_its_share_but_at_least_one_set() -> None:
    share = timing.ROTATION_BYTES
    assert timing.sets_needed(1, L2, share // 10) == 10
    assert timing.sets_needed(1, L2, share // 2) == 2
    assert timing.sets_needed(1, L2, 3 * share) == 1


def test_what_l2_can_hold_is_called_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    op = REGISTRY.get("mla_kv_append")
    problem = op.problem("nano", 1, "")
    monkeypatch.setattr(timing, "l2_bytes", lambda device: L2)
    turns = rotation(op, problem, 1, "cpu")
    # a row of 576 read and written in bf16, norm weights of 512, a slot of 8 bytes: 3336 bytes in each of 64 sets
    assert len(turns.sets) == 64 and turns.touched == 64 * 3336 and turns.warm == "0.214 MB"
    monkeypatch.setattr(timing, "l2_bytes", lambda device: 3336)
    assert rotation(op, problem, 1, "cpu").warm == ""


def test_the_record_says_warm_where_l2_was_not_flushed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "l2_bytes", lambda device: 5000)
    found = bench.sweep("mla_kv_append", 1)  # 15 kB are five sets of 3336 bytes
    assert found.warm == {} and found.raw[point_name("mla_kv_append", 1, GRAPH)]["sets"] == 5
    monkeypatch.setattr(timing, "MAX_SETS", CALLS)
    found = bench.sweep("mla_kv_append", 1)
    assert found.warm == {point_name("mla_kv_append", 1, GRAPH): "0.0133 MB"}
    assert found.raw[point_name("mla_kv_append", 1, GRAPH)]["warm"] == "0.0133 MB"
    assert "warm" not in found.raw[point_name("mla_kv_append", 1, COLD)]


def test_costs_are_those_of_the_values_that_a_call_had() -> None:
    op = REGISTRY.get("moe_experts")
    problem = op.problem("nano", 16, "")
    (job, padded) = perf.make_jobs(op, [stock_spec(problem)], (), {GRAPH: 1, COLD: 3})
    sets = [op.inputs(problem, "ragged", seed, "cpu") for seed in range(2)]
    per_expert = sum(int(sets[0][n][0].numel()) for n in ("w13", "s13", "w2", "s2"))  # type: ignore[index]

    def by_hand(number: int, rows: int) -> int:
        ids = sets[number]["ids"][:rows].flatten().tolist()  # type: ignore[index]
        return len(set(ids)) * per_expert + rows * (2 * 128 * 2 + 4 * (4 + 2))

    graph, cold = {"column": GRAPH, "calls": 24}, {"column": COLD, "calls": 1}
    for each, rows in ((job, 16), (padded, 12)):
        mean = (by_hand(0, rows) + by_hand(1, rows)) / 2
        assert perf_judge.bytes_moved(op, each, graph, sets, 0).bytes == mean
        assert perf_judge.bytes_moved(op, each, cold, sets, 0).bytes == by_hand(0, rows), "sets 0, 1, 0"


def test_states_that_may_still_lie_in_l2_are_not_asked_of_the_memory() -> None:
    """64 slots of 786 kB are read and written. The reads and what L2 cannot hold must pass; the rest may come later."""
    op = REGISTRY.get("kda_core")
    problem = op.problem("k3-tp8", 64, "")
    (job, *_) = perf.make_jobs(op, [stock_spec(problem)], (), FEW)
    slots = [{"slots": torch.arange(1, 65, dtype=torch.int32), "p": torch.empty(64, 6288)}]
    moved = {
        c: perf_judge.bytes_moved(op, job, {"column": c, "calls": n}, slots, L2) for c, n in ((GRAPH, 24), (COLD, 1))
    }
    assert moved[GRAPH].bytes == moved[COLD].bytes == op.cost(problem).bytes
    assert moved[COLD].soon == op.cost(problem).bytes - L2
    assert moved[GRAPH].soon == pytest.approx(op.cost(problem).bytes - L2 / 24)


# ---- what must not change


def test_the_plan_of_an_op_without_states_is_what_it_was() -> None:
    op = REGISTRY.get("moe_shared")
    specs = [stock_spec(op.problem("k3-tp8", tokens, "sm_90a")) for tokens in (1, 16, 64)]
    jobs = perf.make_jobs(op, specs, (), perf.REPETITIONS)
    plan = [(j.spec.problem.key, j.tokens, j.baselines, dict(j.repetitions), j.champion) for j in jobs]
    columns = {"graph": 40, "chained": 20, "cold": 40}
    assert plan == [
        ("moe_shared/k3-tp8/t1/sm_90a", 1, ("stock", "compile"), columns, None),
        ("moe_shared/k3-tp8/t16/sm_90a", 16, ("stock",), columns, None),
        ("moe_shared/k3-tp8/t16/sm_90a", 12, ("stock",), columns, None),
        ("moe_shared/k3-tp8/t64/sm_90a", 64, ("stock", "compile"), columns, None),
        ("moe_shared/k3-tp8/t64/sm_90a", 48, ("stock",), columns, None),
    ]
    told = perf.make_job(op, jobs, Path("/cache"), "cuda")
    assert {**told, "points": []} == {"points": [], "cache": "/cache", "device": "cuda", "compile": True}
    fields = "schema spec tokens repetitions baselines seed other_seed order_seed champion"
    assert all(sorted(point) == sorted(fields.split()) for point in told["points"])
    assert [perf_judge.name_of(j, GRAPH) for j in jobs][2] == "moe_shared/k3-tp8/t16/sm_90a/n12/graph"


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


# ---- the rules that runner and judge share


def test_padding_rows_hold_their_value_and_the_others_what_was_drawn() -> None:
    op = REGISTRY.get("kda_core")
    problem = op.problem("nano", 16, "", {"q": "4"})
    values, drawn = (op.inputs(problem, "normal", 3, "cpu") for _ in range(2))
    pad(op, problem, values, 12)
    assert values["slots"][3].tolist() == [0, 0, 0, 0] and values["accepted"][3] == 0  # type: ignore[index]
    kept, was = rows_of(op, problem, values, 12), rows_of(op, problem, drawn, 12)
    assert all(torch.equal(kept[n], was[n]) for n in ("slots", "accepted", "p", "s"))
    assert bool(values["p"].isfinite().all())  # type: ignore[union-attr]
    pad(op, problem, values, 12, garbage=True)
    assert bool(values["p"][12:].isnan().all()) and bool(values["p"][:12].isfinite().all())  # type: ignore[index]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.uint8])
def test_every_format_can_be_rolled(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]]).to(dtype)
    assert rolled(tensor, 1).double().tolist() == [[4.0, 1.0, 2.0], [32.0, 8.0, 16.0]]
    assert rolled(tensor, 1).dtype == dtype
