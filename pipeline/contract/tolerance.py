"""The numeric pass rule: distances to two references, and what of them a candidate may add to the stock op's own.

    relL2(cand, R64)  <= 1.25 * max(relL2(stock, R64), relL2(R64r, R64))
    relL2(cand, R64r) <= max(floor, 1.25 * relL2(stock, R64r))

R64 is the float64 reference without roundings, R64r the one rounded as the op is written.
"""

from dataclasses import dataclass

import torch

SLACK = 1.25  # a candidate may be this much further away than the stock op: room for another summation order
TINY = 1e-300  # avoids 0/0 where a reference is all zero


def relative_l2(got: torch.Tensor, want: torch.Tensor) -> float:
    """||got - want|| / ||want|| in float64; inf when `got` is not finite where `want` is; 0 for two zero tensors."""
    g, w = got.double(), want.double()
    finite = torch.isfinite(w)
    if not torch.equal(torch.isfinite(g), finite):
        return float("inf")
    g, w = g[finite], w[finite]
    norm = float(torch.linalg.vector_norm(w))
    diff = float(torch.linalg.vector_norm(g - w))
    return diff / norm if norm > TINY else (0.0 if diff == 0 else float("inf"))


@dataclass(frozen=True)
class Errors:
    """Distances of one output on one input set (dimensionless relative L2; `max_abs_rms` is max |error| / rms)."""

    candidate_true: float
    stock_true: float
    rounded_true: float
    candidate_rounded: float
    stock_rounded: float
    max_abs_rms: float
    worst_row: float
    bit_exact: float  # fraction of elements equal to the rounded reference

    def allowed_true(self) -> float:
        return SLACK * max(self.stock_true, self.rounded_true)

    def allowed_rounded(self, floor: float) -> float:
        return max(floor, SLACK * self.stock_rounded)

    def complaint(self, floor: float) -> str:
        """ "" when both parts of the rule hold, else one line with the numbers."""
        if not self.candidate_true <= self.allowed_true():
            return f"relL2 to the float64 reference is {self.candidate_true:.3e}, allowed {self.allowed_true():.3e}"
        if not self.candidate_rounded <= self.allowed_rounded(floor):
            return (
                f"relL2 to the rounded reference is {self.candidate_rounded:.3e},"
                f" allowed {self.allowed_rounded(floor):.3e}"
            )
        return ""


def compare(candidate: torch.Tensor, stock: torch.Tensor, rounded: torch.Tensor, true: torch.Tensor) -> Errors:
    """All distances of one output tensor. `rounded` and `true` are float64."""
    c, r = candidate.double(), rounded.double()
    rows = (c - r).reshape(c.shape[0], -1)
    row_norm = torch.linalg.vector_norm(r.reshape(c.shape[0], -1), dim=1)
    row_error = torch.linalg.vector_norm(rows, dim=1) / row_norm.clamp_min(TINY)
    row_error = torch.where(row_norm > TINY, row_error, torch.linalg.vector_norm(rows, dim=1))
    rms = float(r.square().mean().sqrt())
    return Errors(
        candidate_true=relative_l2(candidate, true),
        stock_true=relative_l2(stock, true),
        rounded_true=relative_l2(rounded, true),
        candidate_rounded=relative_l2(candidate, rounded),
        stock_rounded=relative_l2(stock, rounded),
        max_abs_rms=float((c - r).abs().max()) / max(rms, TINY),
        worst_row=float(row_error.max()),
        bit_exact=float((candidate == rounded.to(candidate.dtype)).double().mean()),
    )
