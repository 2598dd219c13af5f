"""Distances, departures, rates and their intervals at the edges of what they take; expected values in plain Python."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import pytest
import torch

from kgen.gates.modeleval import distance as dist
from kgen.gates.modeleval import divergence as div
from kgen.gates.modeleval.breach import brief, shown
from kgen.gates.modeleval.divergence import Times
from kgen.gates.modeleval.paired import Estimate, Pairs, score
from kgen.gates.statistics import ratio_interval


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(sequences: Sequence[int], hidden: Sequence[float]) -> dist.Rows:
    x = torch.tensor(hidden, dtype=torch.float64)
    fine = torch.isfinite(x)
    return dist.Rows(torch.tensor(sequences), x, x, x, x, x[:, None], fine, fine)


# --- distances


def test_nothing_against_nothing_is_no_distance_and_something_against_nothing_is_far() -> None:
    zero, one = torch.zeros(2, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
    assert dist.relative(zero, zero).tolist() == [0, 0] and dist.relative(one, one).tolist() == [0, 0]
    assert dist.relative(one, zero).tolist() == [math.inf, math.inf]


def test_distances_are_taken_over_the_last_of_several_dimensions() -> None:
    got, want = normal(1, 2, 3, 5), normal(2, 2, 3, 5)
    flat = got.flatten(0, 1), want.flatten(0, 1)
    assert torch.equal(dist.divergence(got, want).flatten(), dist.divergence(*flat))
    assert torch.equal(dist.best(got).flatten(), dist.best(flat[0]))
    assert torch.equal(dist.relative(got, want).flatten(), dist.relative(*flat))


def test_a_divergence_is_never_below_nothing() -> None:
    want = normal(3, 4000, 8)
    near = want + 1e-9 * normal(4, 4000, 8)
    log_p, log_q = torch.log_softmax(want, -1), torch.log_softmax(near, -1)
    assert float((log_p.exp() * (log_p - log_q)).sum(-1).min()) < 0, "rounding alone"
    assert float(dist.divergence(near, want).min()) == 0.0


def test_where_a_nan_hides_the_best_token_no_id_is_best() -> None:
    assert dist.best(torch.tensor([[0.0, math.nan, 1.0], [2.0, 0.0, 1.0]])).tolist() == [3, 0]


def test_hidden_rows_of_another_width_are_refused() -> None:
    x, h = torch.zeros(2, 3), torch.zeros(2, 4)
    for want in (torch.zeros(2, 1), torch.zeros(2, 5)):
        with pytest.raises(ValueError, match=r"shapes differ: \[2, 3\], \[2, 4\] against \[2, 3\], \[2, [15]\]"):
            dist.rows(x, h, x, want, torch.arange(2))
    with pytest.raises(ValueError, match="rows differ"):
        dist.rows(x, torch.zeros(3, 4), x, torch.zeros(3, 4), torch.arange(2))


def test_ratios_need_the_same_rows_on_both_sides() -> None:
    one, other = made([0, 0, 1], [1, 2, 3]), made([0, 1, 1], [1, 2, 3])
    for ratios in (dist.sequence_ratios, dist.block_ratios):
        with pytest.raises(ValueError, match="same rows"):
            ratios(one, other)
    nothing = made([], [])
    with pytest.raises(ValueError, match="at least one"):
        dist.sequence_ratios(nothing, nothing)
    names, got = dist.sequence_ratios(made([4, 4, 2, 2], [2, 6, 3, 3]), made([4, 4, 2, 2], [1, 3, 3, 9]))
    assert (names.tolist(), got.tolist()) == ([2, 4], [0.5, 2.0])


def test_a_median_of_an_even_number_lies_between_the_middle_two() -> None:
    stock = made([0, 0, 0, 0], [1, 1, 1, 1])
    assert dist.median_ratio("kl", made([0, 0, 0, 0], [1, 9, 2, 4]), stock).estimate == Estimate(3.0, 0.0, math.inf)
    assert dist.block_ratios(made([0, 0, 0, 0], [1, 9, 2, 4]), stock).tolist() == [3.0]
    odd = dist.median_ratio("kl", made([0, 0, 0], [1, 9, 4]), made([0, 0, 0], [1, 1, 1]))
    assert odd.estimate == Estimate(4.0, 0.0, math.inf)
    endless = made([0, 0, 0, 0], [1, math.inf, math.inf, math.inf])
    assert dist.block_ratios(endless, stock).tolist() == [math.inf]


def test_numbers_in_the_evidence_have_four_digits_unless_they_are_endless() -> None:
    assert shown(Estimate(1.23456, -0.000123456, math.inf)) == [1.235, -0.0001235, math.inf]
    assert brief(123456.0) == 123500.0 and math.isnan(brief(math.nan))


@pytest.mark.parametrize("alpha", [0.05])
def test_the_bootstrap_interval_is_cut_from_its_sorted_ratios(alpha: float) -> None:
    """800 sequences of one row each: a resample's median lies between its 400th and 401st value."""
    mine, theirs = normal(8, 800).exp(), normal(9, 800).exp()
    picked = torch.randint(800, (dist.RESAMPLES, 800), generator=torch.Generator().manual_seed(3))

    def medians(values: torch.Tensor) -> torch.Tensor:
        return values[picked].sort(1).values[:, 399:401].mean(1)

    ratios = (medians(mine) / medians(theirs)).sort().values.tolist()
    tail = int(alpha / 2 * 1000)
    for at in (tail, 999 - tail):
        assert ratios[at - 1] < ratios[at] < ratios[at + 1], "so that a neighbour would be seen"
    got = dist.median_ratio("kl", made(range(800), mine.tolist()), made(range(800), theirs.tolist()), alpha, 3)
    assert (got.estimate.low, got.estimate.high) == pytest.approx((ratios[tail], ratios[999 - tail]), rel=1e-12)


# --- pairs


@pytest.mark.parametrize("counts", [(-1, 3, 0, 0), (3, -1, 0, 0), (0, 0, -1, 5), (1, 1, 1, -2), (0, 0, 0, 0)])
def test_pairs_have_no_negative_count_and_at_least_one_item(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="at least one item and no negative count"):
        Pairs(*counts)


@pytest.mark.parametrize("items", [1, 4, 10_000])
def test_the_score_of_a_difference_however_small_keeps_its_digits(items: int) -> None:
    """Without a discordant pair it is -sqrt(n d / (1 - d)); where nothing varies it is nothing or endless."""
    none = Pairs(0, 0, 0, items)
    for delta in (1e-300, 1e-9, 0.25):
        want = math.sqrt(items * delta / (1 - delta))
        assert (score(none, delta), score(none, -delta)) == (pytest.approx(-want), pytest.approx(want))
    assert (score(none, 0.0), score(none, 1.0), score(none, -1.0)) == (0.0, -math.inf, math.inf)


# --- departures


def test_ids_are_compared_in_two_dimensions_and_there_are_some() -> None:
    for shape in ((2, 2, 2), (4,), (0, 3), (3, 0)):
        ids = torch.zeros(shape, dtype=torch.long)
        with pytest.raises(ValueError, match="ids must be"):
            div.first_departures(ids, ids)


def times(agreed: Sequence[int], left: Sequence[bool]) -> Times:
    return Times(torch.tensor(agreed), torch.tensor(left))


def by_hand(candidate: Times, yardstick: Times, alpha: float) -> tuple[float, float]:
    """The sandwich interval of a ratio of two constant hazards, in plain numbers."""
    sides, ratio, weights = (candidate, yardstick), 1.0, [0.0] * candidate.agreed.numel()
    for side, sign in zip(sides, (1, -1), strict=True):
        left, agreed = side.left.tolist(), side.agreed.tolist()
        watched = [a + bool(e) for a, e in zip(agreed, left, strict=True)]
        ratio *= (sum(left) / sum(watched)) ** sign
        weights = [
            w + sign * (e / sum(left) - n / sum(watched)) for w, e, n in zip(weights, left, watched, strict=True)
        ]
    n = len(weights)
    spread = math.sqrt(sum(w * w for w in weights) * n / (n - 1))
    factor = math.exp(NormalDist().inv_cdf(1 - alpha / 2) * spread)
    return ratio / factor, ratio * factor


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.4])
def test_the_paired_interval_is_that_of_each_sequences_influence(alpha: float) -> None:
    mine = times([1, 3, 5, 9, 2], [True, True, False, True, True])
    stock = times([2, 8, 4, 9, 9], [True, False, True, False, True])
    got = div.compare(mine, stock, alpha).paired
    assert (got.low, got.high) == pytest.approx(by_hand(mine, stock, alpha), rel=1e-12)
    two = times([1, 4], [True, True]), times([3, 6], [True, False])
    got = div.compare(*two, alpha).paired
    assert (got.low, got.high) == pytest.approx(by_hand(*two, alpha), rel=1e-12)


def test_a_side_without_a_departure_has_no_paired_interval() -> None:
    never, some = times([9, 9, 9], [False] * 3), times([1, 2, 9], [True, True, False])
    for sides in ((some, never), (never, some), (never, never)):
        got = div.compare(*sides)
        assert got.paired == got.exact
    assert div.compare(some, never).ratio == math.inf and div.compare(never, some).ratio == 0.0


def test_agreement_is_averaged_over_what_both_sides_watched() -> None:
    got = div.compare(times([9, 9], [False, True]), times([3, 5], [False, True]))
    assert (got.horizon, got.mean_agreed) == (6, (6.0, 5.0))
    assert div.compare(times([3, 5], [False, True]), times([9, 9], [False, True])).horizon == 6
    assert div.compare(times([9], [True]), times([9], [True]), horizon=4).mean_agreed == (4.0, 4.0)


def test_the_curve_of_staying_together_ends_at_nothing_when_the_last_one_leaves() -> None:
    """Two sequences: one leaves after 3 tokens, the other after 5. 1 for 3 tokens, 1/2 for 2, then 0."""
    both = times([3, 5], [True, True])
    assert [div.restricted_mean(both, n) for n in (1, 3, 4, 5, 6, 20)] == [1.0, 3.0, 3.5, 4.0, 4.0, 4.0]
    watched = times([3, 5], [True, False])
    assert [div.restricted_mean(watched, n) for n in (3, 5, 7)] == [3.0, 4.0, 5.0]
    with pytest.raises(ValueError, match="at least 1 token"):
        div.restricted_mean(both, 0)


@pytest.mark.parametrize(
    ("events", "exposure", "alpha"),
    [
        ((-1, 5), (1.0, 1.0), 0.05),
        ((5, -1), (1.0, 1.0), 0.05),
        ((1, 1), (0.0, 1.0), 0.05),
        ((1, 1), (1.0, 0.0), 0.05),
        ((1, 1), (1.0, 1.0), 0.0),
        ((1, 1), (1.0, 1.0), 1.0),
        ((1, 1), (1.0, 1.0), -0.5),
        ((1, 1), (1.0, 1.0), 1.5),
    ],
)
def test_rates_need_counts_an_exposure_and_a_level(
    events: tuple[int, int], exposure: tuple[float, float], alpha: float
) -> None:
    with pytest.raises(ValueError, match="no rate ratio"):
        div.rate_ratio(events, exposure, alpha)


def test_of_single_events_the_exact_interval_is_known() -> None:
    """One event in all: p is the first's share, and its limits are alpha / 2 and 1."""
    got = div.rate_ratio((1, 0), (2.0, 1.0), 0.1)
    assert (got.point, got.high) == (math.inf, math.inf) and got.low == pytest.approx(0.05 / 0.95 / 2)
    got = div.rate_ratio((0, 1), (2.0, 1.0), 0.1)
    assert (got.point, got.low) == (0.0, 0.0) and got.high == pytest.approx(0.95 / 0.05 / 2)
    assert div.rate_ratio((0, 0), (1.0, 1.0)) == Estimate(1.0, 0.0, math.inf)
    both = div.rate_ratio((1, 1), (3.0, 3.0), 0.2)  # P(one or two) is 0.1 at the lower end, P(two) is 0.9 at the upper
    share = math.sqrt(0.9)
    assert (both.low, both.high) == (pytest.approx((1 - share) / share), pytest.approx(share / (1 - share)))


# --- states


def test_states_have_three_dimensions_or_more_and_one_shape() -> None:
    x = normal(5, 2, 3, 4)
    assert div.state_distances(2 * x, x).tolist() == [pytest.approx([1.0] * 3)] * 2
    for got in (x[..., :1], x[:1], x[0]):
        with pytest.raises(ValueError, match="states must be"):
            div.state_distances(got, x)
    with pytest.raises(ValueError, match="states must be"):
        div.state_distances(x[0], x[0])
    with pytest.raises(ValueError, match="float64 states"):
        div.state_distances(x, torch.full_like(x, math.inf))


@pytest.mark.parametrize("shape", [(1, 2, 3), (4, 3), (2, 2, 2, 2), (2, 0, 3), (2, 3, 0)])
def test_drift_needs_two_steps_of_layers_and_sequences(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="two steps or more"):
        div.drift(torch.ones(shape))


def test_the_typical_sequence_is_the_middle_one_by_its_worst_layer() -> None:
    """Four sequences: the larger of the middle two."""
    worst = torch.tensor([[1.0, 4.0, 2.0, 3.0], [10.0, 40.0, 30.0, 20.0]])
    got = div.drift(torch.stack([worst / 2, worst], dim=1))
    assert (got.typical.tolist(), got.worst.tolist()) == ([3.0, 30.0], [4.0, 40.0])
    assert (got.slope, got.not_finite) == (27.0, 0)
    endless = div.drift(torch.tensor([[[1.0, math.inf]], [[2.0, math.inf]]]))
    assert endless.not_finite == 2 and endless.slope == math.inf


# --- times


def test_samples_that_are_not_paired_are_refused() -> None:
    for mine, theirs in (([1.0, 2.0], [1.0]), ([1.0], [1.0, 2.0]), ([], [])):
        with pytest.raises(ValueError, match="paired samples needed"):
            ratio_interval(mine, theirs, seed=1)


@pytest.mark.parametrize("resamples", [1, 2, 10, 41])
def test_the_interval_is_cut_from_the_sorted_medians_of_few_resamples_too(resamples: int) -> None:
    times_ = [1.0, 2.0, 4.0, 8.0, 16.0]
    drawn = torch.randint(5, (resamples, 5), generator=torch.Generator().manual_seed(9)).tolist()
    medians = sorted(sorted(times_[i] for i in row)[2] for row in drawn)
    low, high = medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]
    assert ratio_interval(times_, [1.0] * 5, seed=9, resamples=resamples) == (4.0, low, high)
