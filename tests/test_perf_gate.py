"""perf-sweep bites: every timed output is judged, labels follow the interval, impossible speeds are refused.

A whole sweep and one that dies have a real runner process; for what a judge sees the runner's code runs in this one.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from support.inside import in_this_process

from kgen.gates import perf, perf_judge
from kgen.gates.rates import MEASURED
from kgen.gates.runner import subject
from kgen.gates.runner.contestants import Contestant, rotation
from kgen.gates.runner.host import Outcome
from kgen.gates.runner.job import stock_spec
from kgen.gates.runner.out import Out
from kgen.gates.runner.perf import CHAINED, COLD, GRAPH, PointJob, _side
from kgen.ops import REGISTRY
from kgen.records import GateResult, PerfPoint, Status

OP = REGISTRY.get("moe_shared")
SMALL, SERVED = OP.pack.small, OP.pack.served[0]
FEW = {GRAPH: 3, CHAINED: 2, COLD: 3}
H200 = MEASURED["NVIDIA H200"]
WITH_A_PROCESS = ((16, ""), (1, "dies"))


@cache
def swept(tokens: int, fault: str = "", op: str = "moe_shared") -> tuple[GateResult, tuple[PerfPoint, ...], dict]:  # type: ignore[type-arg]
    contract = REGISTRY.get(op)
    spec = stock_spec(contract.problem(SMALL, tokens, "sm_90a"), fault)
    with pytest.MonkeyPatch.context() as patch:
        if (tokens, fault) not in WITH_A_PROCESS:
            patch.setattr(perf, "running", in_this_process)
        return perf.run_specs(contract, [spec], cache=Path("/nowhere"), device="cpu", dims=(SMALL,), repetitions=FEW)


def test_each_bin_and_its_padded_counts_are_timed_in_every_column() -> None:
    result, points, raw = swept(16)
    assert {(p.tokens, p.column) for p in points} == {(n, c) for n in (16, 12) for c in FEW}
    assert result.code in ("perf.pass", "perf.no_win"), result.message  # the stock op against itself: no one can say
    assert all(len(times) == FEW[name.rsplit("/", 1)[1]] for name, r in raw.items() for times in r["samples"].values())
    judged = {row["what"]: row["judged"] for row in result.evidence["timed_outputs"]}
    sets, calls = next((r["sets"], r["calls"]) for r in raw.values())
    assert judged["timed graph n=12"] == FEW[GRAPH] * sets
    assert judged["timed chained n=12"] == FEW[CHAINED] * calls
    assert judged["timed cold n=12"] == FEW[COLD]


@pytest.mark.parametrize("fault", ["stale", "past_end", "writes_input", "writes_weight"])
def test_a_fault_in_a_timed_output_fails_the_sweep(fault: str) -> None:
    result, _, _ = swept(2, fault)
    assert (result.status, result.code) == (Status.FAIL, "perf.wrong"), result.message


@pytest.mark.parametrize("column", [GRAPH, CHAINED, COLD])
def test_no_workspace_meets_an_input_twice_in_timed_calls(column: str, tmp_path: Path) -> None:
    problem = OP.problem(SMALL, 2, "sm_90a")
    like_the_input = (("bf16", (2, OP.dims[SMALL]["hidden"])),)
    turns = rotation(OP, problem, 7, "cpu", like_the_input)
    loaded = subject.load(stock_spec(problem, "remembers"), tmp_path)
    loaded.spec = replace(loaded.spec, workspaces=like_the_input)
    contestant = Contestant(loaded, turns, 2, "", Out(tmp_path))
    side = _side(contestant, OP, 7, column)
    for repetition in range(3):
        side.before(repetition)
        side.work()
        side.after(repetition)
    assert not contestant.findings
    assert all(torch.isfinite(y).all() for calls in contestant.kept for kept in calls for y in kept.values())


def test_a_changed_input_of_a_timed_call_is_named() -> None:
    result, _, _ = swept(2, "writes_weight")
    said = {text.rsplit(": ", 1)[1] for text in result.evidence["wrong"]}
    assert said == {f"changed its input w_down of set {n}" for n in range(3)}


def test_a_state_op_without_a_chain_is_swept_in_two_columns() -> None:
    result, points, _ = swept(2, op="attn_res")
    assert {p.column for p in points} == {GRAPH, COLD}
    assert result.code in ("perf.pass", "perf.no_win"), result.message


def test_a_crash_while_timing_is_the_candidates() -> None:
    result, _, _ = swept(1, "dies")
    assert (result.status, result.code) == (Status.FAIL, "perf.crash")


def record(candidate: float, stock: float, column: str = GRAPH, wobble: float = 0.0) -> dict[str, object]:
    times = [1 + wobble * (i % 5 - 2) for i in range(40)]
    samples = {"candidate": [candidate * t for t in times], "stock": [stock] * 40}
    return {"samples": samples, "column": column, "timer": "t"}


def moved(tokens: int = 8) -> perf_judge.Moved:
    least = OP.cost(OP.problem(SERVED, tokens, "sm_90a")).bytes
    return perf_judge.Moved(least, least)


def job() -> PointJob:
    return perf.make_jobs(OP, [stock_spec(OP.problem(SERVED, 8, "sm_90a"))], (), FEW)[0]


@pytest.mark.parametrize(
    ("candidate", "wobble", "label"),
    [(10.0, 0.0, "win"), (18.0, 0.0, "win"), (18.3, 0.0, "tie"), (18.6, 0.0, "left"), (17.9, 0.02, "tie")],
)
def test_the_upper_bound_decides_and_not_the_median(candidate: float, wobble: float, label: str) -> None:
    point = perf_judge.make_point(job(), record(candidate, 18.0, wobble=wobble), moved(), H200)
    assert point.label == label
    assert point.ratio_low <= point.ratio <= point.ratio_high


def test_the_roofline_is_the_floor_over_the_time() -> None:
    point = perf_judge.make_point(job(), record(2 * job_floor(), 40.0), moved(), H200)
    assert point.roofline == pytest.approx(0.5)
    assert point.floor_us == pytest.approx(job_floor())


def job_floor() -> float:
    return OP.cost(OP.problem(SERVED, 8, "sm_90a")).floor_us(H200.read)


def test_the_best_baseline_is_the_fastest_one() -> None:
    made = record(10.0, 18.0)
    made["samples"]["compile"] = [12.0] * 40  # type: ignore[index]
    point = perf_judge.make_point(job(), made, moved(), H200)
    assert (point.best_baseline, point.ratio) == ("compile", pytest.approx(10 / 12))


@pytest.mark.parametrize(("column", "caught"), [(GRAPH, True), (COLD, True), (CHAINED, False)])
def test_faster_than_the_memory_is_no_win(column: str, caught: bool) -> None:
    least = OP.cost(OP.problem(SERVED, 8, "sm_90a")).floor_us(H200.nominal)
    for share, refused in ((0.99, caught), (1.01, False)):
        timed = record(share * least, 18.0, column)
        point = perf_judge.make_point(job(), timed, moved(), H200)
        assert bool(perf_judge.impossible(job(), timed, point, moved(), H200)) is refused
        assert not perf_judge.impossible(job(), {**timed, "warm": "1 MB"}, point, moved(), H200), "L2 may be faster"


def test_an_impossible_speed_fails_the_gate() -> None:
    found = perf_judge.Findings(impossible=["p/n8/cold: 1.00 us, but its bytes need 6.9 us at peak"])
    result = perf._result(Outcome("done", "", "", Path()), found)
    assert (result.status, result.code) == (Status.FAIL, "perf.impossible")


def test_compile_is_timed_at_few_points_and_the_champion_at_each() -> None:
    specs = [stock_spec(OP.problem(SERVED, t, "sm_90a")) for t in (1, 2, 8, 64)]
    champion = [replace(s, design="champion") for s in specs[:2]]
    jobs = perf.make_jobs(OP, specs, champion, FEW)
    assert {j.tokens for j in jobs if "compile" in j.baselines} == {1, 8, 64}
    assert {j.tokens for j in jobs if j.champion is not None} == {1, 2}
    seeds = [seed for j in jobs for seed in (j.seed, j.other_seed, j.order_seed)]
    assert len(set(seeds)) == len(seeds), "candidate and baselines never share values"


def test_dims_that_are_not_served_cannot_win() -> None:
    spec = stock_spec(OP.problem(SMALL, 1, "sm_90a"))
    result, points, _ = perf.run_specs(OP, [spec], cache=Path("/nowhere"), device="cpu")
    assert (result.status, result.code, points) == (Status.FAIL, "perf.no_win", ())
