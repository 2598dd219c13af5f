"""How one output of a call is judged, by kind of output. The rules are data of a contract; this is what they mean.

    RelL2(floor, drift)   the pass rule of contract.tolerance; `drift` is the floor after more than one step
    Exact()               bit for bit the rounded reference
    Codes(...)            8-bit float codes: almost all equal to the rounded reference, the others next to it
    MaxAbs(limit)         largest absolute error against the rounded reference
    ByOp()                nothing here: the op's hard rules judge it

Every rule answers `judge(candidate, stock, rounded, true, steps)` with a `Judged`. Not covered: hard rules, which see
all outputs of a call at once and belong to the op.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from kgen.contract.quant import code_steps
from kgen.contract.tolerance import SLACK, Errors, compare

ERROR, EXACT = "error", "exact"  # codes of a complaint


@dataclass(frozen=True)
class Judged:
    """`errors` is None where distances mean nothing; `complaint` is "" for a pass, else one line with the numbers."""

    errors: Errors | None = None
    allowed_true: float = 0.0
    allowed_rounded: float = 0.0
    code: str = ""
    complaint: str = ""


class Rule(Protocol):
    def judge(
        self, candidate: torch.Tensor, stock: torch.Tensor, rounded: torch.Tensor, true: torch.Tensor, steps: int
    ) -> Judged:
        """`rounded` and `true` are float64 (or of the output's own integer dtype); `steps`: calls on this state."""
        ...


@dataclass(frozen=True)
class RelL2:
    floor: float
    drift: float | None = None

    def judge(
        self, candidate: torch.Tensor, stock: torch.Tensor, rounded: torch.Tensor, true: torch.Tensor, steps: int
    ) -> Judged:
        floor = self.drift if self.drift is not None and steps > 1 else self.floor
        errors = compare(candidate, stock, rounded, true)
        complaint = errors.complaint(floor)
        code = ERROR if complaint else ""
        return Judged(errors, errors.allowed_true(), errors.allowed_rounded(floor), code, complaint)


@dataclass(frozen=True)
class Exact:
    def judge(
        self, candidate: torch.Tensor, stock: torch.Tensor, rounded: torch.Tensor, true: torch.Tensor, steps: int
    ) -> Judged:
        if same_bits(candidate, rounded.to(candidate.dtype)):
            return Judged()
        return Judged(code=EXACT, complaint="must equal the rounded reference bit for bit, and does not")


@dataclass(frozen=True)
class Codes:
    """e4m3 outputs. `unequal`: fraction of codes that may differ, by one step or as far as stock's do; `floor`:
    relative L2 of the values."""

    unequal: float = 0.005
    floor: float = 4e-3

    def judge(
        self, candidate: torch.Tensor, stock: torch.Tensor, rounded: torch.Tensor, true: torch.Tensor, steps: int
    ) -> Judged:
        errors = compare(candidate, stock, rounded, true)
        own_fraction, own_largest = _apart(stock, rounded)
        allowed, reach = max(self.unequal, SLACK * own_fraction), max(1, own_largest)
        fraction, largest = _apart(candidate, rounded)
        complaint = errors.complaint(self.floor)
        if largest > reach:  # next to zero, codes lie closer than the roundings before them: stock may be further too
            complaint = f"a code is {largest} steps from the rounded reference, allowed {reach}"
        elif fraction > allowed:
            complaint = f"{fraction:.3%} of the codes differ from the rounded reference, allowed {allowed:.3%}"
        code = ERROR if complaint else ""
        return Judged(errors, errors.allowed_true(), errors.allowed_rounded(self.floor), code, complaint)


@dataclass(frozen=True)
class MaxAbs:
    limit: float

    def judge(
        self, candidate: torch.Tensor, stock: torch.Tensor, rounded: torch.Tensor, true: torch.Tensor, steps: int
    ) -> Judged:
        worst, allowed = _max_abs(candidate, rounded), max(self.limit, SLACK * _max_abs(stock, rounded))
        if worst <= allowed:
            return Judged(allowed_rounded=allowed)
        return Judged(None, 0.0, allowed, ERROR, f"differs by up to {worst:.3e}, allowed {allowed:.3e}")


@dataclass(frozen=True)
class ByOp:
    def judge(
        self, candidate: torch.Tensor, stock: torch.Tensor, rounded: torch.Tensor, true: torch.Tensor, steps: int
    ) -> Judged:
        return Judged()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit: NaN equals itself, -0 is not +0."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _max_abs(got: torch.Tensor, want: torch.Tensor) -> float:
    """inf where the two are not finite at the same places with the same values."""
    g, w = got.double(), want.double()
    same = (g == w) | (g.isnan() & w.isnan())
    error = torch.where(same, torch.zeros_like(g), (g - w).abs())
    return float(error.nan_to_num(nan=float("inf")).max()) if error.numel() else 0.0


def _apart(got: torch.Tensor, rounded: torch.Tensor) -> tuple[float, int]:
    """Fraction of unequal e4m3 codes, and the largest distance in representable values."""
    steps = code_steps(got.to(torch.float8_e4m3fn), rounded.to(torch.float8_e4m3fn))
    return float((steps > 0).double().mean()), int(steps.max()) if steps.numel() else 0
