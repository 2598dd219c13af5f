"""Do two sets of counts come from one distribution, and does a set of counts fit given probabilities? Pearson's test.

The p-value is the tail of the chi-square distribution: exact in the limit of many counts, and a good approximation
where every expected count is at least RARE. Cells below it are pooled into one (and that one into the smallest other
cell, if it is still below), chosen by what both samples have together, so that the choice knows nothing of their
difference. The tail itself is accurate to about 1e-12 (relative). Not covered: paired samples, dependent draws.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

RARE = 5.0  # Cochran's rule for the chi-square approximation
PRECISION = 1e-15  # of a term of the series and the fraction, relative
TERMS = 100_000  # both end after about sqrt(a) terms; a bound for a > 10^9 only


@dataclass(frozen=True)
class Comparison:
    statistic: float
    freedom: int  # degrees of freedom: cells after pooling, less one
    p_value: float  # of a difference at least this large if there is none
    same: bool  # p_value >= alpha


def same_distribution(counts_a: Sequence[int], counts_b: Sequence[int], alpha: float) -> Comparison:
    """Homogeneity of two samples: counts of the same cells, of independent draws. Raises ValueError for bad counts."""
    _check(counts_a, len(counts_b), alpha)
    _check(counts_b, len(counts_a), alpha)
    total_a, total_b = sum(counts_a), sum(counts_b)
    share_a = total_a / (total_a + total_b)
    smaller = min(share_a, 1 - share_a)
    together = [a + b for a, b in zip(counts_a, counts_b, strict=True)]
    cells = _pooled([smaller * c for c in together])
    statistic = 0.0
    for cell in cells:
        seen_a, seen_b = sum(counts_a[i] for i in cell), sum(counts_b[i] for i in cell)
        expected_a = share_a * (seen_a + seen_b)
        expected_b = (1 - share_a) * (seen_a + seen_b)
        statistic += (seen_a - expected_a) ** 2 / expected_a + (seen_b - expected_b) ** 2 / expected_b
    return _compared(statistic, len(cells) - 1, alpha)


def fits(counts: Sequence[int], probabilities: Sequence[float], alpha: float) -> Comparison:
    """Goodness of fit of counts to probabilities that sum to 1. A count where the probability is 0 never fits."""
    _check(counts, len(probabilities), alpha)
    if min(probabilities) < 0 or abs(math.fsum(probabilities) - 1) > 1e-9:
        raise ValueError("the probabilities must not be negative and must sum to 1")
    total = sum(counts)
    if any(c and not p for c, p in zip(counts, probabilities, strict=True)):
        return Comparison(math.inf, len(counts) - 1, 0.0, False)
    expected = [total * p for p in probabilities]
    cells = _pooled(expected)
    statistic = 0.0
    for cell in cells:
        wanted = math.fsum(expected[i] for i in cell)
        statistic += (sum(counts[i] for i in cell) - wanted) ** 2 / wanted
    return _compared(statistic, len(cells) - 1, alpha)


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(X >= statistic) of a chi-square variable: the regularised upper incomplete gamma Q(freedom/2, statistic/2)."""
    if freedom < 1 or not statistic >= 0:
        raise ValueError(f"no chi-square tail for statistic {statistic} and {freedom} degrees of freedom")
    a, x = freedom / 2, statistic / 2
    if x == 0:
        return 1.0
    if x == math.inf:
        return 0.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    return 1 - front * _series(a, x) if x < a + 1 else front * _fraction(a, x)


def _series(a: float, x: float) -> float:
    """Sum over n of x^n / (a (a+1) ... (a+n)): the lower gamma without its front factor; quick for x < a + 1."""
    term = total = 1 / a
    for n in range(1, TERMS):
        term *= x / (a + n)
        total += term
        if term < PRECISION * total:
            break
    return total


def _fraction(a: float, x: float) -> float:
    """1/(x+1-a- 1(1-a)/(x+3-a- 2(2-a)/(x+5-a- ...))) from the front (modified Lentz); quick for x >= a + 1."""
    b = x + 1 - a
    c, d = math.inf, 1 / b
    value = d
    for n in range(1, TERMS):
        step, b = n * (a - n), b + 2
        d = 1 / (b + step * d)
        c = b + step / c
        value *= c * d
        if abs(c * d - 1) < PRECISION:
            break
    return value


def _pooled(expected: Sequence[float]) -> list[list[int]]:
    """Indices of the cells of the test: those expected at least RARE times alone, the others together."""
    cells = [[i] for i, e in enumerate(expected) if e >= RARE]
    rare = [i for i, e in enumerate(expected) if e < RARE]
    if not rare:
        return cells
    if cells and math.fsum(expected[i] for i in rare) < RARE:
        min(cells, key=lambda cell: expected[cell[0]]).extend(rare)
        return cells
    return [*cells, rare]


def _compared(statistic: float, freedom: int, alpha: float) -> Comparison:
    p = chi_square_tail(statistic, freedom) if freedom else 1.0  # one cell: nothing to tell apart
    return Comparison(statistic, freedom, p, p >= alpha)


def _check(counts: Sequence[int], cells: int, alpha: float) -> None:
    if len(counts) != cells:
        raise ValueError(f"{len(counts)} counts for {cells} cells")
    if not counts or min(counts) < 0 or not sum(counts):
        raise ValueError("a sample needs at least one count, and none may be negative")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha {alpha}: give the rate of false alarms, between 0 and 1")
