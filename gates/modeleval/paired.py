"""Two sides that answered the same items, each right or wrong: McNemar's exact test and the difference of accuracies.

The interval of the difference is Tango's score interval (Statistics in Medicine 17, 1998, 891-908): it inverts the
score test of "the difference is delta", whose variance uses the maximum likelihood estimate under that hypothesis. It
needs no discordant pair and stays within [-1, 1].It is asymptotic. By enumeration of
the tables of 20 to 200 pairs, the one-sided 95 % lower bound covers 96 % or more on average, at least 92 % where the
candidate is the worse side and 90 % where it is the better one; least where two to four discordant pairs are expected.
Not covered: items that depend on each other (tokens of one sequence), more than two sides.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

HALVINGS = 60  # of an interval not wider than 2: below the spacing of doubles near 1


@dataclass(frozen=True)
class Estimate:
    """A number and its confidence interval; NaN where there is nothing to compare with."""

    point: float
    low: float
    high: float


@dataclass(frozen=True)
class Pairs:
    """Counts of items by who was right. Raises ValueError for a negative count or no items."""

    both: int
    losses: int  # stock alone
    wins: int  # the candidate alone
    neither: int

    def __post_init__(self) -> None:
        if min(self.both, self.losses, self.wins, self.neither) < 0 or not self.items:
            raise ValueError(f"paired outcomes need at least one item and no negative count, got {self}")

    @property
    def items(self) -> int:
        return self.both + self.losses + self.wins + self.neither

    @property
    def candidate_accuracy(self) -> float:
        return (self.both + self.wins) / self.items

    @property
    def stock_accuracy(self) -> float:
        return (self.both + self.losses) / self.items

    @property
    def difference(self) -> float:
        """Accuracy of the candidate minus stock's."""
        return (self.wins - self.losses) / self.items


@dataclass(frozen=True)
class McNemar:
    """p-values of the exact test that candidate and stock are right equally often; no mid-p correction."""

    worse: float  # one-sided, against "the candidate is not worse"
    two_sided: float  # twice the smaller tail, at most 1


def pair(candidate: Sequence[bool], stock: Sequence[bool]) -> Pairs:
    """Outcomes of the same items in the same order, True for right. Raises ValueError if the lengths differ."""
    if len(candidate) != len(stock):
        raise ValueError(f"{len(candidate)} outcomes of the candidate and {len(stock)} of stock: give the same items")
    both = sum(1 for c, s in zip(candidate, stock, strict=True) if c and s)
    wins, losses = sum(map(bool, candidate)) - both, sum(map(bool, stock)) - both
    return Pairs(both, losses, wins, len(stock) - both - wins - losses)


def mcnemar(pairs: Pairs) -> McNemar:
    """Exact McNemar test: of the discordant pairs, losses are binomial with probability 1/2 if nothing differs."""
    discordant = pairs.losses + pairs.wins
    worse = binomial_tail(pairs.losses, discordant, 0.5)
    better = binomial_tail(pairs.wins, discordant, 0.5)
    return McNemar(worse, min(1.0, 2 * min(worse, better)))


def binomial_tail(least: int, trials: int, chance: float) -> float:
    """P(X >= least) of a binomial variable, to about 1e-9 (relative; the smaller tail is the one that is summed)."""
    if least <= 0:
        return 1.0
    if least > trials or chance <= 0:
        return 0.0
    if chance >= 1:
        return 1.0
    if least > trials * chance:
        return _outer(least, trials, chance)
    return 1 - _outer(trials - least + 1, trials, 1 - chance)


def _outer(least: int, trials: int, chance: float) -> float:
    """P(X >= least) above the mean, where every term is smaller than the one before."""
    log_term = math.lgamma(trials + 1) - math.lgamma(least + 1) - math.lgamma(trials - least + 1)
    term = total = math.exp(log_term + least * math.log(chance) + (trials - least) * math.log1p(-chance))
    odds = chance / (1 - chance)
    for k in range(least, trials):
        term *= odds * (trials - k) / (k + 1)
        total += term
        if term <= total * 1e-17:
            break
    return min(total, 1.0)


def score(pairs: Pairs, delta: float) -> float:
    """Tango's statistic of "candidate minus stock is delta": standard normal if so, decreasing in delta on [-1, 1]."""
    if delta < 0:  # the mirror image, so that the square root below never loses digits
        return -_score(pairs.losses, pairs.wins, pairs.items, -delta)
    return _score(pairs.wins, pairs.losses, pairs.items, delta)


def _score(wins: int, losses: int, items: int, delta: float) -> float:
    """Of a difference delta >= 0. The losing probability q maximises the likelihood with q + delta for winning.

    q is the root >= 0 of a q^2 + b q + c; the variance of wins - losses is items (2 q + delta - delta^2).
    """
    a = 2 * items
    b = (2 * items - wins + losses) * delta - wins - losses
    c = -losses * delta * (1 - delta)
    root = math.sqrt(b * b - 4 * a * c)
    q = (root - b) / (2 * a) if b <= 0 else -2 * c / (root + b)
    excess, variance = wins - losses - items * delta, items * (2 * q + delta * (1 - delta))
    if variance > 0:
        return excess / math.sqrt(variance)
    return math.copysign(math.inf, excess) if excess else 0.0


def lower_bound(pairs: Pairs, alpha: float = 0.05) -> float:
    """One-sided 1 - alpha lower confidence bound of the candidate's accuracy minus stock's (Tango's score)."""
    return _lower(pairs, _quantile(alpha))


def difference(pairs: Pairs, alpha: float = 0.05) -> Estimate:
    """The candidate's accuracy minus stock's with its two-sided 1 - alpha interval (Tango's score)."""
    z = _quantile(alpha / 2)
    mirrored = Pairs(pairs.both, pairs.wins, pairs.losses, pairs.neither)
    return Estimate(pairs.difference, _lower(pairs, z), -_lower(mirrored, z))


def _lower(pairs: Pairs, z: float) -> float:
    """The smallest difference that the score test with quantile z does not refuse."""
    if pairs.difference == -1:
        return -1.0
    return bisect(lambda delta: score(pairs, delta) >= z, -1.0, pairs.difference)


def bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Where `holds`, true at `low` and false at `high`, changes; the last point at which it was seen to hold."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _quantile(alpha: float) -> float:
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha {alpha}: give the chance of a miss, above 0 and below 0.5 (of each side)")
    return NormalDist().inv_cdf(1 - alpha)
