"""From logits to tokens: temperature, top-k, top-p and a seed per request; draws that no companion can change.

Order: mask -> temperature -> top-k -> top-p -> renormalise -> draw. In words, for one row:

- A NaN counts as -inf and +inf as the largest float32. Tokens at -inf are never drawn; a row without any other token
  gives -1 instead of a token (there is no host sync to raise from; whoever reads the tokens must look).
- Temperature 0 is greedy: the largest logit, the lowest id of equals; top-k, top-p and seed do not matter.
- Else the weight of a token is w = round(2^40 * exp((logit - largest) / temperature)), an integer. Tokens below 2^-41
  of the likeliest one get weight 0.
- top-k (0: off) keeps the k largest logits; of equal ones at the boundary the lower ids stay.
- top-p keeps, in the same order, the shortest prefix whose weight is at least p of what top-k left.
- The draw is the first id whose cumulative weight exceeds u * total, u = 62 bits of Philox(seed, step).

Everything after exp is integer arithmetic, which sums to the same in any order: so a draw is a function of (logits of
the row, settings, seed, step) on every device, whatever the batch size, the row's index or its companions. All shapes
are fixed and nothing waits for the device, so `draw` can be captured in a CUDA graph; what is fixed at capture is only
whether any row filters and whether all are greedy. Not covered: penalties, log-probabilities.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from kgen.model.generation.philox import random_halves

WEIGHT_ONE = 2**40  # of the likeliest token: a vocabulary of 2^18 sums to at most 2^58, see scaled
LARGEST_VOCABULARY = 2**18
HALF = 31  # bits of a random half
LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Sampling:
    """How one request draws. Raises ValueError for values without a meaning."""

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0  # 1 keeps all
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature {self.temperature}: give 0 (greedy) or a positive number")
        if self.top_k < 0:
            raise ValueError(f"top_k {self.top_k}: give 0 (all tokens) or a positive count")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p {self.top_p}: give a number above 0, at most 1")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed {self.seed}: give 0 to 2^63 - 1")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def filters(self) -> bool:
        return not self.greedy and (self.top_k > 0 or self.top_p < 1)


@dataclass(frozen=True)
class SamplingRows:
    """The settings of a batch as columns [rows, 1] on its device."""

    temperature: torch.Tensor  # float64
    top_k: torch.Tensor  # int64
    top_p: torch.Tensor  # float64
    seed: torch.Tensor  # int64
    any_filters: bool
    all_greedy: bool

    @classmethod
    def of(cls, requests: Sequence[Sampling], device: torch.device | str = "cpu") -> Self:
        def column(values: list[float] | list[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device).unsqueeze(-1)

        return cls(
            temperature=column([r.temperature for r in requests], torch.float64),
            top_k=column([r.top_k for r in requests], torch.int64),
            top_p=column([r.top_p for r in requests], torch.float64),
            seed=column([r.seed for r in requests], torch.int64),
            any_filters=any(r.filters for r in requests),
            all_greedy=all(r.greedy for r in requests),
        )

    def repeated(self, times: int) -> Self:
        """Every row `times` times in succession: the settings of `times` positions of each request."""
        columns = ("temperature", "top_k", "top_p", "seed")
        return replace(self, **{name: getattr(self, name).repeat_interleave(times, 0) for name in columns})


def draw(
    logits: torch.Tensor, rows: SamplingRows, step: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """int64 [rows]: one token per row of float32 logits [rows, vocab], or -1 where there is none to draw.

    `step` int64 [rows]: how many tokens the request has drawn before. `mask` bool [rows, vocab]: True may be drawn.
    """
    values = _cleaned(logits, mask)
    if rows.all_greedy:
        return _greedy(values).squeeze(-1)
    cumulative = _weights(values, rows).cumsum(-1)
    total = cumulative[:, -1:]
    first, second = random_halves(rows.seed, step.unsqueeze(-1))
    token = (cumulative <= scaled(total, first, second)).sum(-1, keepdim=True)
    return torch.where(total > 0, token, -1).squeeze(-1)


def probabilities(logits: torch.Tensor, rows: SamplingRows, mask: torch.Tensor | None = None) -> torch.Tensor:
    """float64 [rows, vocab]: what `draw` draws from; all zero where it gives -1."""
    weights = _weights(_cleaned(logits, mask), rows)
    return weights.double() / weights.sum(-1, keepdim=True).clamp(min=1).double()


def _cleaned(logits: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    if logits.dtype != torch.float32 or logits.dim() != 2 or logits.shape[1] > LARGEST_VOCABULARY:
        raise ValueError(f"logits {logits.dtype} {tuple(logits.shape)}: give float32 [rows, vocab <= 2^18]")
    if mask is not None and (mask.shape != logits.shape or mask.dtype != torch.bool):
        raise ValueError(f"mask {mask.dtype} {tuple(mask.shape)} does not fit logits {tuple(logits.shape)}")
    values = torch.nan_to_num(logits, nan=-math.inf, posinf=LARGEST, neginf=-math.inf)
    values = values + 0.0  # -0 becomes 0: a sort by bits would tell them apart
    return values if mask is None else values.masked_fill(~mask, -math.inf)


def _greedy(values: torch.Tensor) -> torch.Tensor:
    """[rows, 1]: the lowest id of the largest value, -1 where all are -inf."""
    largest = values.amax(-1, keepdim=True)
    ids = torch.arange(values.shape[-1], device=values.device)
    lowest = torch.where(values == largest, ids, values.shape[-1]).amin(-1, keepdim=True)
    return torch.where(largest > -math.inf, lowest, -1)


def _weights(values: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """int64 [rows, vocab]: integer weights after temperature, top-k and top-p; greedy rows have one nonzero weight."""
    wide = values.double()
    largest = wide.amax(-1, keepdim=True)
    largest = torch.where(largest > -math.inf, largest, 0.0)  # -inf - -inf would be NaN
    greedy = rows.temperature == 0
    scaled = (wide - largest) / torch.where(greedy, 1.0, rows.temperature)
    weights = (scaled.exp() * WEIGHT_ONE).round().to(torch.int64)
    if rows.any_filters:
        weights = _filtered(values, weights, rows)
    ids = torch.arange(values.shape[-1], device=values.device)
    return torch.where(greedy, (ids == _greedy(values)).to(torch.int64), weights)


def _filtered(values: torch.Tensor, weights: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """The weights with those that top-k and top-p remove at 0. Stable order: of equal logits the lower id is first."""
    order = values.sort(dim=-1, descending=True, stable=True).indices
    ranked = weights.gather(-1, order)
    rank = torch.arange(values.shape[-1], device=values.device)
    ranked = torch.where((rows.top_k == 0) | (rank < rows.top_k), ranked, 0)
    sums = ranked.cumsum(-1)
    before = (sums - ranked).double()
    kept = (rows.top_p >= 1) | (before < rows.top_p * sums[:, -1:].double())
    return torch.zeros_like(weights).scatter(-1, order, torch.where(kept, ranked, 0))


def scaled(total: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """floor(total * u) of u = first / 2^31 + second / 2^62, all int64; total <= 2^58 keeps it within 63 bits."""
    high, low = total >> HALF, total & (2**HALF - 1)
    carried = (high * second + low * first + ((low * second) >> HALF)) >> HALF
    result: torch.Tensor = high * first + carried
    return result
