"""Launch attestation of the model evaluation on made-up records: each count that is off is named, none overlooked."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.modeleval import ARCH, stand

from kgen.gates.modeleval import attest
from kgen.gates.modeleval.census import Census
from kgen.gates.modeleval.exercise import EAGER, FORCED, GRAPH, Exercise, Way
from kgen.gates.modeleval.sides import CANDIDATE, OFF, STOCK, Left, Part, Record
from kgen.gates.modeleval.stage import REPLAYS
from kgen.ops import REGISTRY

WAY, KERNEL = Way("nano-random"), "gemm_kernel"
GIVEN = Exercise(FORCED, WAY, 4, 4, 5, (EAGER, GRAPH), profiled=True)
BUILD = stand("x", 4, kernels=[KERNEL, KERNEL])  # moe_shared: seven seats of the eight layers, two launches a call
KEY = BUILD.record.problem.key
PER_STEP = 14
CENSUS = Census(REGISTRY, ARCH)
MINE = Part(CANDIDATE, "nano-random", (GIVEN,), (BUILD,))
OTHERS = {k: n for k, n in CENSUS.calls(WAY, 4, 1).items() if k != KEY}


def batch(mode: str, promoted: bool = True, **changed: Any) -> dict[str, Any]:
    """What an honest run leaves of one batch."""
    calls = dict(CENSUS.calls(WAY, 4, 1))
    times = PER_STEP if promoted else 0
    found: dict[str, Any] = {"mode": mode, "requests": 4, "q": 1, "steps": 5}
    found["promoted"] = {KEY: calls.pop(KEY)} if promoted else {}
    found["stock"] = calls

    def launches(steps: int) -> dict[str, dict[str, int]]:
        return {KEY: {KERNEL: times * steps}} if times else {}

    if mode == EAGER:
        return {**found, "counts": launches(5), **changed}
    seen = {"sgemm": 40, **({f"{KERNEL}(float*)": PER_STEP * REPLAYS} if times else {})}
    return {**found, "warm": launches(2), "captured": launches(1), "counts": {}, "profiled": [seen], **changed}


def left(eager: dict[str, Any], graph: dict[str, Any], best: int = 3) -> Left:
    logits = torch.zeros(5, 4, 8)
    logits[..., best] = 1
    records = {
        (GIVEN.name, m): Record(GIVEN.name, m, {"logits": logits}, (b,), {})
        for m, b in ((EAGER, eager), (GRAPH, graph))
    }
    return Left("done", "", {}, records)


HONEST = left(batch(EAGER), batch(GRAPH))


def test_an_honest_run_has_no_fault() -> None:
    assert attest.faults(MINE, HONEST, CENSUS) == []
    assert attest.blind(MINE, HONEST) == []


Fault = tuple[str, dict[str, Any], str]


@pytest.mark.parametrize(
    ("mode", "changed", "says"),
    [
        (EAGER, {"counts": {KEY: {KERNEL: PER_STEP * 5 - 1}}}, "counted 69 x gemm_kernel, expected 70 x"),
        (EAGER, {"counts": {KEY: {KERNEL: PER_STEP * 5 + 1}}}, "counted 71 x"),
        (EAGER, {"counts": {}}, "counted nothing, expected 70 x"),
        (EAGER, {"counts": {KEY: {"other": PER_STEP * 5}}}, "counted 70 x other"),
        (EAGER, {"promoted": {}}, "promoted seats are 0 of moe_shared"),
        (EAGER, {"stock": {**OTHERS, KEY: 7}}, "stock seats are 7 of moe_shared"),
        (EAGER, {"steps": 4, "counts": {KEY: {KERNEL: PER_STEP * 4}}}, "4 steps, planned 5"),
        (GRAPH, {"warm": {KEY: {KERNEL: PER_STEP}}}, "warm-up: moe_shared/nano/t4/sm_90a counted 14 x"),
        (GRAPH, {"captured": {}}, "capture: moe_shared/nano/t4/sm_90a counted nothing"),
        (GRAPH, {"counts": {KEY: {KERNEL: 1}}}, "launched from the host during 5 replays"),
        (GRAPH, {"profiled": [{KERNEL: PER_STEP * REPLAYS - 1}]}, f"the profiler saw {PER_STEP * REPLAYS - 1} x"),
        (GRAPH, {"profiled": [{KERNEL: PER_STEP * REPLAYS + n} for n in (0, 1)]}, "the profiler saw"),
        (GRAPH, {"profiled": []}, "the profiler saw nothing"),
    ],
)
def test_every_count_that_is_off_is_named(mode: str, changed: dict[str, Any], says: str) -> None:
    found = left(*(batch(m, **(changed if m == mode else {})) for m in (EAGER, GRAPH)))
    lines = attest.faults(MINE, found, CENSUS)
    assert lines and any(says in line for line in lines), lines


def test_a_profiler_may_lose_records_in_one_round() -> None:
    rounds = [{KERNEL: 3}, {KERNEL: PER_STEP * REPLAYS}]
    assert attest.faults(MINE, left(batch(EAGER), batch(GRAPH, profiled=rounds)), CENSUS) == []


def test_a_candidate_that_sits_nowhere_is_a_fault() -> None:
    elsewhere = replace(MINE, builds=(stand("x", 8),))
    found = left(batch(EAGER, promoted=False), batch(GRAPH, promoted=False))
    found = Left("done", "", {}, {k: _all_stock(r) for k, r in found.records.items()})
    assert any("no build of the candidate sits" in line for line in attest.faults(elsewhere, found, CENSUS))


def _all_stock(record: Record) -> Record:
    return replace(record, batches=tuple({**b, "stock": dict(CENSUS.calls(WAY, 4, 1))} for b in record.batches))


def test_a_profiler_that_sees_no_kernel_at_all_is_blind() -> None:
    for rounds in ([], [{}], [{}, {}]):
        found = left(batch(EAGER), batch(GRAPH, profiled=rounds))
        assert "the profiler saw no kernel at all" in attest.blind(MINE, found)[0]


def stock_like(**graph: Any) -> Left:
    found = left(batch(EAGER, promoted=False), batch(GRAPH, promoted=False, **graph))
    return Left("done", "", {}, {k: _all_stock(r) for k, r in found.records.items()})


OFF_PART = Part(OFF, "nano-random", (GIVEN,), (BUILD,))


def test_stock_and_switched_off_show_no_kernel_of_the_candidate() -> None:
    for part in (replace(MINE, kind=STOCK), OFF_PART):
        assert attest.faults(part, stock_like(), CENSUS) == []
        assert attest.stray(part, stock_like(), {KERNEL}) == []
        dirty = stock_like(profiled=[{"sgemm": 40, f"{KERNEL}(int)": 1}])
        assert "shows kernels of the candidate: 1 x gemm_kernel" in attest.stray(part, dirty, {KERNEL})[0]
        assert attest.faults(part, HONEST, CENSUS)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda: stock_like(profiled=[{"sgemm": 41}]), "other kernels run than in stock: 1 x sgemm"),
        (lambda: _tokens(stock_like()), "other tokens come out than in stock"),
    ],
)
def test_switched_off_the_run_is_the_stock_run(change: Callable[[], Left], says: str) -> None:
    assert attest.as_stock(OFF_PART, stock_like(), stock_like()) == []
    assert says in attest.as_stock(OFF_PART, change(), stock_like())[0]


def _tokens(found: Left) -> Left:
    first, *rest = found.records.items()
    logits = first[1].tensors["logits"].roll(1, -1)
    return replace(found, records={first[0]: replace(first[1], tensors={"logits": logits}), **dict(rest)})


def test_the_summary_names_ops_batch_sizes_and_steps() -> None:
    shown = attest.summary([MINE], {MINE.name: HONEST}, CENSUS)
    assert shown == {
        "nano-random": {
            "nano-random 4x1": {
                "promoted": {"moe_shared": 7},
                "stock": sum(OTHERS.values()),
                "launches_per_step": PER_STEP,
                "eager steps": 5,
                "graph steps": 5,
            }
        }
    }
