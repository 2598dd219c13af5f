"""What the stand-in of vLLM computes on states, by the contracts' stock ops: residuals, and the recurrence of KDA.

Also its sizes, its weights, drawn from a seed, and a norm.
"""

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from kgen.ops.attn_res import AttnRes
from kgen.ops.kda_core import KdaCore

# moe_tail's small sizes are those of one rank of two; vLLM's seat is that of a whole block
WHOLE: tuple[str, Mapping[str, int]] = ("nano-whole", {"ranks": 1, "latent": 128, "columns": 256})


def small(op: str) -> str:
    """The dims of an op that fit the small model."""
    return WHOLE[0] if op == "moe_tail" else "nano"


@functools.cache
def _drawn(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * shape[-1] ** -0.5).to(dtype)


def drawn(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.bfloat16) -> nn.Parameter:
    return nn.Parameter(_drawn(shape, seed, dtype).clone(), requires_grad=False)


class Norm(nn.Module):
    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + drawn((width,), seed).data, requires_grad=False)
        self.eps = self.variance_epsilon = 1e-5
        self.activation = "sigmoid"


def attn_res(prefix: Any, delta: Any, blocks: Any, norm: Any, query: Any, result: Any, nb: int, write: int) -> Any:
    """As vLLM's function by that name, at the small sizes."""
    op = AttnRes()
    axes = {"variant": "prefix_only" if delta is None else "delta", "aux": "no"}
    values = {
        **{"prefix": prefix, "blocks": blocks, "w_norm": norm.weight, "w_query": query, "w_out": result.weight},
        **{"nb": nb, "write_idx": write, "eps": norm.variance_epsilon, "eps_out": result.variance_epsilon},
        **({} if delta is None else {"delta": delta}),
    }
    got = op.stock(op.problem("nano", 1, "sm_90a", axes))(values)
    prefix.copy_(got["prefix"])
    blocks.copy_(got["blocks"])
    return got["out"]


def recurrent(layer: Any, p: torch.Tensor, slots: torch.Tensor) -> Any:
    """One token of each request of a KDA layer with vLLM's attributes; its states are written in place."""
    op = KdaCore()
    values = {
        **{s.name: s.sample for s in op.scalars},
        **{"p": p, "conv_w": layer.conv1d.weight[:, 0], "f_b": layer.f_b_proj.weight, "a_log": layer.A_log},
        **{"dt_bias": layer.dt_bias, "w_onorm": layer.o_norm.weight, "slots": slots},
        **{"conv": layer.kv_cache[0], "s": layer.kv_cache[1]},
    }
    got = op.stock(op.problem("nano", op.bin_for(min(p.shape[0], 64)), "sm_90a"))(values)
    for cache, name in zip(layer.kv_cache, ("conv", "s"), strict=True):
        cache.copy_(got[name])
    return got["y"]
