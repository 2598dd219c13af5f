"""The test of equal distributions: tabulated tails, statistics by hand, pooling, and its rate of false alarms."""

import math
import random

import pytest

from kgen.model.generation.homogeneity import chi_square_tail, fits, same_distribution


@pytest.mark.parametrize(  # upper quantiles of the chi-square distribution as statistical tables print them
    ("freedom", "tail", "quantile"),
    [
        (1, 0.05, 3.841),
        (1, 0.01, 6.635),
        (2, 0.05, 5.991),
        (3, 0.95, 0.352),
        (5, 0.5, 4.351),
        (10, 0.05, 18.307),
        (10, 0.001, 29.588),
        (10, 0.99, 2.558),
        (30, 0.05, 43.773),
        (100, 0.05, 124.342),
        (100, 0.99, 70.065),
    ],
)
def test_the_tail_is_the_tabulated_one(freedom: int, tail: float, quantile: float) -> None:
    assert chi_square_tail(quantile - 0.0006, freedom) > tail > chi_square_tail(quantile + 0.0006, freedom)


@pytest.mark.parametrize("statistic", [1e-9, 0.3, 1.0, 3.9, 4.1, 40.0, 700.0])
def test_the_tail_agrees_with_closed_forms(statistic: float) -> None:
    x = statistic / 2
    assert chi_square_tail(statistic, 1) == pytest.approx(math.erfc(math.sqrt(x)), rel=1e-12)
    assert chi_square_tail(statistic, 2) == pytest.approx(math.exp(-x), rel=1e-12)
    even = math.exp(-x) * math.fsum(x**n / math.factorial(n) for n in range(20))
    assert chi_square_tail(statistic, 40) == pytest.approx(even, rel=1e-11)


def test_the_ends_of_the_tail() -> None:
    assert chi_square_tail(0, 3) == 1 and chi_square_tail(math.inf, 3) == 0
    assert chi_square_tail(1e5, 90_000) < 1e-100 < 0.4 < chi_square_tail(90_000, 90_000) < 0.6
    with pytest.raises(ValueError, match="degrees of freedom"):
        chi_square_tail(-1, 3)


def test_two_samples_by_hand() -> None:
    # 2x2 table 30 20 / 20 30: all four expected counts are 25, the statistic 4 * 25/25 = 4
    result = same_distribution([30, 20], [20, 30], 0.05)
    assert (result.statistic, result.freedom, result.same) == (4.0, 1, False)
    assert result.p_value == pytest.approx(0.0455, abs=5e-5)
    assert same_distribution([30, 20], [20, 30], 0.04).same


def test_samples_of_unequal_size_by_hand() -> None:
    # 10 of 40 against 50 of 60: together 60 of 100, expected 24 16 / 36 24, squares 196 each
    result = same_distribution([10, 30], [50, 10], 0.05)
    assert result.statistic == pytest.approx(196 / 24 + 196 / 16 + 196 / 36 + 196 / 24)


def test_one_sample_by_hand() -> None:
    # a die of 60 throws: 5 8 9 8 10 20 against 10 each gives (25 + 4 + 1 + 4 + 0 + 100) / 10
    result = fits([5, 8, 9, 8, 10, 20], [1 / 6] * 6, 0.05)
    assert result.statistic == pytest.approx(13.4) and result.freedom == 5 and not result.same
    assert result.p_value == pytest.approx(0.0199, abs=5e-5)


def test_rare_cells_are_pooled() -> None:
    # expected 50 44 and six of 1: the six make one cell of 6
    result = fits([50, 44, 6, 0, 0, 0, 0, 0], [0.5, 0.44, *[0.01] * 6], 0.05)
    assert result.freedom == 2 and result.statistic == pytest.approx(0)
    # a pool that is still rare joins the smallest of the others: expected 54 44 2 gives 54 46
    assert fits([54, 46, 0], [0.54, 0.44, 0.02], 0.05).statistic == pytest.approx(0)
    # 10 of 1010 in the second: about 9, 0.5 and 0.5 expected there make one cell, whichever comes first
    assert same_distribution([900, 50, 50], [9, 1, 0], 0.05).freedom == 0
    assert same_distribution([9, 1, 0], [900, 50, 50], 0.05).freedom == 0
    # cells that both samples lack do not count
    assert same_distribution([30, 20, 0, 0], [20, 30, 0, 0], 0.05).freedom == 1


def test_what_cannot_happen_never_fits() -> None:
    assert fits([99, 1], [1.0, 0.0], 0.05).p_value == 0
    assert fits([100, 0], [1.0, 0.0], 0.05).same


def test_one_cell_has_nothing_to_tell_apart() -> None:
    assert same_distribution([3], [1000], 0.05).p_value == 1
    assert same_distribution([1, 1], [1, 1], 0.05).freedom == 0


def test_false_alarms_come_at_the_rate_alpha() -> None:
    # 400 comparisons of equal distributions, some of the cells rare: 20 expected at 5 %, deviation 4.4
    chooser = random.Random(1)
    weights = [30, 20, 20, 10, 10, 5, 2, 1, 1, 1]
    alarms = 0
    for _ in range(400):
        counts = [[0] * 10, [0] * 10]
        for sample, size in zip(counts, (150, 300), strict=True):
            for cell in chooser.choices(range(10), weights, k=size):
                sample[cell] += 1
        alarms += not same_distribution(*counts, 0.05).same
    assert 7 <= alarms <= 33


@pytest.mark.parametrize(
    ("a", "b", "alpha", "said"),
    [
        ([1, 2], [1], 0.05, "cells"),
        ([], [], 0.05, "at least one count"),
        ([0, 0], [1, 2], 0.05, "at least one count"),
        ([1, -1], [1, 2], 0.05, "negative"),
        ([1, 2], [1, 2], 0.0, "alpha"),
    ],
)
def test_bad_counts_are_refused(a: list[int], b: list[int], alpha: float, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        same_distribution(a, b, alpha)


def test_bad_probabilities_are_refused() -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        fits([1, 2], [0.5, 0.4], 0.05)
