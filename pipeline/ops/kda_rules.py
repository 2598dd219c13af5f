"""How a pool of float32 state slots is judged. Not here: slots that must not change, which is a hard rule of the op."""

from dataclasses import dataclass

import torch

from kgen.contract.rules import ERROR, Judged, RelL2
from kgen.contract.tolerance import TINY, Errors


@dataclass(frozen=True)
class WorstSlot(RelL2):
    """RelL2 with each distance that of the worst entry of the first dimension: untouched or large slots hide nothing.

    A slot that is all zero in the reference must be all zero. The floor holds against both references: where decays
    saturate, rounding rg changes nothing, and float32 without a rounded output leaves stock at 1e-7 from either.
    """

    def judge(
        self, candidate: torch.Tensor, stock: torch.Tensor, rounded: torch.Tensor, true: torch.Tensor, steps: int
    ) -> Judged:
        floor = self.drift if self.drift is not None and steps > 1 else self.floor
        slots = _distances(candidate, rounded)
        rms = float(rounded.double().square().mean().sqrt())
        errors = Errors(
            candidate_true=float(_distances(candidate, true).max()),
            stock_true=float(_distances(stock, true).max()),
            rounded_true=float(_distances(rounded, true).max()),
            candidate_rounded=float(slots.max()),
            stock_rounded=float(_distances(stock, rounded).max()),
            max_abs_rms=float((candidate.double() - rounded).abs().max()) / max(rms, TINY),
            worst_row=float(slots.max()),
            bit_exact=float((candidate == rounded.to(candidate.dtype)).double().mean()),
        )
        allowed_true, allowed_rounded = max(floor, errors.allowed_true()), errors.allowed_rounded(floor)
        complaint = ""
        for far, allowed, reference in (
            (errors.candidate_true, allowed_true, "float64"),
            (errors.candidate_rounded, allowed_rounded, "rounded"),
        ):
            if not far <= allowed:
                complaint = f"a slot's relL2 to the {reference} reference is {far:.3e}, allowed {allowed:.3e}"
        return Judged(errors, allowed_true, allowed_rounded, ERROR if complaint else "", complaint)


def _distances(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Relative L2 of each entry of the first dimension; inf where one of both is not finite, or only `want` is zero."""
    g, w = got.double().flatten(1), want.double().flatten(1)
    apart = torch.linalg.vector_norm(g - w, dim=1)
    far = torch.where(apart == 0, 0.0, apart / torch.linalg.vector_norm(w, dim=1))
    return far.nan_to_num(nan=torch.inf, posinf=torch.inf)
