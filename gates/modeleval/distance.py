"""How far logits and hidden rows are from float64, and how much farther a candidate's are than stock's.

A row is one token of one sequence. Rows of a sequence depend on each other, so that intervals resample whole sequences
(cluster bootstrap, Davison and Hinkley 1997, 3.8), the same ones for candidate and stock. Medians are compared because
a router is discontinuous: where two experts score alike, any rounding may choose the other one, and such a row is far
from float64 for both sides. Values that are not finite are infinitely far, wrong, and counted. Not covered: decisions,
masked logits (mask neither side, or both with finite numbers).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from kgen.gates.modeleval.paired import Estimate

BLOCK = 128  # columns: the tile widths in use are multiples or divisors of it
RESAMPLES = 1000
AT_ONCE = 1 << 22  # weights of rows held in memory by the bootstrap


@dataclass(frozen=True)
class Rows:
    """One side against float64: R rows. float64 unless said; infinite in rows that are not finite."""

    sequence: torch.Tensor  # int64 [R]: which sequence a row belongs to
    logits: torch.Tensor  # [R] relative L2
    hidden: torch.Tensor  # [R] relative L2
    kl: torch.Tensor  # [R] KL(float64 || side), nats
    logit_error: torch.Tensor  # [R] the largest |side - float64| of a row's logits
    blocks: torch.Tensor  # [R, ceil(hidden / BLOCK)] relative L2 of BLOCK columns of the hidden row
    right: torch.Tensor  # bool [R]: float64's best token; of equal logits the lowest id is best
    finite: torch.Tensor  # bool [R]

    @property
    def not_finite(self) -> int:
        return int((~self.finite).sum())


Measure = Literal["logits", "hidden", "kl", "logit_error"]
FIELDS = ("logits", "hidden", "kl", "logit_error", "blocks", "right", "finite")


@dataclass(frozen=True)
class Ratio:
    """Candidate over stock: 1 if both are 0; infinite if only stock is 0 or the candidate is not finite; NaN if stock
    is not finite, since there is no yardstick then. `low` and `high` are 0 and infinite for a single sequence."""

    estimate: Estimate
    candidate_not_finite: int  # rows, also where the medians are finite
    stock_not_finite: int
    sequences: int


def rows(
    logits: torch.Tensor,
    hidden: torch.Tensor,
    want_logits: torch.Tensor,
    want_hidden: torch.Tensor,
    sequence: torch.Tensor,
) -> Rows:
    """Distances of `logits` [R, vocab] and `hidden` [R, width], any float dtype, from float64 of the same shapes.

    `sequence` int64 [R] numbers the sequences. Raises ValueError for shapes that differ or a reference with NaN or inf.
    """
    if logits.shape != want_logits.shape or hidden.shape != want_hidden.shape:
        raise ValueError(f"shapes differ: {_shapes(logits, hidden)} against {_shapes(want_logits, want_hidden)}")
    if not logits.shape[0] == hidden.shape[0] == sequence.shape[0]:
        raise ValueError(f"rows differ: {_shapes(logits, hidden, sequence)}")
    if not (torch.isfinite(want_logits).all() and torch.isfinite(want_hidden).all()):
        raise ValueError("the float64 reference holds values that are not finite: there is nothing to measure against")
    finite = torch.isfinite(logits).all(-1) & torch.isfinite(hidden).all(-1)
    got, want = logits.double(), want_logits.double()
    h, v = hidden.double(), want_hidden.double()
    return Rows(
        sequence=sequence,
        logits=_unless(finite, relative(got, want)),
        hidden=_unless(finite, relative(h, v)),
        kl=_unless(finite, divergence(got, want)),
        logit_error=_unless(finite, (got - want).abs().amax(-1)),
        blocks=_unless(finite, relative(in_blocks(h), in_blocks(v))),
        right=finite & (best(got) == best(want)),
        finite=finite,
    )


def relative(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """|got - want| / |want| (L2) over the last dimension: [..., n] -> [...]; 0 / 0 is 0."""
    error: torch.Tensor = torch.linalg.vector_norm(got - want, dim=-1)
    return torch.where(error == 0, 0.0, error / torch.linalg.vector_norm(want, dim=-1))


def divergence(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """KL(softmax(want) || softmax(got)) in nats over the last dimension: [..., vocab] -> [...]."""
    log_p, log_q = torch.log_softmax(want, -1), torch.log_softmax(got, -1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).clamp_min(0)  # rounding may leave -1e-17


def in_blocks(x: torch.Tensor) -> torch.Tensor:
    """[R, columns] -> [R, ceil(columns / BLOCK), BLOCK]; zeros fill the last block, which changes no norm."""
    padded = F.pad(x, (0, -x.shape[-1] % BLOCK))
    return padded.reshape(x.shape[0], padded.shape[-1] // BLOCK, BLOCK)


def best(logits: torch.Tensor) -> torch.Tensor:
    """Id of the largest logit, the lowest of equals: [..., vocab] -> int64 [...]; vocab if a NaN hides it."""
    ids = torch.arange(logits.shape[-1], device=logits.device)
    return torch.where(logits == logits.amax(-1, keepdim=True), ids, logits.shape[-1]).amin(-1)


def joined(parts: Sequence[Rows]) -> Rows:
    """Parts of the same sequences (steps of one batch) together: numbers of sequences mean the same in each."""
    merged = {name: torch.cat([getattr(part, name) for part in parts]) for name in FIELDS}
    return Rows(sequence=torch.cat([part.sequence for part in parts]), **merged)


def pooled(batches: Sequence[Rows]) -> Rows:
    """Batches of different sequences together: equal numbers in two of them are two sequences."""
    moved, first = [], 0
    for batch in batches:
        names, number = _numbered(batch.sequence)
        moved.append(Rows(number + first, *(getattr(batch, name) for name in FIELDS)))
        first += names.numel()
    return joined(moved)


def median_ratio(name: Measure, candidate: Rows, stock: Rows, alpha: float = 0.05, seed: int = 0) -> Ratio:
    """median(candidate) / median(stock) of field `name` [R] and its 1 - alpha percentile bootstrap over sequences.

    Intervals of few sequences (below about 20) are too narrow. Raises ValueError if the rows do not belong together.
    """
    _same_rows(candidate, stock)
    names, number = _numbered(stock.sequence.cpu())
    count = names.numel()
    sides = [getattr(side, name).double().cpu() for side in (candidate, stock)]
    once = torch.ones(1, count, dtype=torch.int64)
    point = float(_quotient(*(_medians(values, number, once) for values in sides)))
    low, high = (0.0, torch.inf) if count == 1 else _bootstrap(sides, number, count, alpha, seed)
    return Ratio(Estimate(point, low, high), candidate.not_finite, stock.not_finite, count)


def block_ratios(candidate: Rows, stock: Rows) -> torch.Tensor:
    """Ratio of the medians over rows of every block of columns: float64 [blocks]."""
    _same_rows(candidate, stock)
    return _quotient(_middle(candidate.blocks), _middle(stock.blocks))


def sequence_ratios(candidate: Rows, stock: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """(numbers of the sequences int64 [S], ratio of the medians of `hidden` over each one's rows float64 [S])."""
    _same_rows(candidate, stock)
    names, number = _numbered(stock.sequence.cpu())
    alone = torch.eye(names.numel(), dtype=torch.int64)
    c, s = (_medians(side.hidden.double().cpu(), number, alone) for side in (candidate, stock))
    return names, _quotient(c, s)


def _bootstrap(
    sides: Sequence[torch.Tensor], number: torch.Tensor, count: int, alpha: float, seed: int
) -> tuple[float, float]:
    gen = torch.Generator().manual_seed(seed)
    picked = torch.randint(count, (RESAMPLES, count), generator=gen)
    times = torch.zeros(RESAMPLES, count, dtype=torch.int64).scatter_add_(1, picked, torch.ones_like(picked))
    parts = torch.split(times, max(1, AT_ONCE // number.numel()))
    drawn = [_quotient(*(_medians(values, number, part) for values in sides)) for part in parts]
    ordered = torch.cat(drawn).sort().values  # NaN sorts last: an interval that holds one ends in it
    tail = int(alpha / 2 * RESAMPLES)
    low, high = ordered[tail], ordered[RESAMPLES - 1 - tail]
    return (torch.nan, torch.nan) if ordered.isnan().any() else (float(low), float(high))


def _numbered(sequence: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The different numbers in `sequence` [R], and the place of every row's among them: [S], [R]."""
    names, number = torch.unique(sequence, return_inverse=True)
    return names, number


def _medians(values: torch.Tensor, number: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """Median of values [R] with the rows of sequence s taken times[b, s] times: times [B, S] -> [B]."""
    order = values.argsort()
    upto = times[:, number[order]].cumsum(1)
    total = upto[:, -1:]
    lower = torch.searchsorted(upto, (total + 1) // 2)  # the middle one, or the two middle ones, counted from 1
    upper = torch.searchsorted(upto, total // 2 + 1)
    ranked = values[order]
    return (ranked[lower[:, 0]] + ranked[upper[:, 0]]) / 2


def _middle(values: torch.Tensor) -> torch.Tensor:
    """Median over the first dimension (torch.quantile makes NaN of two infinite neighbours)."""
    ordered, count = values.sort(0).values, values.shape[0]
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def _quotient(candidate: torch.Tensor, stock: torch.Tensor) -> torch.Tensor:
    """candidate / stock by the rules of `Ratio`."""
    ratio = torch.where((candidate == 0) & (stock == 0), 1.0, candidate / stock)
    return torch.where(torch.isfinite(stock), ratio, torch.nan)


def _same_rows(candidate: Rows, stock: Rows) -> None:
    if not stock.sequence.numel() or not torch.equal(candidate.sequence, stock.sequence):
        raise ValueError("candidate and stock must have the same rows of the same sequences, at least one")


def _unless(finite: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`values` [R, ...], infinite in rows that are not finite."""
    return torch.where(finite.reshape(-1, *[1] * (values.dim() - 1)), values, torch.inf)


def _shapes(*tensors: torch.Tensor) -> str:
    return ", ".join(str(list(t.shape)) for t in tensors)
