"""Distances and tests of the full-model gate: numbers only, no decision.

Rows are decoded tokens. Medians are used because a router is discontinuous: where two experts score alike, any rounding
may choose the other one, and such a row is far from float64 for stock and candidate alike. What medians cannot see
(single rows, single columns, rare rows) has numbers of its own.
"""

import math
from dataclasses import dataclass

import torch

from kgen.model.session import lowest_argmax
from kgen.model.step import Output

BLOCK = 128  # columns: the tile widths in use are multiples or divisors of it
RESAMPLES = 400
TINY = 1e-30


@dataclass(frozen=True)
class Rows:
    """One side of one batch against float64. float64 tensors; R rows = steps x count, step-major."""

    count: int
    logits: torch.Tensor  # [R] relL2
    hidden: torch.Tensor  # [R] relL2
    kl: torch.Tensor  # [R] KL(float64 || side), nats
    blocks: torch.Tensor  # [R, blocks] relL2 of 128 columns of the hidden row
    right: torch.Tensor  # [R] bool: the float64 argmax
    finite: bool


@dataclass(frozen=True)
class Ratio:
    """Candidate over stock, with its 95 % bootstrap interval over rows (paired)."""

    point: float
    low: float
    high: float


def rows(got: Output, want: Output) -> Rows:
    """Distances of `got` from the float64 `want`; both [steps, count, ...]."""
    g, w = got.logits.double().flatten(0, 1), want.logits.flatten(0, 1)
    h, v = got.hidden.double().flatten(0, 1), want.hidden.flatten(0, 1)
    log_p, log_q = torch.log_softmax(w, -1), torch.log_softmax(g, -1)
    return Rows(
        count=want.logits.shape[1],
        logits=_relative(g, w),
        hidden=_relative(h, v),
        kl=(log_p.exp() * (log_p - log_q)).sum(-1),
        blocks=_relative(_in_blocks(h), _in_blocks(v)),
        right=lowest_argmax(g) == lowest_argmax(w),
        finite=bool(torch.isfinite(g).all() and torch.isfinite(h).all()),
    )


def pooled(parts: list[Rows]) -> Rows:
    """All batches together; `count` has no meaning then."""
    names = ("logits", "hidden", "kl", "blocks", "right")
    joined = {n: torch.cat([getattr(p, n) for p in parts]) for n in names}
    return Rows(count=0, finite=all(p.finite for p in parts), **joined)


def _relative(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    error: torch.Tensor = torch.linalg.vector_norm(got - want, dim=-1)
    return error.div(torch.linalg.vector_norm(want, dim=-1).clamp_min(TINY))


def _in_blocks(x: torch.Tensor) -> torch.Tensor:
    """[R, columns] -> [R, blocks, BLOCK]; a last part that fills no block joins none."""
    whole = x.shape[-1] // BLOCK * BLOCK
    return x[:, :whole].reshape(x.shape[0], -1, BLOCK) if whole else x[:, None]


def median_ratio(candidate: torch.Tensor, stock: torch.Tensor, seed: int = 0) -> Ratio:
    """median(candidate) / median(stock) over rows [R]."""
    gen = torch.Generator().manual_seed(seed)
    pick = torch.randint(0, candidate.shape[0], (RESAMPLES, candidate.shape[0]), generator=gen).to(candidate.device)
    drawn = candidate[pick].median(1).values / stock[pick].median(1).values.clamp_min(TINY)
    low, high = torch.quantile(drawn, torch.tensor([0.025, 0.975], dtype=drawn.dtype, device=drawn.device)).tolist()
    return Ratio(float(candidate.median() / stock.median().clamp_min(TINY)), low, high)


def worst_block(candidate: torch.Tensor, stock: torch.Tensor) -> tuple[int, float, float]:
    """Block with the largest median(candidate) / median(stock), that ratio, and that ratio over the middle block's.

    Inputs [R, blocks].
    """
    ratio = candidate.median(0).values / stock.median(0).values.clamp_min(TINY)
    index = int(ratio.argmax())
    return index, float(ratio[index]), float(ratio[index] / ratio.median().clamp_min(TINY))


def worst_position(candidate: Rows, stock: Rows) -> tuple[int, float]:
    """Row position whose best step is worst, and that step's distance over stock's usual one.

    Stock's usual distance is its median at this position or in the whole batch, whichever is larger: some sequences
    are farther from float64 than others at every step, for stock too.
    """
    usual = stock.hidden.reshape(-1, stock.count).median(0).values.clamp_min(max(float(stock.hidden.median()), TINY))
    ratio = candidate.hidden.reshape(-1, candidate.count).amin(0) / usual
    index = int(ratio.argmax())
    return index, float(ratio[index])


def far(candidate: torch.Tensor, stock: torch.Tensor, factor: float) -> tuple[int, int]:
    """Rows where only the candidate, and where only stock, is beyond `factor` medians of the stock distance."""
    limit = factor * stock.median()
    c, s = candidate > limit, stock > limit
    return int((c & ~s).sum()), int((s & ~c).sum())


def mcnemar(losses: int, wins: int) -> float:
    """Exact one-sided McNemar test: probability of at least `losses` of the discordant pairs under a fair coin."""
    n = losses + wins
    if n == 0:
        return 1.0
    term = tail = math.comb(n, losses)
    for k in range(losses, n):
        term = term * (n - k) // (k + 1)  # the next binomial coefficient, exactly
        tail += term
    return tail / (1 << n)


def discordant(candidate: torch.Tensor, stock: torch.Tensor) -> tuple[int, int]:
    """(losses, wins) of paired items: stock right and candidate wrong, and the reverse."""
    return int((stock & ~candidate).sum()), int((candidate & ~stock).sum())


def agreement_delta(losses: int, wins: int, items: int) -> Ratio:
    """Difference of the agreement rates candidate - stock with its 95 % interval (normal approximation)."""
    delta = (wins - losses) / items
    spread = 1.96 * math.sqrt(max(losses + wins - (wins - losses) ** 2 / items, 0.0)) / items
    return Ratio(delta, delta - spread, delta + spread)


def first_divergence(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Step at which each sequence first differs: int64 [count]; the number of steps where it never does."""
    steps = torch.arange(got.shape[0], device=got.device)[:, None]
    return torch.where(got != want, steps, got.shape[0]).amin(0)
