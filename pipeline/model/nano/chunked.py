"""The gated delta rule over a whole sequence in chunks, with its gradient: plain torch, any float dtype.

Per head, with state S [v, k], decay D_t = exp(g_t) per key channel and write strength b_t:

    S = S * D_t;  u_t = b_t (v_t - S k_t);  S = S + u_t k_t^T;  o_t = S q_t

Within a chunk, with G the running sum of g, the u_t solve (I + L) U = b (V - (K e^G) S0^T) with
L[t, s] = b_t <k_t e^(G_t - G_s), k_s> for s < t, and S0 passes through all chunks as S0 -> S0 * e^G_end + S0 M + B.

Range: g may fall to LOWEST per step, so e^(G_t - G_s) cannot be split into e^G_t and e^-G_s over a chunk. It is split
around a reference in the middle of each group of GROUP rows, which keeps both factors of every entry that counts
within e^(LOWEST * GROUP / 2) = e^40 of 1; later columns are clamped there and masked out.

Not here: the one-token form of decoding, convolution, norms and gates around it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

CHUNK = 64
GROUP = 16
LOWEST = -5.0  # of g, per step
_REACH = -LOWEST * GROUP / 2


class _UnitLowerInverse(torch.autograd.Function):
    """(I + L)^-1 [..., n, n], n a power of two, by doubling solved blocks: stable, few calls.

    L is what stands below the diagonal of the input; the rest is not read.
    """

    @staticmethod
    def forward(ctx: Any, lower: torch.Tensor) -> torch.Tensor:
        size = lower.shape[-1]
        inverse = torch.eye(size, dtype=lower.dtype, device=lower.device).expand_as(lower).contiguous()
        block = 1
        while block < size:
            # views [..., block pair, 2, block, block pair, 2, block]; only the diagonal pairs are read
            shape = (*lower.shape[:-2], size // (2 * block), 2, block, size // (2 * block), 2, block)
            solved, given = inverse.view(shape), lower.view(shape)
            top = solved[..., 0, :, :, 0, :].diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
            low = solved[..., 1, :, :, 1, :].diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
            side = given[..., 1, :, :, 0, :].diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
            target = solved[..., 1, :, :, 0, :].diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
            target.copy_(-(low @ side @ top))
            block *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        turned: torch.Tensor = ctx.saved_tensors[0].mT
        return -(turned @ grad @ turned).tril(-1)


class _Scan(torch.autograd.Function):
    """States before each chunk: S[0] = 0, S[c+1] = S[c] * decay[c] + S[c] M[c] + B[c], two launches a chunk.

    decay [n, r, 1, k], M [n, r, k, k], B [n, r, v, k] -> S [n, r, v, k] (the state after the last chunk is dropped).
    """

    @staticmethod
    def forward(ctx: Any, decay: torch.Tensor, mix: torch.Tensor, add: torch.Tensor) -> torch.Tensor:
        states = torch.zeros_like(add)
        for c in range(add.shape[0] - 1):
            torch.baddbmm(torch.addcmul(add[c], states[c], decay[c]), states[c], mix[c], out=states[c + 1])
        ctx.save_for_backward(decay, mix, states)
        return states

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        decay, mix, states = ctx.saved_tensors
        after = torch.zeros_like(states)  # gradient of the state after each chunk
        for c in range(states.shape[0] - 2, -1, -1):
            later = torch.addcmul(grad[c + 1], after[c + 1], decay[c + 1])
            torch.baddbmm(later, after[c + 1], mix[c + 1].mT, out=after[c])
        return (states * after).sum(-2, keepdim=True), states.mT @ after, after


def _grouped(x: torch.Tensor, size: int = GROUP) -> torch.Tensor:
    """[..., n, x] -> [..., n / size, size, x]."""
    return x.reshape(*x.shape[:-2], -1, size, x.shape[-1])


class Factors(NamedTuple):
    """What a chunk contributes before its start state is known; [n, r, C, ...] with n chunks of r heads."""

    attention: torch.Tensor  # <q_t e^(G_t - G_s), k_s> for s <= t [C, C]
    lower: torch.Tensor  # L [C, C], anything on and above the diagonal
    values: torch.Tensor  # b v [C, v]
    keys: torch.Tensor  # b k e^G [C, k]
    late_keys: torch.Tensor  # k e^(G_end - G) [C, k]
    queries: torch.Tensor  # q e^G [C, k]
    end: torch.Tensor  # e^G_end [1, k]


def factors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor, beta: torch.Tensor) -> Factors:
    """Everything element-wise of [n, r, C, x], with the one product that the two score matrices share."""
    gate = gate.cumsum(-2)
    groups = _grouped(gate)
    reference = groups[..., GROUP // 2 - 1, :].unsqueeze(-2)  # [..., C / GROUP, 1, k]
    rows_scale = (groups - reference).exp()
    rows = torch.cat((_grouped(q) * rows_scale, _grouped(k) * rows_scale), dim=-2)
    reach = (reference - gate.unsqueeze(-3)).clamp(max=_REACH)  # [..., C / GROUP, C, k]
    products = rows @ (k.unsqueeze(-3) * reach.exp()).mT  # [..., C / GROUP, 2 GROUP, C]
    attention, lower = (part.flatten(-3, -2) for part in products.chunk(2, dim=-2))
    decayed, end = gate.exp(), gate[..., -1:, :]
    return Factors(
        attention.tril(),
        lower * beta,
        v * beta,
        k * decayed * beta,
        k * (end - gate).exp(),
        q * decayed,
        end.exp(),
    )


MakeFactors = Callable[..., Factors]


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gate: torch.Tensor,
    beta: torch.Tensor,
    make_factors: MakeFactors = factors,
) -> torch.Tensor:
    """Outputs o [..., T, v] of the recurrence above from an empty state.

    q, k, gate [..., T, k], v [..., T, v], beta [..., T], all of one dtype (float32 or float64); gate within LOWEST..0.
    T may be any positive number; `make_factors` may be a compiled `factors`. ValueError for shapes that do not fit.
    """
    if q.shape != k.shape or q.shape != gate.shape or v.shape[:-1] != q.shape[:-1] or beta.shape != q.shape[:-1]:
        shapes = ", ".join(str(list(x.shape)) for x in (q, k, v, gate, beta))
        raise ValueError(f"delta_rule: q, k, v, gate, beta do not fit together: {shapes}")
    length, pad = q.shape[-2], -q.shape[-2] % CHUNK
    # [..., T, x] -> [n, r, C, x]: the scan then reads whole slices
    by_chunk = (
        _grouped(F.pad(x.reshape(-1, length, x.shape[-1]), (0, 0, 0, pad)), CHUNK).transpose(0, 1).contiguous()
        for x in (q, k, v, gate, beta.unsqueeze(-1))
    )
    f = make_factors(*by_chunk)
    inverse: torch.Tensor = _UnitLowerInverse.apply(f.lower)  # type: ignore[no-untyped-call]
    own, through = inverse @ f.values, inverse @ f.keys
    mix, add = -(through.mT @ f.late_keys), own.mT @ f.late_keys
    states: torch.Tensor = _Scan.apply(f.end, mix, add)  # type: ignore[no-untyped-call]
    out = f.queries @ states.mT + f.attention @ (own - through @ states.mT)
    return out.transpose(0, 1).flatten(1, 2)[:, :length].reshape(*beta.shape, v.shape[-1])
