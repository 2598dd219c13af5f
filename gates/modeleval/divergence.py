"""When free generation leaves another one, how often per token, and how recurrent states drift from float64.

Greedy generations of two correct engines part after a while, at a near tie. What counts is how soon, against how soon
stock leaves itself under another legitimate batch composition (the yardstick). A sequence that never leaves is
censored: it was watched for its length. Every token is one chance to leave until the first departure, so the hazard
is departures per token watched. Not covered: decisions; what happens after the first departure.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch

from kgen.gates.modeleval.distance import relative
from kgen.gates.modeleval.paired import Estimate, binomial_tail, bisect


@dataclass(frozen=True)
class Times:
    """First departures of `count` sequences from a reference."""

    agreed: torch.Tensor  # int64 [count]: tokens before the first that differs, or all of the reference
    left: torch.Tensor  # bool [count]: one differs

    @property
    def departures(self) -> int:
        return int(self.left.sum())

    @property
    def watched(self) -> int:
        """Tokens compared, the first that differs included."""
        return int((self.agreed + self.left).sum())


@dataclass(frozen=True)
class Hazards:
    """Departures per token of a candidate from stock over those of stock from itself."""

    ratio: float  # 1 if nothing ever left; infinite if only stock never left itself
    exact: Estimate  # conditional on all departures (Poisson rates): valid for few, takes sequences for alike
    paired: Estimate  # by what each sequence did on both sides; `exact` if a side has no departure
    departures: tuple[int, int]  # candidate, yardstick
    watched: tuple[int, int]  # tokens
    mean_agreed: tuple[float, float]  # tokens, restricted to `horizon`
    horizon: int


@dataclass(frozen=True)
class Drift:
    """Relative L2 of recurrent states from float64, the worst layer of each sequence."""

    typical: torch.Tensor  # float64 [steps]: median over sequences, the larger of two
    worst: torch.Tensor  # float64 [steps]: largest over sequences
    slope: float  # least-squares growth of `typical` per step; infinite if a step of it is
    not_finite: int  # (step, sequence) pairs


def first_departures(got: torch.Tensor, want: torch.Tensor, lengths: torch.Tensor | None = None) -> Times:
    """Compare ids `got` with `want`, both [steps, count]; `lengths` int [count] of the reference (default: steps).

    A reference that stopped is compared up to its stop token, included in its length. Raises ValueError for shapes.
    """
    if got.shape != want.shape or got.dim() != 2 or not got.numel():
        raise ValueError(f"ids must be [steps, count] of one shape, got {list(got.shape)} and {list(want.shape)}")
    steps, count = want.shape
    until = torch.full((count,), steps) if lengths is None else lengths.cpu().long()
    if until.shape != (count,) or not 0 < int(until.min()) <= int(until.max()) <= steps:
        raise ValueError(f"lengths must be {count} numbers from 1 to {steps}")
    at = torch.arange(steps)[:, None]
    first = torch.where((got != want).cpu(), at, steps).amin(0)
    return Times(torch.minimum(first, until), first < until)


def compare(candidate: Times, yardstick: Times, alpha: float = 0.05, horizon: int | None = None) -> Hazards:
    """Hazard ratio with two-sided 1 - alpha intervals: candidate from stock, stock from itself, the same sequences.

    `horizon`: tokens over which mean agreement is taken; by default the longest that both sides watched. Raises
    ValueError for other numbers of sequences.
    """
    if candidate.agreed.shape != yardstick.agreed.shape:
        raise ValueError(f"{candidate.agreed.numel()} sequences against {yardstick.agreed.numel()}: give the same ones")
    events = candidate.departures, yardstick.departures
    tokens = candidate.watched, yardstick.watched
    exact = rate_ratio(events, tokens, alpha)
    longest = min(int((t.agreed + t.left).max()) for t in (candidate, yardstick))
    until = longest if horizon is None else horizon
    return Hazards(
        ratio=exact.point,
        exact=exact,
        paired=_paired(candidate, yardstick, exact.point, alpha) if min(events) else exact,
        departures=events,
        watched=tokens,
        mean_agreed=(restricted_mean(candidate, until), restricted_mean(yardstick, until)),
        horizon=until,
    )


def rate_ratio(events: tuple[int, int], exposure: tuple[float, float], alpha: float = 0.05) -> Estimate:
    """First over second Poisson rate, exact 1 - alpha interval (as R's poisson.test).

    Of all events, the first's are binomial with probability r e1 / (r e1 + e2); Clopper-Pearson for it gives r's
    limits. No event at all: 1, from 0 to infinity. Raises ValueError without exposure or for negative counts.
    """
    if min(events) < 0 or not min(exposure) > 0 or not 0 < alpha < 1:
        raise ValueError(f"no rate ratio of {events} events in {exposure} at alpha {alpha}")
    first, total = events[0], sum(events)
    if not total:
        return Estimate(1.0, 0.0, math.inf)
    low = bisect(lambda p: binomial_tail(first, total, p) < alpha / 2, 0.0, 1.0) if first else 0.0
    high = bisect(lambda p: binomial_tail(first + 1, total, p) < 1 - alpha / 2, 0.0, 1.0) if first < total else 1.0
    scale = exposure[1] / exposure[0]
    point, low, high = (_odds(p) * scale for p in (first / total, low, high))
    return Estimate(point, low, high)


def _odds(chance: float) -> float:
    return chance / (1 - chance) if chance < 1 else math.inf


def _paired(candidate: Times, yardstick: Times, ratio: float, alpha: float) -> Estimate:
    """Interval of the log ratio from each sequence's influence on it (the sandwich variance of constant hazards).

    Unlike the Poisson interval it allows that sequences differ in hazard and that both sides of one are alike.
    """
    influence = torch.zeros(candidate.left.shape, dtype=torch.float64)
    for times, sign in ((candidate, 1), (yardstick, -1)):
        left, watched = times.left.double(), (times.agreed + times.left).double()
        influence += sign * (left / left.sum() - watched / watched.sum())
    count = influence.numel()
    if count == 1:
        return Estimate(ratio, 0.0, math.inf)
    spread = math.sqrt(float(influence.square().sum()) * count / (count - 1))
    factor = math.exp(min(NormalDist().inv_cdf(1 - alpha / 2) * spread, 700.0))
    return Estimate(ratio, ratio / factor, ratio * factor)


def restricted_mean(times: Times, horizon: int) -> float:
    """Mean of min(tokens agreed, horizon): the area under the Kaplan-Meier curve of staying together.

    Where nobody is watched any more the curve stays as it is. Raises ValueError for a horizon below 1.
    """
    if horizon < 1:
        raise ValueError(f"horizon {horizon}: give at least 1 token")
    size = max(horizon, int(times.agreed.max()) + 1)
    left = torch.bincount(times.agreed[times.left], minlength=size)
    last = torch.bincount(times.agreed + times.left, minlength=size + 1)  # tokens watched
    watched = times.agreed.numel() - last.cumsum(0)[:size]  # watched at step t: those with more than t tokens
    staying = (1 - left / watched.clamp_min(1).double()).cumprod(0)
    return float(staying[:horizon].sum())


def state_distances(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Relative L2 of states [layers, count, ...] at one step from float64: [layers, count]; infinite if not finite.

    Raises ValueError for other shapes or a reference that is not finite.
    """
    if got.shape != want.shape or got.dim() < 3:
        raise ValueError(f"states must be [layers, count, ...], got {list(got.shape)} and {list(want.shape)}")
    if not torch.isfinite(want).all():
        raise ValueError("the float64 states hold values that are not finite: there is nothing to measure against")
    flat = got.flatten(2).double()
    return torch.where(torch.isfinite(flat).all(-1), relative(flat, want.flatten(2).double()), torch.inf)


def drift(distances: torch.Tensor) -> Drift:
    """Summary of `state_distances` by step: [steps, layers, count], at least two steps."""
    if distances.dim() != 3 or distances.shape[0] < 2 or not distances.numel():
        raise ValueError(f"distances must be [steps, layers, count] of two steps or more, got {list(distances.shape)}")
    by_sequence = distances.double().amax(1)
    typical = by_sequence.sort(1).values[:, by_sequence.shape[1] // 2]
    at = torch.arange(len(typical), dtype=torch.float64, device=typical.device)
    at -= at.mean()
    slope = float((at * typical).sum() / at.square().sum()) if torch.isfinite(typical).all() else math.inf
    return Drift(typical, by_sequence.amax(1), slope, int((~torch.isfinite(by_sequence)).sum()))
