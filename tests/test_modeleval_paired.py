"""Paired outcomes of a model evaluation: published intervals, closed forms, brute force, coverage."""

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgen.gates.modeleval import paired as pr
from kgen.gates.modeleval.paired import Pairs

Z = 1.6448536269514722  # of one side at 5 %
TABLES = st.tuples(*[st.integers(0, 40)] * 4).filter(sum).map(lambda t: Pairs(*t))


def pairs(wins: int, losses: int, items: int) -> Pairs:
    return Pairs(0, losses, wins, items - wins - losses)


def test_outcomes_are_counted_by_who_was_right() -> None:
    got = pr.pair([True, True, False, False, True], [True, False, True, False, False])
    assert got == Pairs(both=1, losses=1, wins=2, neither=1)
    assert (got.candidate_accuracy, got.stock_accuracy) == (0.6, 0.4) and got.difference == pytest.approx(0.2)
    with pytest.raises(ValueError, match="same items"):
        pr.pair([True], [True, False])
    with pytest.raises(ValueError, match="at least one item"):
        pr.pair([], [])


@pytest.mark.parametrize(
    ("table", "alpha", "low", "high", "digits"),
    [
        (pairs(9, 3, 32), 0.05, -0.027, 0.390, 3),  # Tango 1998, sleeping difficulties
        (pairs(0, 1, 44), 0.10, -0.096, None, 3),  # Tango 1998, contact lenses
        (pairs(1, 7, 21), 0.05, -0.517, -0.026, 3),  # Fagerland, Lydersen and Laake 2014, airways of children
        (pairs(28, 25, 618), 0.10, -0.0148, 0.0247, 4),  # R, PropCIs::scoreci.mp(25, 28, 618)
    ],
)
def test_intervals_are_the_published_ones(
    table: Pairs, alpha: float, low: float, high: float | None, digits: int
) -> None:
    got = pr.difference(table, alpha)
    assert round(got.low, digits) == low
    assert high is None or round(got.high, digits) == high
    assert pr.lower_bound(table, alpha / 2) == got.low


def test_the_statistic_is_the_published_one() -> None:
    assert pr.score(pairs(0, 1, 44), -0.1) == pytest.approx(1.709, abs=5e-4)
    assert pr.score(pairs(9, 3, 32), 0) == pytest.approx(6 / math.sqrt(12))  # McNemar's, uncorrected


@pytest.mark.parametrize("items", [1, 2, 7, 1000, 10**7])
def test_limits_without_and_with_only_discordant_pairs_have_closed_forms(items: int) -> None:
    square = Z * Z
    edge = square / (items + square)  # root of delta / (1 - delta) = z^2 / n
    assert pr.difference(pairs(0, 0, items), 0.1).low == pytest.approx(-edge, rel=1e-9)
    assert pr.difference(pairs(0, 0, items), 0.1).high == pytest.approx(edge, rel=1e-9)
    far = (items - square) / (items + square)  # root of (1 - delta) / (1 + delta) = z^2 / n
    assert pr.lower_bound(pairs(items, 0, items)) == pytest.approx(far, rel=1e-9)
    assert pr.difference(pairs(items, 0, items)).high == 1
    assert pr.lower_bound(pairs(0, items, items)) == -1
    assert pr.difference(pairs(0, items, items), 0.1).high == pytest.approx(-far, rel=1e-9)


def constrained_statistic(wins: int, losses: int, items: int, delta: float) -> float:
    """The score statistic with the likelihood maximised numerically (golden section), not by Tango's formula."""

    def likelihood(q: float) -> float:
        cells = ((wins, q + delta), (losses, q), (items - wins - losses, 1 - 2 * q - delta))
        return sum(n * math.log(max(p, 1e-300)) for n, p in cells if n)

    low, high, golden = max(0.0, -delta), (1 - delta) / 2, (math.sqrt(5) - 1) / 2
    for _ in range(60):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if likelihood(left) > likelihood(right) else (left, high)
    q = (low + high) / 2
    return (wins - losses - items * delta) / math.sqrt(items * (2 * q + delta - delta * delta))


@pytest.mark.parametrize("table", [(2, 12, 50), (12, 2, 50), (0, 3, 10), (5, 0, 9), (1, 1, 3), (30, 40, 90)])
def test_the_lower_bound_is_where_a_brute_force_test_stops_refusing(table: tuple[int, int, int]) -> None:
    grid = [k / 200 for k in range(-199, 200)]
    kept = [delta for delta in grid if constrained_statistic(*table, delta) < Z]
    bound = pr.lower_bound(pairs(*table))
    assert kept[0] - 0.005 <= bound <= kept[0]
    assert kept == grid[grid.index(kept[0]) :]


@settings(max_examples=60, deadline=None)
@given(TABLES, st.floats(0.001, 0.2))
def test_intervals_hold_their_point_turn_with_the_sides_and_widen(table: Pairs, alpha: float) -> None:
    got = pr.difference(table, alpha)
    assert -1 <= got.low <= table.difference <= got.high <= 1
    turned = pr.difference(Pairs(table.both, table.wins, table.losses, table.neither), alpha)
    assert (turned.low, turned.high) == (-got.high, -got.low)
    assert pr.difference(Pairs(0, table.losses, table.wins, table.both + table.neither), alpha).low == got.low
    wider = pr.difference(table, alpha / 2)
    assert wider.low <= got.low and wider.high >= got.high


@settings(max_examples=60, deadline=None)
@given(TABLES.filter(lambda t: t.neither > 0))
def test_a_loss_lowers_and_a_win_raises_the_bound_and_the_p_value(table: Pairs) -> None:
    lost = Pairs(table.both, table.losses + 1, table.wins, table.neither - 1)
    won = Pairs(table.both, table.losses, table.wins + 1, table.neither - 1)
    assert pr.lower_bound(lost) <= pr.lower_bound(table) <= pr.lower_bound(won) + 1e-15
    assert pr.mcnemar(lost).worse <= pr.mcnemar(table).worse + 1e-15 <= pr.mcnemar(won).worse + 2e-15


def test_coverage_of_the_lower_bound_by_enumeration() -> None:
    items = 60
    bounds = {(w, x): pr.lower_bound(pairs(w, x, items)) for w in range(31) for x in range(31)}
    for win, loss in ((0.1, 0.1), (0.05, 0.08), (0.02, 0.06), (0.01, 0.01), (0.15, 0.1)):
        inside = math.fsum(
            math.comb(items, w) * math.comb(items - w, x) * win**w * loss**x * (1 - win - loss) ** (items - w - x)
            for (w, x), bound in bounds.items()
            if bound <= win - loss
        )
        assert inside > 0.93, (win, loss)
        assert inside < 0.975 or win + loss < 0.05, (win, loss)  # nor is it empty talk


def test_coverage_of_the_lower_bound_by_simulation() -> None:
    rng, inside, runs = random.Random(0), 0, 600
    for _ in range(runs):
        drawn = rng.choices((0, 1, -1), (0.9, 0.04, 0.06), k=400)
        inside += pr.lower_bound(pairs(drawn.count(1), drawn.count(-1), 400)) <= -0.02
    assert 0.95 - 0.02 < inside / runs < 0.95 + 0.02


def test_mcnemar_by_hand() -> None:
    # of 12 fair coins 9 or more: (220 + 66 + 12 + 1) / 4096
    assert pr.mcnemar(pairs(3, 9, 100)).worse == pytest.approx(299 / 4096, rel=1e-12)
    assert pr.mcnemar(pairs(3, 9, 100)).two_sided == pytest.approx(598 / 4096, rel=1e-12)
    assert pr.mcnemar(pairs(9, 3, 100)).two_sided == pytest.approx(598 / 4096, rel=1e-12)
    assert pr.mcnemar(pairs(9, 3, 100)).worse == pytest.approx(1 - 79 / 4096, rel=1e-12)
    assert pr.mcnemar(pairs(0, 0, 5)) == pr.McNemar(1.0, 1.0)
    assert pr.mcnemar(pairs(4, 4, 8)).two_sided == 1
    assert pr.mcnemar(pairs(0, 20, 20)).worse == pytest.approx(2.0**-20, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 70), st.integers(0, 70), st.integers(0, 20))
def test_binomial_tails_agree_with_fractions(least: int, trials: int, twentieths: int) -> None:
    p = Fraction(twentieths, 20)
    exact = sum(math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(least, trials + 1))
    assert pr.binomial_tail(least, trials, twentieths / 20) == pytest.approx(float(exact), rel=1e-10, abs=1e-300)


@pytest.mark.parametrize("alpha", [0, 0.5, -1, math.nan])
def test_a_useless_alpha_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        pr.lower_bound(pairs(1, 1, 9), alpha)
