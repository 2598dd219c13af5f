"""Distances, divergence and drift of a model evaluation: by hand, published values, coverage, what is not finite."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgen.gates.modeleval import distance as dist
from kgen.gates.modeleval import divergence as div
from kgen.gates.modeleval import paired as pr

# distances from float64


def made(values: dict[int, list[float]], **changed: torch.Tensor) -> dist.Rows:
    """Rows whose distances are `values` by sequence."""
    numbers = torch.tensor([s for s, row in values.items() for _ in row])
    x = torch.tensor([v for row in values.values() for v in row], dtype=torch.float64)
    finite = torch.isfinite(x)
    rows = {"logits": x, "hidden": x, "kl": x, "logit_error": x, "blocks": x[:, None], "right": finite}
    return dist.Rows(sequence=numbers, **{**rows, "finite": finite, **changed})


def test_distances_of_a_row_by_hand() -> None:
    want_logits = torch.tensor([[0.0, 0.0, -800.0]], dtype=torch.float64)
    logits = torch.tensor([[0.0, math.log(3), -800.0]], dtype=torch.float64)  # 1/4 and 3/4
    want_hidden = torch.zeros(1, 130, dtype=torch.float64)
    want_hidden[0, 0], want_hidden[0, 129] = 3, 4
    hidden = want_hidden.clone()
    hidden[0, 129] = 5
    got = dist.rows(logits, hidden, want_logits, want_hidden, torch.tensor([7]))
    assert float(got.hidden) == pytest.approx(1 / 5)
    assert got.blocks.tolist() == [[0.0, 0.25]]  # the last two columns are a block of their own
    assert float(got.kl) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert float(got.logit_error) == pytest.approx(math.log(3))
    assert float(got.logits) == pytest.approx(math.log(3) / 800)
    assert got.right.tolist() == [False] and got.finite.tolist() == [True] and got.sequence.tolist() == [7]


def test_the_lowest_id_wins_ties() -> None:
    logits = torch.tensor([[1.0, 5, 5, 5], [5, 1, 5, 0], [-3, -3, -3, -3], [0, 0, 0, 1]])
    assert dist.best(logits).tolist() == [1, 0, 0, 3]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["logits", "hidden"])
def test_a_row_that_is_not_finite_is_far_wrong_and_counted(bad: float, place: str) -> None:
    want = {"logits": torch.randn(3, 5, dtype=torch.float64), "hidden": torch.randn(3, 4, dtype=torch.float64)}
    got = {name: x.clone() for name, x in want.items()}
    got[place][1, 2] = bad
    rows = dist.rows(got["logits"], got["hidden"], want["logits"], want["hidden"], torch.arange(3))
    for name in ("logits", "hidden", "kl", "logit_error"):
        assert getattr(rows, name).tolist() == [0, math.inf, 0], name
    assert rows.blocks[:, 0].tolist() == [0, math.inf, 0]
    assert rows.right.tolist() == [True, False, True] and rows.not_finite == 1
    with pytest.raises(ValueError, match="reference"):
        dist.rows(want["logits"], want["hidden"], got["logits"], got["hidden"], torch.arange(3))


def test_rows_that_do_not_fit_are_refused() -> None:
    x, h = torch.zeros(2, 3), torch.zeros(2, 4)
    with pytest.raises(ValueError, match="shapes differ"):
        dist.rows(x, h, x[:1], h, torch.arange(2))
    with pytest.raises(ValueError, match="rows differ"):
        dist.rows(x, h, x, h, torch.arange(3))
    with pytest.raises(ValueError, match="same rows"):
        dist.median_ratio("kl", made({0: [1, 2]}), made({0: [1], 1: [2]}))


def test_steps_share_sequences_and_batches_do_not() -> None:
    step = made({0: [1.0], 1: [2.0]})
    batch = dist.joined([step, step])
    assert batch.sequence.tolist() == [0, 1, 0, 1] and batch.kl.tolist() == [1, 2, 1, 2]
    everything = dist.pooled([batch, step])
    assert everything.sequence.tolist() == [0, 1, 0, 1, 2, 3] and everything.blocks.shape == (6, 1)
    assert dist.median_ratio("kl", everything, everything).sequences == 4


def test_the_bootstrap_is_that_of_whole_sequences() -> None:
    rng = random.Random(3)
    lengths = {s: rng.randint(1, 6) for s in (4, 9, 2, 5, 7)}  # unequal, and not in order
    stock = made({s: [rng.uniform(1, 2) for _ in range(n)] for s, n in lengths.items()})
    candidate = made({s: [rng.uniform(1, 3) for _ in range(n)] for s, n in lengths.items()})
    picked = torch.randint(5, (dist.RESAMPLES, 5), generator=torch.Generator().manual_seed(11))
    names, drawn = sorted(lengths), []
    for draw in picked.tolist():
        index = [i for place in draw for i in range(len(stock.kl)) if stock.sequence[i] == names[place]]
        drawn.append(median(candidate.kl[index].tolist()) / median(stock.kl[index].tolist()))
    drawn.sort()
    got = dist.median_ratio("kl", candidate, stock, seed=11).estimate
    assert got.point == pytest.approx(median(candidate.kl.tolist()) / median(stock.kl.tolist()))
    assert (got.low, got.high) == (pytest.approx(drawn[25]), pytest.approx(drawn[974]))


def median(values: list[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def test_ratios_of_equal_and_scaled_sides_are_exact() -> None:
    stock = made({s: [0.5 + s, 1.5 + 2 * s, 4.0] for s in range(9)})
    assert dist.median_ratio("hidden", stock, stock).estimate == pr.Estimate(1, 1, 1)
    doubled = made({s: [1.0 + 2 * s, 3.0 + 4 * s, 8.0] for s in range(9)})
    assert dist.median_ratio("hidden", doubled, stock).estimate == pr.Estimate(2, 2, 2)


def test_ratios_where_a_side_is_exact_or_not_finite() -> None:
    usual = made({0: [1, 1, 1], 1: [1, 1, 1]})
    exact = made({0: [0, 0, 0], 1: [0, 0, 0]})
    broken = made({0: [math.inf, math.inf, 1], 1: [math.inf, math.inf, 1]})
    chipped = made({0: [1, 1, math.inf], 1: [1, 1, 1]})
    assert dist.median_ratio("kl", exact, exact).estimate == pr.Estimate(1, 1, 1)
    assert dist.median_ratio("kl", usual, exact).estimate.low == math.inf
    assert dist.median_ratio("kl", broken, usual).estimate == pr.Estimate(math.inf, math.inf, math.inf)
    lost = dist.median_ratio("kl", usual, broken)
    assert all(math.isnan(x) for x in (lost.estimate.point, lost.estimate.low, lost.estimate.high))
    assert (lost.candidate_not_finite, lost.stock_not_finite) == (0, 4)
    hidden_by_the_median = dist.median_ratio("kl", chipped, usual)
    assert hidden_by_the_median.estimate.point == 1 and hidden_by_the_median.candidate_not_finite == 1


def test_one_sequence_says_nothing_about_others() -> None:
    one = made({3: [1, 2, 3]})
    assert dist.median_ratio("kl", one, one).estimate == pr.Estimate(1, 0, math.inf)


def test_coverage_over_sequences_where_rows_depend_on_each_other() -> None:
    gen, runs, inside, inside_by_row = torch.Generator().manual_seed(5), 40, 0, 0
    for _ in range(runs):
        own = torch.randn(2, 40, 1, generator=gen, dtype=torch.float64)
        noise = torch.randn(2, 40, 6, generator=gen, dtype=torch.float64)
        c, s = (own + 0.3 * noise).exp().tolist()  # both medians are 1: the true ratio too
        candidate, stock = made(dict(enumerate(c))), made(dict(enumerate(s)))
        got = dist.median_ratio("hidden", candidate, stock).estimate
        inside += got.low <= 1 <= got.high
        rows = torch.arange(240)
        by_row = [dist.Rows(rows, *(getattr(side, name) for name in dist.FIELDS)) for side in (candidate, stock)]
        narrow = dist.median_ratio("hidden", by_row[0], by_row[1]).estimate
        inside_by_row += narrow.low <= 1 <= narrow.high
    assert inside / runs >= 0.9
    assert inside_by_row / runs < 0.7  # rows taken for independent: what clusters are for


def test_a_bad_block_and_a_bad_sequence_are_found() -> None:
    gen = torch.Generator().manual_seed(2)
    want = torch.randn(40, 300, generator=gen, dtype=torch.float64)
    logits = torch.randn(40, 7, generator=gen, dtype=torch.float64)
    near = want + 1e-3 * torch.randn(40, 300, generator=gen, dtype=torch.float64)
    number = torch.arange(40) % 4 + 10
    stock = dist.rows(logits, near, logits, want, number)
    block = near.clone()
    block[:, 256:] *= 1.01
    ratios = dist.block_ratios(dist.rows(logits, block, logits, want, number), stock)
    assert ratios[:2].tolist() == [1, 1] and 5 < float(ratios[2]) < 20
    swapped = near.clone()
    swapped[number == 12] = near[number == 13]
    names, by_sequence = dist.sequence_ratios(dist.rows(logits, swapped, logits, want, number), stock)
    assert names.tolist() == [10, 11, 12, 13]
    assert by_sequence[[0, 1, 3]].tolist() == [1, 1, 1] and by_sequence[2] > 100


# divergence and drift


def times(agreed: list[int], left: list[int]) -> div.Times:
    return div.Times(torch.tensor(agreed), torch.tensor(left, dtype=torch.bool))


def test_first_departures_by_hand() -> None:
    want = torch.tensor([[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]])
    got = torch.tensor([[1, 9, 1, 1], [2, 2, 2, 2], [3, 9, 3, 9]])
    found = div.first_departures(got, want)
    assert found.agreed.tolist() == [3, 0, 3, 2] and found.left.tolist() == [False, True, False, True]
    assert found.departures == 2 and found.watched == 3 + 1 + 3 + 3
    stopped = div.first_departures(got, want, torch.tensor([1, 3, 2, 2]))  # the last one differs after its stop only
    assert stopped.agreed.tolist() == [1, 0, 2, 2] and stopped.left.tolist() == [False, True, False, False]
    assert stopped.watched == 1 + 1 + 2 + 2


@pytest.mark.parametrize("lengths", [[1, 2], [0, 1, 1], [1, 1, 3]])
def test_lengths_that_cannot_be_are_refused(lengths: list[int]) -> None:
    ids = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="lengths"):
        div.first_departures(ids, ids, torch.tensor(lengths))
    with pytest.raises(ValueError, match="ids must be"):
        div.first_departures(ids, ids[:1])


@pytest.mark.parametrize(  # R: poisson.test(c(11, 21), c(800, 3011)) and others, as printed
    ("events", "exposure", "low", "high"),
    [
        ((11, 21), (800, 3011), 0.8584264, 4.2772659),
        ((10, 2), (20000, 17887), 0.9529548, 41.9743814),
        ((930, 619), (3, 3), 1.355716, 1.665905),
    ],
)
def test_rate_ratios_are_the_published_ones(
    events: tuple[int, int], exposure: tuple[float, float], low: float, high: float
) -> None:
    got = div.rate_ratio(events, exposure)
    assert (got.low, got.high) == (pytest.approx(low, rel=1e-6), pytest.approx(high, rel=1e-6))
    assert got.point == pytest.approx(events[0] / exposure[0] * exposure[1] / events[1])


def test_rate_ratios_without_events_have_closed_forms() -> None:
    assert div.rate_ratio((0, 0), (5, 7)) == pr.Estimate(1, 0, math.inf)
    # none of n: (1 - p)^n = alpha / 2 at the upper limit
    p = 1 - 0.025 ** (1 / 6)
    none = div.rate_ratio((0, 6), (10, 30))
    assert (none.point, none.low) == (0, 0) and none.high == pytest.approx(p / (1 - p) * 3)
    only = div.rate_ratio((6, 0), (30, 10))
    assert (only.point, only.high) == (math.inf, math.inf) and only.low == pytest.approx((1 - p) / p / 3)
    with pytest.raises(ValueError, match="no rate ratio"):
        div.rate_ratio((1, 1), (0, 1))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 50), st.integers(0, 50), st.floats(0.5, 1e4), st.floats(0.5, 1e4))
def test_rate_ratios_turn_with_the_sides(first: int, second: int, one: float, two: float) -> None:
    got, turned = div.rate_ratio((first, second), (one, two)), div.rate_ratio((second, first), (two, one))
    assert got.low <= got.point <= got.high
    assert got.low * turned.high == pytest.approx(1) or (got.low, turned.high) == (0, math.inf)


def test_restricted_means_by_hand() -> None:
    assert div.restricted_mean(times([3, 0, 3, 2], [0, 1, 0, 1]), 3) == pytest.approx(8 / 4)  # nobody is lost earlier
    assert div.restricted_mean(times([3, 0, 3, 2], [0, 1, 0, 1]), 1) == pytest.approx(3 / 4)
    # one leaves at step 1, one is lost after 2 tokens, one leaves at step 2 with one other watched:
    # staying 1, 3/4, 3/8, 3/8
    assert div.restricted_mean(times([1, 2, 2, 4], [1, 0, 1, 0]), 4) == pytest.approx(1 + 3 / 4 + 3 / 8 + 3 / 8)
    assert div.restricted_mean(times([1, 1], [0, 0]), 5) == 5  # nothing is known later: stays as it was
    with pytest.raises(ValueError, match="horizon"):
        div.restricted_mean(times([1], [0]), 0)


def test_a_candidate_that_leaves_as_stock_does_has_ratio_one() -> None:
    same = times([3, 9, 10, 10], [1, 1, 0, 0])
    got = div.compare(same, same)
    assert got.ratio == 1 and got.paired == pr.Estimate(1, 1, 1) and got.exact.low < 0.2 and got.exact.high > 5
    assert got.departures == (2, 2) and got.watched == (34, 34)
    assert got.mean_agreed == (8, 8) and got.horizon == 10
    never = times([10, 10], [0, 0])
    assert div.compare(never, never).paired == div.compare(never, never).exact == pr.Estimate(1, 0, math.inf)
    assert div.compare(times([0, 3], [1, 1]), never).ratio == math.inf
    assert div.compare(times([0], [1]), times([1], [1])).paired == pr.Estimate(2, 0, math.inf)  # one sequence
    with pytest.raises(ValueError, match="same ones"):
        div.compare(same, never)


def generated(hazards: list[float], steps: int, rng: random.Random) -> div.Times:
    drawn = [min(steps, int(math.log(1 - rng.random()) / math.log(1 - h))) for h in hazards]
    return times(drawn, [int(t < steps) for t in drawn])


@pytest.mark.parametrize(("spread", "exact_covers"), [(1.0, True), (30.0, False)])
def test_coverage_of_hazard_ratios(spread: float, exact_covers: bool) -> None:
    """True ratio 1.25. Sequences of unlike hazards break the Poisson interval but not the paired one."""
    rng, runs, exact, by_pairs = random.Random(7), 200, 0, 0
    hazards = [0.01 * spread ** ((i % 2) - 0.5) for i in range(80)]
    for _ in range(runs):
        c, y = generated([1.25 * h for h in hazards], 10**5, rng), generated(hazards, 10**5, rng)
        got = div.compare(c, y)
        exact += got.exact.low <= 1.25 <= got.exact.high
        by_pairs += got.paired.low <= 1.25 <= got.paired.high
    assert by_pairs / runs > 0.92
    assert (exact / runs > 0.93) == exact_covers


def test_state_distances_keep_layers_and_sequences_apart() -> None:
    want = torch.ones(2, 3, 4, 4, dtype=torch.float64)
    got = want.clone()
    got[1, 2] *= 1.5
    got[0, 1, 3, 3] = math.nan
    assert div.state_distances(got, want).tolist() == [[0, math.inf, 0], [0, 0, 0.5]]
    with pytest.raises(ValueError, match="nothing to measure"):
        div.state_distances(want, got)
    with pytest.raises(ValueError, match=r"\[layers, count"):
        div.state_distances(want[0, 0], want[0, 0])


def test_drift_by_hand() -> None:
    steps = torch.arange(5, dtype=torch.float64)
    distances = torch.zeros(5, 2, 3, dtype=torch.float64)
    distances[:, 1] = (0.25 + 0.5 * steps)[:, None] * torch.tensor([1.0, 1.0, 4.0], dtype=torch.float64)
    got = div.drift(distances)
    assert got.typical.tolist() == (0.25 + 0.5 * steps).tolist() and got.worst.tolist() == (1 + 2 * steps).tolist()
    assert got.slope == pytest.approx(0.5) and got.not_finite == 0
    distances[3, 0, 0] = math.inf
    one = div.drift(distances)
    assert one.not_finite == 1 and one.worst[3] == math.inf and math.isfinite(one.slope)
    distances[4, 0, :2] = math.inf
    assert div.drift(distances).slope == math.inf
    with pytest.raises(ValueError, match="two steps"):
        div.drift(distances[:1])
