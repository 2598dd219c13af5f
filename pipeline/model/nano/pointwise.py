"""The element-wise parts of the model as plain functions, eager or each fused into few kernels by torch.compile.

Statistics and activations are computed in float32 (float64 for float64 input) and rounded once to the dtype of the
row they belong to. Nothing here holds weights or does matrix products.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F

from kgen.model.nano.chunked import LOWEST, MakeFactors, factors
from kgen.ops.moe_shared import situ
from kgen.ops.pack import RMS_EPS

L2_EPS = 1e-6


def wide(x: torch.Tensor) -> torch.Tensor:
    """x in float32, or as it is in float64."""
    return x if x.dtype == torch.float64 else x.float()


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [..., n] normed and scaled by weight [n], in the dtype of x."""
    y = wide(x)
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + RMS_EPS) * wide(weight)).to(x.dtype)


def residual_mix(
    sources: torch.Tensor, w_norm: torch.Tensor, w_query: torch.Tensor, w_out: torch.Tensor
) -> torch.Tensor:
    """Sources [s, ..., hidden] mixed by softmax over s of their normed products with the query, then normed."""
    v = wide(sources)
    scale = torch.rsqrt(v.square().mean(-1) + RMS_EPS)
    share = torch.softmax((v * (wide(w_norm) * wide(w_query))).sum(-1) * scale, dim=0)
    mix = (v * share.unsqueeze(-1)).sum(0)
    return (mix * torch.rsqrt(mix.square().mean(-1, keepdim=True) + RMS_EPS) * wide(w_out)).to(sources.dtype)


def gated_situ(gate_up: torch.Tensor) -> torch.Tensor:
    """[..., 2 n] (gate half, up half) -> [..., n] in its dtype."""
    gate, up = wide(gate_up).chunk(2, dim=-1)
    return situ(gate, up).to(gate_up.dtype)


def weighted_situ(gate_up: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As gated_situ for every expert, times the expert's weight: [n, e, 2 i], [n, e] -> [n, e, i]."""
    gate, up = wide(gate_up).chunk(2, dim=-1)
    return (situ(gate, up) * wide(weight).unsqueeze(-1)).to(gate_up.dtype)


def short_conv(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Causal depthwise convolution and SiLU: x [b, t, c], taps [c, w] (the last meets the newest) -> wide [b, t, c]."""
    count = taps.shape[-1]
    padded = F.pad(wide(x), (0, 0, count - 1, 0))
    length = x.shape[1]
    total = padded[:, :length] * taps[:, 0]
    for j in range(1, count):
        total = total + padded[:, j : j + length] * taps[:, j]
    return F.silu(total)


def unit(x: torch.Tensor) -> torch.Tensor:
    """x / |x| along the last axis."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def log_decay(rank_gate: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor) -> torch.Tensor:
    """log of the decay per head and key channel: rank_gate, dt_bias [..., h, k], a_log [h] -> wide, in LOWEST..0."""
    return LOWEST * torch.sigmoid(a_log.exp().unsqueeze(-1) * (wide(rank_gate) + dt_bias))


def gated_norm(out: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """RMS norm per head of wide out [..., h, v], times weight [v] and sigmoid(gate [..., h, v]), in gate's dtype."""
    normed = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + RMS_EPS) * wide(weight)
    return (normed * torch.sigmoid(wide(gate))).to(gate.dtype)


def gated(value: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """value * sigmoid(gate) in the dtype of value."""
    return (wide(value) * torch.sigmoid(wide(gate))).to(value.dtype)


Rows = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Pointwise:
    """The functions above as a model uses them."""

    rms_norm: Rows = rms_norm
    residual_mix: Rows = residual_mix
    gated_situ: Rows = gated_situ
    weighted_situ: Rows = weighted_situ
    short_conv: Rows = short_conv
    unit: Rows = unit
    log_decay: Rows = log_decay
    gated_norm: Rows = gated_norm
    gated: Rows = gated
    factors: MakeFactors = factors

    @classmethod
    def compiled(cls) -> "Pointwise":
        """Each one fused by torch.compile, for any number of rows."""
        eager = cls()
        return cls(**{f.name: torch.compile(getattr(eager, f.name), dynamic=True) for f in fields(cls)})
