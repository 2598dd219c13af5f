"""perf-sweep: what is timed, over which sets, at which cost; what an op without states or scenarios must not notice.

Plans, rotations, floors and records, without a runner: tests/test_perf_ops.py runs every op.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kgen.gates import perf, perf_judge, timing
from kgen.gates.perf_judge import Moved
from kgen.gates.rows import pad, rows_of
from kgen.gates.runner.contestants import Sampler, rotation
from kgen.gates.runner.job import stock_spec
from kgen.gates.runner.perf import CHAINED, COLD, GRAPH, PointJob
from kgen.gates.runner.refill import rolled
from kgen.ops import REGISTRY, baselines
from kgen.records import PerfPoint, Problem, Status, from_json, to_json
from kgen.records.envelope import envelope

FEW = {GRAPH: 1, CHAINED: 1, COLD: 2}
L2 = 50 << 20


@pytest.mark.parametrize("name", ["kda_core", "mla_decode"])
def test_a_count_that_the_op_refuses_is_left_out(name: str) -> None:
    op = REGISTRY.get(name)
    for q, tokens, timed in (("1", 16, [16, 12]), ("4", 16, [16, 12]), ("8", 16, [16]), ("8", 32, [32, 24])):
        specs = [stock_spec(op.problem("nano", tokens, "sm_90a", {"q": q}))]
        assert [j.tokens for j in perf.make_jobs(op, specs, (), FEW)] == timed


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


def scenario_points(name: str, tokens: int) -> list[tuple[int, str, tuple[str, ...], list[str]]]:
    op = REGISTRY.get(name)
    jobs = perf.make_jobs(op, [stock_spec(op.problem("nano", tokens, ""))], (), FEW)
    return [(j.tokens, j.scenario, j.baselines, list(j.repetitions)) for j in jobs if j.scenario]


def test_scenarios_are_timed_at_three_bins_against_stock_and_more_baselines_without_the_chain() -> None:
    names = ["routing_trace", "routing_uniform", "routing_same", "routing_request"]
    few, many = ("fused_mxfp4", "gemv_bf16", "grouped_bf16"), ("grouped_bf16", "all_bf16")
    for tokens, more in ((1, few), (8, few), (64, many)):
        assert scenario_points("moe_experts", tokens) == [(tokens, n, ("stock", *more), [GRAPH, COLD]) for n in names]
    assert scenario_points("moe_experts", 2) == scenario_points("moe_experts", 16) == []
    assert scenario_points("kda_core", 8) == []
    assert [s for _, s, _, _ in scenario_points("attn_res", 1)] == ["nb0", "nb2", "nb6", "nb8", "nb4_write"]


def test_sets_of_a_scenario_have_the_run_time_dims_of_their_values() -> None:
    op = REGISTRY.get("mla_decode")
    problem = op.problem("nano", 2, "")
    turns = rotation(op, problem, 5, "cpu", family="context_4k")
    tensors = turns.sets[0].tensors()
    # two requests of 4096 rows in blocks of 64, and two blocks that nobody owns
    assert tuple(tensors["cache"].shape) == (2 * 64 + 2, 64, 576) and tuple(tensors["block_table"].shape) == (2, 64)
    assert turns.touched == len(turns.sets) * (2 * 4096 * 576 * 2 + 2 * 2 * (2 * 576 + 2 * 512))


def test_a_bin_leaves_the_envelope_with_one_scenario() -> None:
    op = REGISTRY.get("attn_res")
    (job, scenario, *_) = perf.make_jobs(op, [stock_spec(op.problem("nano", 1, "sm_90a"))], (), FEW)
    assert (job.scenario, scenario.scenario) == ("", "nb0")

    def point(job: PointJob, candidate: float) -> PerfPoint:
        samples = {"candidate": [candidate] * 40, "stock": [10.0] * 40}
        record = {"column": GRAPH, "timer": "t", "samples": samples}
        return perf_judge.make_point(job, record, Moved(1, 1), None)

    key = job.spec.problem.key
    for time, said in ((9.0, {key: "win"}), (10.2, {key: "tie"}), (11.0, {})):
        assert envelope([point(job, 8.0), point(scenario, time)]) == said


def test_a_point_without_a_scenario_is_written_as_it_ever_was() -> None:
    plain = PerfPoint("p", 1, GRAPH, "t", 1.0, {"stock": 1.0}, "stock", 1.0, 1.0, 1.0, 0.5, 1.0, 3, "win")
    fields = "schema problem tokens column timer candidate_us baselines_us best_baseline ratio ratio_low ratio_high"
    assert list(to_json(plain)) == [*fields.split(), "roofline", "floor_us", "samples", "label"]
    assert from_json(PerfPoint, to_json(plain)) == plain
    other = replace(plain, scenario="nb0")
    assert to_json(other)["scenario"] == "nb0" and from_json(PerfPoint, to_json(other)) == other


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


def test_a_padded_count_that_is_a_bin_itself_is_timed_once() -> None:
    moe = REGISTRY.get("moe_shared")

    class Doubled(type(moe)):  # type: ignore[misc]
        pack = replace(moe.pack, padded=(12, 16))

    assert perf.counts(Doubled(), 16) == (16, 12)


def test_what_the_runner_keeps_of_an_op_with_states_is_counted_in_bytes() -> None:
    """y is 2 x 256 bf16; s is 5 slots x 2 heads x 128 x 128 f32 and conv 5 x 768 x 3 bf16. A graph makes 24 calls."""
    op = REGISTRY.get("kda_core")
    (job,) = perf.make_jobs(op, [stock_spec(op.problem("nano", 2, "sm_90a"))], (), {GRAPH: 3})[:1]
    states = 5 * 2 * 128 * 128 * 4 + 5 * 768 * 3 * 2
    assert perf._output_bytes(op, job, "cpu", 0) == 3 * 24 * (2 * 256 * 2) + states
    assert perf._output_bytes(op, job, "cpu", 4 * states) == 3 * 24 * (2 * 256 * 2) + 4 * states
    assert perf._output_bytes(op, job, "cpu", 999 * states) == 3 * 24 * (2 * 256 * 2 + states)


# --- more baselines than the stock op

EXPERTS = REGISTRY.get("moe_experts")


def experts(dims: str, tokens: int, acts: str = "bf16") -> Problem:
    return EXPERTS.problem(dims, tokens, "sm_90a", {"acts": acts})


def test_mxfp8_activations_are_refused_in_one_line_for_want_of_a_baseline(tmp_path: Path) -> None:
    specs = [stock_spec(experts("nano", 8, acts)) for acts in ("bf16", "mxfp8")]
    result, points, raw = perf.run_specs(EXPERTS, specs, cache=tmp_path, device="cpu", dims=("nano",))
    assert (result.status, result.code, points, raw) == (Status.SKIP, "perf.no_baseline", (), {})
    assert result.message == (
        "moe_experts has no baseline at acts=mxfp8: torch only has a stock op that decodes experts on the clock;"
        " take acts=bf16"
    )
    assert (result.gate, result.evidence, result.seconds) == ("perf-sweep", {}, 0.0)


def test_every_point_of_a_sweep_has_them_beside_stock() -> None:
    specs = [stock_spec(experts("k3-tp8", t)) for t in (1, 64)]
    jobs = perf.make_jobs(EXPERTS, specs, (), perf.REPETITIONS)
    for job in jobs:
        more = tuple(n for n in job.baselines if n not in ("stock", "compile"))
        assert more == baselines.fitting(job.spec.problem, job.tokens) and more
