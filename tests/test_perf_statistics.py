"""Statistics and rotation sizes: properties that hold for any samples."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgen.gates import timing
from kgen.gates.runner.refill import refilled, refilled_names
from kgen.gates.statistics import median, ratio_interval
from kgen.ops import REGISTRY

TIMES = st.lists(st.floats(1.0, 100.0), min_size=1, max_size=40)


@settings(max_examples=40, deadline=None)
@given(TIMES, st.floats(0.1, 10.0))
def test_a_constant_factor_is_found_exactly_and_without_doubt(times: list[float], factor: float) -> None:
    ratio, low, high = ratio_interval([factor * t for t in times], times, seed=1, resamples=200)
    assert ratio == pytest.approx(factor) and low == pytest.approx(factor) and high == pytest.approx(factor)


@settings(max_examples=40, deadline=None)
@given(TIMES)
def test_the_interval_holds_the_median_and_depends_on_the_seed_alone(times: list[float]) -> None:
    other = list(reversed(times))
    first = ratio_interval(times, other, seed=3, resamples=300)
    assert first[1] <= first[0] <= first[2]
    assert first == ratio_interval(times, other, seed=3, resamples=300)


def test_the_interval_covers_the_true_ratio_about_as_often_as_it_says() -> None:
    rng, hits = random.Random(5), 0
    for trial in range(200):
        base = [rng.gauss(20, 1) for _ in range(40)]
        mine = [0.9 * b * rng.lognormvariate(0, 0.05) for b in base]
        _, low, high = ratio_interval(mine, base, seed=trial, resamples=400)
        hits += low <= 0.9 <= high
    assert hits >= 180


def test_unpaired_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="paired samples needed"):
        ratio_interval([1.0, 2.0], [1.0], seed=1)


def test_the_median_of_an_even_count_is_the_mean_of_the_middle_two() -> None:
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 1 << 30), st.integers(0, 1 << 27))
def test_a_rotation_exceeds_three_times_the_l2_or_is_as_long_as_allowed(per_set: int, l2: int) -> None:
    sets = timing.sets_needed(per_set, l2)
    assert timing.MIN_SETS <= sets <= timing.MAX_SETS
    assert sets * per_set >= timing.L2_TIMES * l2 or sets == timing.MAX_SETS
    assert timing.calls_for(sets) % sets == 0 and timing.calls_for(sets) >= timing.MIN_CALLS


def test_sides_are_paired_and_take_turns_in_random_order() -> None:
    seen: list[str] = []
    sides = [timing.Side(name, lambda name=name: seen.append(name), 1) for name in ("a", "b", "c")]  # type: ignore[misc]
    samples = timing.interleave(sides, 20, timing.Clock("cpu"), random.Random(1))
    assert {len(times) for times in samples.values()} == {20}
    rounds = [tuple(seen[i : i + 3]) for i in range(0, len(seen), 3)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert len(set(rounds)) > 3, "the order changes from repetition to repetition"


def test_refilled_values_are_new_each_time_and_repeatable() -> None:
    op = REGISTRY.get("moe_shared")
    problem = op.problem(op.pack.small, 2, "sm_90a")
    values, names = op.inputs(problem, "normal", 1, "cpu"), refilled_names(op, problem)
    assert names == ["m"], "weights stay"
    turns = [refilled(values, names, 9, repetition, 0)["m"] for repetition in range(4)]
    assert torch.equal(turns[2], refilled(values, names, 9, 2, 0)["m"])  # type: ignore[arg-type]
    assert len({tuple(t.flatten().tolist()) for t in turns}) == 4  # type: ignore[union-attr]
    assert all(torch.equal(t.sort(-1).values, values["m"].sort(-1).values) for t in turns)  # type: ignore[union-attr]
