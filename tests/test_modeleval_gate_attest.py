"""Launch attestation of the model evaluation on made-up records: each count that is off is named, none overlooked."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.modeleval import ARCH, stand

from kgen.gates.modeleval import attest
from kgen.gates.modeleval.census import Census
from kgen.gates.modeleval.exercise import EAGER, FILLED, FORCED, FREE, GRAPH, OTHER, Exercise, Way
from kgen.gates.modeleval.sides import CANDIDATE, MUTANT, OFF, STOCK, Left, Part, Record
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


def test_only_a_candidate_and_a_mutant_seat_builds() -> None:
    seats = {}
    for kind in (CANDIDATE, MUTANT, OFF, STOCK):
        want = attest.expected(replace(MINE, kind=kind), GIVEN, batch(EAGER), CENSUS)
        seats[kind] = dict(want.promoted), dict(want.stock), {k: dict(n) for k, n in want.per_step.items()}
    mine = ({KEY: 7}, OTHERS, {KEY: {KERNEL: PER_STEP}})
    none: tuple[dict[str, int], dict[str, int], dict[str, Any]] = ({}, {**OTHERS, KEY: 7}, {})
    assert seats == {CANDIDATE: mine, MUTANT: mine, OFF: none, STOCK: none}


def test_every_batch_of_every_mode_is_named_by_its_mode_and_size() -> None:
    fewer = {"counts": {KEY: {KERNEL: 69}}}
    found = left(batch(EAGER, **fewer), batch(GRAPH, captured={KEY: {KERNEL: 13}}, warm={KEY: {KERNEL: 27}}))
    assert attest.faults(MINE, found, CENSUS) == [
        f"{GIVEN.name} eager q1 of 4: {KEY} counted 69 x {KERNEL}, expected 70 x {KERNEL} in 5 steps",
        f"{GIVEN.name} graph q1 of 4, warm-up: {KEY} counted 27 x {KERNEL}, expected 28 x {KERNEL} in 2 steps",
        f"{GIVEN.name} graph q1 of 4, capture: {KEY} counted 13 x {KERNEL}, expected 14 x {KERNEL} in 1 steps",
    ]


def test_a_record_without_batches_seats_nobody_and_plans_nothing() -> None:
    records = {k: replace(r, batches=()) for k, r in HONEST.records.items()}
    assert attest.faults(MINE, replace(HONEST, records=records), CENSUS) == []


def test_a_build_record_without_launches_attests_nothing() -> None:
    silent = replace(MINE, builds=(stand("x", 4, kernels=[]),))
    for mode in (EAGER, GRAPH):
        lines = attest._batch(batch(mode), attest.expected(silent, GIVEN, batch(mode), CENSUS), False)
        assert lines == [f"{mode} q1 of 4: the build record of {KEY} names no launch"]


def test_a_batch_without_steps_may_have_no_launch() -> None:
    want = attest.expected(MINE, GIVEN, batch(EAGER), CENSUS)
    assert attest._batch({**batch(EAGER), "steps": 0, "counts": {}}, want, False) == []
    assert attest._batch({**batch(EAGER), "steps": 0}, want, False) != []


def test_more_than_expected_in_any_round_is_a_fault_and_is_the_one_shown() -> None:
    full = PER_STEP * REPLAYS
    exact, short, more = ({KERNEL: full + n} for n in (0, -1, 1))

    def seen(*rounds: dict[str, int]) -> list[str]:
        return attest.faults(MINE, left(batch(EAGER), batch(GRAPH, profiled=list(rounds))), CENSUS)

    assert seen(exact) == seen(short, exact) == seen(exact, {"sgemm": 9}) == []
    where, expects = (
        f"{GIVEN.name} graph q1 of 4: the profiler saw",
        f"in {REPLAYS} replays, expected {full} x {KERNEL}",
    )
    assert seen(short, exact, more) == [f"{where} {full + 1} x {KERNEL} {expects}"]
    assert seen(short) == [f"{where} {full - 1} x {KERNEL} {expects}"]
    assert seen({}) == seen({"sgemm": 3}) == [f"{where} nothing {expects}"]
    quiet = replace(MINE, exercises=(replace(GIVEN, profiled=False),))
    assert attest.faults(quiet, left(batch(EAGER), batch(GRAPH, profiled=[more])), CENSUS) == []


def test_a_kernel_is_known_by_its_name_with_or_without_a_signature() -> None:
    assert attest.known({"k(int)": 2, "k": 3, "k(float)": 4, "other(k)": 5, "n(a)": 6}, {"k", "n(a)"}) == {
        "k": 9,
        "n(a)": 6,
    }


def test_free_runs_may_take_other_numbers_of_steps() -> None:
    for kind, lines in ((FORCED, 1), (FILLED, 1), (FREE, 0)):
        exercise = replace(GIVEN, kind=kind, modes=(EAGER,))
        record = Record(exercise.name, EAGER, {}, (batch(EAGER, steps=4, counts={KEY: {KERNEL: PER_STEP * 4}}),), {})
        found = Left("done", "", {}, {(exercise.name, EAGER): record})
        assert len(attest.faults(replace(MINE, exercises=(exercise,)), found, CENSUS)) == lines


def test_one_profiled_exercise_that_shows_a_kernel_is_enough_for_itself_alone() -> None:
    assert attest.blind(MINE, left(batch(EAGER), batch(GRAPH, profiled=[{}, {"sgemm": 1}]))) == []
    unprofiled = replace(MINE, exercises=(replace(GIVEN, profiled=False),))
    assert attest.blind(unprofiled, left(batch(EAGER), batch(GRAPH, profiled=[]))) == []
    assert attest.blind(MINE, left(batch(EAGER), batch(GRAPH, profiled=[]))) == [
        f"{MINE.name}: the profiler saw no kernel at all in replays of {GIVEN.name}"
    ]


@pytest.mark.parametrize(
    ("mine", "theirs", "odd"),
    [
        ([], [], ""),
        ([{"a": 1}], [{"a": 1}], ""),
        ([{"a": 1}, {"a": 2}], [{"a": 3}, {"a": 1}], ""),
        ([{"a": 1}], [], "1 x a"),
        ([], [{"a": 1}], "-1 x a"),
        ([{"a": 9}, {"a": 3, "b": 1}], [{"a": 8}, {"a": 1, "b": 1}], "2 x a"),
    ],
)
def test_switched_off_some_round_shows_what_some_round_of_stock_shows(
    mine: list[dict[str, int]], theirs: list[dict[str, int]], odd: str
) -> None:
    lines = attest.as_stock(OFF_PART, stock_like(profiled=mine), stock_like(profiled=theirs))
    says = f"{GIVEN.name} graph: switched off, other kernels run than in stock: {odd}"
    assert lines == ([says] if odd else [])


def test_switched_off_other_compositions_of_stock_are_not_compared() -> None:
    free = replace(GIVEN, kind=FREE, modes=(EAGER,), other=2)
    part = Part(STOCK, "nano-random", (free,))  # the one kind of part with such modes
    logits = torch.zeros(5, 4, 8)
    record = Record(free.name, EAGER, {"logits": logits}, (), {})
    found = Left("done", "", {}, {(free.name, EAGER): record})
    assert part.modes(free) == [EAGER, f"{OTHER} {EAGER}"]
    assert attest.as_stock(part, found, found) == []


def test_steps_of_batches_of_one_size_add_up_in_the_summary() -> None:
    records = {k: replace(r, batches=r.batches * 2) for k, r in HONEST.records.items()}
    stock = replace(MINE, kind=STOCK)
    shown = attest.summary([stock, MINE], {MINE.name: replace(HONEST, records=records)}, CENSUS)
    entry = shown["nano-random"]["nano-random 4x1"]
    assert (entry["eager steps"], entry["graph steps"], entry["launches_per_step"]) == (10, 10, PER_STEP)
    assert attest._by_op({"a/x": 2, "a/y": 3, "b": 4}) == {"a": 5, "b": 4}


def test_a_line_shows_the_first_count_that_differs_and_cuts_long_names() -> None:
    assert attest._odd({"a": 1, "b": 2}, {"a": 1, "b": 3}) == "are 2 of b instead of 3"
    assert attest._odd({}, {"a": 1}) == "are 0 of a instead of 1"
    assert attest._short({"k" * 60: 2, "n": 1}) == f"2 x {'k' * 48}, 1 x n"
    assert attest._short({}) == "nothing"


def test_of_several_batches_one_with_a_build_is_enough_and_the_first_has_the_planned_steps() -> None:
    wide = {**batch(EAGER, promoted=False, requests=8, steps=3), "stock": dict(CENSUS.calls(WAY, 8, 1))}
    exercise = replace(GIVEN, modes=(EAGER,))
    record = Record(GIVEN.name, EAGER, {}, (batch(EAGER), wide), {})
    found = Left("done", "", {}, {(exercise.name, EAGER): record})
    assert attest.faults(replace(MINE, exercises=(exercise,)), found, CENSUS) == []


def test_only_graphs_of_the_planned_batches_are_profiled() -> None:
    modes = (EAGER, GRAPH, f"{OTHER} {GRAPH}")
    assert [attest._profiled(GIVEN, mode) for mode in modes] == [False, True, False]
    assert not any(attest._profiled(replace(GIVEN, profiled=False), mode) for mode in modes)


def test_the_problem_and_the_round_that_are_shown_are_those_that_differ() -> None:
    per_step = {"a": {"k": 2}, "b": {"k": 3}}
    assert attest._counts("w", {"a": {"k": 4}, "b": {"k": 5}}, per_step, 2) == [
        "w: b counted 5 x k, expected 6 x k in 2 steps"
    ]
    rounds = [{"k": 5 * REPLAYS - 1}, {"k": 5 * REPLAYS - 2}]
    (line,) = attest._seen("w", rounds, per_step)
    assert line.startswith(f"w: the profiler saw {5 * REPLAYS - 1} x k in")
    (line,) = attest._seen("w", [{"k": 99}, {"k": 98}, {"k": 1}], per_step)
    assert line.startswith("w: the profiler saw 99 x k in")


def test_runs_of_other_numbers_of_batches_are_never_taken_for_the_same() -> None:
    off = stock_like()
    longer = {k: replace(r, batches=r.batches * 2) for k, r in off.records.items()}
    with pytest.raises(ValueError, match="zip"):
        attest.as_stock(OFF_PART, replace(off, records=longer), stock_like())
