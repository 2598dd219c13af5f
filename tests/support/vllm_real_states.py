"""Calls of vLLM's own layers that keep states, on a CPU: their kernels are replaced by the contracts' formulas.

What is shown: that a seat hands a kernel what vLLM hands its own: which weights, which rows and slots, numbers of
blocks, epsilons, and states that are written in place. Not shown: that vLLM's kernels compute those formulas.
"""

import dataclasses
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from kgen.ops import kda_math
from kgen.ops.attn_res import AttnRes


def attn_res(
    prefix: torch.Tensor,
    delta: torch.Tensor,
    blocks: torch.Tensor,
    norm: torch.Tensor,
    query: torch.Tensor,
    result: torch.Tensor,
    num_blocks: int,
    block_write_idx: int,
    eps: float,
    output_norm_eps: float,
) -> torch.Tensor:
    """In the place of vLLM's function by that name; all of its calls here have a pending row."""
    op = AttnRes()
    tensors = {"prefix": prefix, "delta": delta, "blocks": blocks, "w_norm": norm, "w_query": query, "w_out": result}
    scalars = {"nb": num_blocks, "write_idx": block_write_idx, "eps": eps, "eps_out": output_norm_eps}
    got = op.stock(op.problem("nano", prefix.shape[0], "sm_90a"))({**tensors, **scalars})
    prefix.copy_(got["prefix"])
    blocks.copy_(got["blocks"])
    return got["out"]


def residuals(within: Any, first: Any, rows: torch.Tensor) -> Callable[[], Any]:
    """Both calls of a layer within a block, and the one that starts the next block."""
    importlib.import_module(type(within).__module__).attn_res = attn_res  # type: ignore[attr-defined]
    tokens, hidden = rows.shape
    stored = torch.randn(tokens, 2, hidden)

    def call() -> Any:
        prefix, blocks = rows.clone(), stored.clone()
        found = []
        for norm in (within._pre_attn_norm, within._post_attn_norm, first._pre_attn_norm):
            out, prefix, blocks = norm(rows.flip(0).contiguous(), blocks, prefix)
            found += [out, prefix.clone(), blocks.clone()]
        return tuple(found)

    return call


def fused_kda_decode(**given: Any) -> None:
    """In the place of vLLM's kernel, by the names of its arguments; states and rows are written in place."""
    rows, slots = given["x"], given["state_indices"].long()
    tokens, heads = rows.shape[0], given["A_log"].shape[0]
    channels = rows.shape[1]
    gate = given["output_gate"].reshape(tokens, -1)
    nothing = rows.new_zeros(tokens, channels // 3 // heads)
    p = torch.cat([rows, gate, nothing, given["raw_beta"][0]], dim=-1).float()[:, None]
    conv_w = given["weight"].transpose(1, 2).reshape(channels, -1).float()
    unused = nothing.new_zeros(channels // 3, nothing.shape[1]).float()
    weights = kda_math.Weights(conv_w, unused, given["A_log"], given["dt_bias"], given["norm_weight"])
    constants = kda_math.Constants(given["lower_bound"], (channels // 3 // heads) ** -0.5, 1e-6, given["norm_eps"])
    taps, state = given["conv_state"], given["state"]
    rg = given["raw_g"].reshape(tokens, 1, -1).float()
    y, history, states = kda_math.advance(p, rg, taps[slots].float(), state[slots], weights, constants)
    given["out"].copy_(y.reshape(given["out"].shape))
    taps[slots] = history[..., 1:].to(taps.dtype)
    state[slots] = states[:, 0]


def recurrence(layer: Any, rows: torch.Tensor) -> Callable[[], Any]:
    """A decode step of a KDA layer, one new token a request, through its own native path."""
    module: Any = importlib.import_module(type(layer).__module__)
    contexts: Any = importlib.import_module("vllm.forward_context")
    tokens = rows.shape[0]
    step = object.__new__(module.KimiK3KDAMetadata)
    for field in dataclasses.fields(step):
        object.__setattr__(step, field.name, None)
    step.num_prefills = step.num_spec_decodes = 0
    step.num_decodes = step.num_actual_tokens = tokens
    step.non_spec_state_indices_tensor = torch.arange(tokens, 0, -1, dtype=torch.int32)
    context = SimpleNamespace(attn_metadata={layer.prefix: step})
    contexts.is_forward_context_available = lambda: True
    contexts.get_forward_context = module.get_forward_context = lambda: context
    module.ops = SimpleNamespace(fused_kda_decode=fused_kda_decode)
    layer.kda_decode_backend = "native"
    width = layer.local_projection_size
    layer.decode_conv1d_weight = layer.conv1d.weight.data.reshape(3, width, -1).transpose(1, 2).contiguous()
    layer.decode_norm_weight = layer.o_norm.weight.data.float()
    (conv, state) = layer.get_state_shape()
    stored = torch.randn(tokens + 1, *conv), torch.randn(tokens + 1, *state, dtype=torch.float32)

    def call() -> Any:
        layer.kv_cache = tuple(t.clone() for t in stored)
        return (layer(hidden_states=rows, positions=None), *layer.kv_cache)

    return call
