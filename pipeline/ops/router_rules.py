"""What makes a choice of experts right: ranking, weights, and the checks that kgen.ops.moe_router states in words.

Not covered: the formulas before the ranking, and how far logits may be off where they are not an output.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

RENORM_EPS = 1e-20
REL = 1e-5  # of a weight, beside one bf16 ulp
LOGIT_REL = 2.0**-18  # of sum |m w|: float32 sums in any sensible order stay far below, a rounding to bf16 does not
SATURATED = 40.0  # from here on sigmoid is 1 in float32 and float64


@dataclass(frozen=True)
class Accuracy:
    """A declared class: scores closer than `window` may swap; `score_error` is what a score itself may be off by."""

    window: float
    score_error: float


CLASSES: Mapping[str, Accuracy] = {
    "exact": Accuracy(1e-5, 2.0**-126),
    "fast": Accuracy(1e-3, 2.5e-4),  # sigmoid as 1/2 + 1/2 tanh.approx(x/2): relative 2^-11 of tanh, halved
}


class Ranked(NamedTuple):
    values: torch.Tensor
    indices: torch.Tensor


def ranked(biased: torch.Tensor) -> Ranked:
    """All experts of each row, best first; equal ones by id, NaN (as -inf) last."""
    keys = torch.where(biased.isnan(), -torch.inf, biased)
    return Ranked(*torch.sort(keys, dim=1, descending=True, stable=True))


def weights_of(scores: torch.Tensor, ids: torch.Tensor, scale: float) -> torch.Tensor:
    """Renormalised scores of `ids`, in the dtype of `scores`."""
    chosen = scores.gather(1, ids)
    return chosen * scale / (chosen.sum(1, keepdim=True) + RENORM_EPS)


def breaches(
    m: torch.Tensor,
    w_router: torch.Tensor,
    bias: torch.Tensor,
    scale: float,
    accuracy: Accuracy,
    got: Mapping[str, torch.Tensor],
) -> list[str]:
    """One line for each rule that `got` (ids, w, and logits where they are an output) breaks on some token."""
    ids, w = (got[n].to(m.device) for n in ("ids", "w"))
    x, rows = m.double(), w_router.double()
    logits = x @ rows.T
    found = list(_logit_breaches(x, rows, logits, got))
    experts = logits.shape[1]
    invalid = ((ids < 0) | (ids >= experts)).any(1)
    in_order = ids.sort(dim=1).values
    twice = (in_order[:, 1:] == in_order[:, :-1]).any(1)
    found += _line("an id is out of range", invalid) + _line("an expert is returned twice", twice)
    if bool((invalid | twice).any()):
        return found
    scores = torch.sigmoid(logits)
    found += _choice_breaches(scores + bias.double(), ids.long(), accuracy.window)
    found += _line("a tie does not go to the lower id", _broken_ties(x, logits, bias, ids.long()))
    return found + _line("w is not the weight of its id", _wrong_weights(scores, ids.long(), scale, accuracy, w))


def _line(what: str, bad: torch.Tensor) -> list[str]:
    """`bad`: bool for each token."""
    tokens = torch.nonzero(bad).flatten().tolist()
    return [f"{what}: {len(tokens)} of {len(bad)} tokens, the first is token {tokens[0]}"] if tokens else []


def _choice_breaches(biased: torch.Tensor, ids: torch.Tensor, window: float) -> Iterator[str]:
    top, best = ranked(biased)
    count = ids.shape[1]
    clear = (top[:, :count] - top[:, 1 : count + 1] > window).all(1)
    yield from _line(
        f"ids differ from the reference where all gaps exceed {window:g}", clear & (ids != best[:, :count]).any(1)
    )
    keys = torch.where(biased.isnan(), -torch.inf, biased)
    chosen = keys.gather(1, ids)
    left_out = keys.scatter(1, ids, -torch.inf).amax(1)
    better = chosen.amin(1) < left_out - window
    yield from _line(f"an expert left out is more than {window:g} better than one returned", better)
    lowest = chosen.cummin(1).values
    yield from _line(f"ids are out of order by more than {window:g}", (chosen[:, 1:] > lowest[:, :-1] + window).any(1))


def _broken_ties(x: torch.Tensor, logits: torch.Tensor, bias: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Tokens where, of two experts that tie whatever the order of summation, the higher id comes first or alone."""
    zero = (x == 0).all(1, keepdim=True) & (logits == 0)
    fixed = zero | (logits >= SATURATED) | logits.isinf() | logits.isnan()
    tied = torch.sigmoid(logits).float() + bias
    tied = torch.where(logits.isnan(), -torch.inf, tied)
    place = ids.new_full(logits.shape, ids.shape[1])
    place.scatter_(1, ids, torch.arange(ids.shape[1], device=ids.device).expand_as(ids))
    lower = torch.arange(logits.shape[1], device=ids.device)
    bad = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for slot in range(ids.shape[1]):
        mine = ids[:, slot : slot + 1]
        same = fixed & fixed.gather(1, mine) & (tied == tied.gather(1, mine)) & (lower < mine)
        bad |= (same & (place > slot)).any(1)
    return bad


def _wrong_weights(
    scores: torch.Tensor, ids: torch.Tensor, scale: float, accuracy: Accuracy, w: torch.Tensor
) -> torch.Tensor:
    want, got = weights_of(scores, ids, scale), w.double()
    ulp = torch.exp2((torch.log2(want.abs()).floor() - 7).clamp(min=-133))
    share = (scale + ids.shape[1] * want.abs()) / (scores.gather(1, ids).sum(1, keepdim=True) + RENORM_EPS)
    near = (got - want).abs() <= ulp + REL * want.abs() + accuracy.score_error * share
    return ~(near | (want.isnan() & got.isnan())).all(1)


def _logit_breaches(
    x: torch.Tensor, rows: torch.Tensor, logits: torch.Tensor, got: Mapping[str, torch.Tensor]
) -> list[str]:
    if "logits" not in got:
        return []
    found = got["logits"].to(x.device).double()
    allowed = LOGIT_REL * (x.abs() @ rows.abs().T)
    near = (found - logits).abs() <= allowed
    same = (found == logits) | (found.isnan() & logits.isnan())
    return _line("a logit is not that of a float32 sum", ~(torch.where(logits.isfinite(), near, same)).all(1))
