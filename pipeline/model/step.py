"""One decode step, written once for every arithmetic: bf16 as an engine runs it, or float64 without roundings.

    x0 = embed(ids);  prefix = x0;  delta = none
    per layer:  a = AttnRes_pre(prefix, delta);  o = mixer(a);  m = AttnRes_post(prefix, o);  delta = MoE(m)
    h = AttnRes_final(prefix, delta);  logits = h @ head.T

A layer that opens a block snapshots the residual in AttnRes_pre and restarts the running sum from o. The token mixer of
this stage is a gated depthwise causal convolution, so that a step depends on the sequence; attention layers take its
seat when their ops exist. Weights decide the arithmetic: float64 weights give the reference (with a ReferenceBinder).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kgen.contract.op import Registry, Values
from kgen.model.bind import Binder, OpCall
from kgen.model.dims import CONV_TAPS, ModelDims
from kgen.model.weights import LayerWeights, MixerWeights, MixNorm, ModelWeights, RoutedWeights
from kgen.ops.moe_shared import situ
from kgen.ops.pack import RMS_EPS
from kgen.records import Problem

SEATED = ("attn_res", "moe_shared")  # the ops that a step calls


@dataclass
class State:
    """What a sequence carries from step to step, one row a sequence."""

    conv: torch.Tensor  # [layers, rows, CONV_TAPS - 1, channels], oldest first

    def reset(self) -> None:
        self.conv.zero_()


@dataclass(frozen=True)
class Output:
    logits: torch.Tensor  # [rows, vocab]
    hidden: torch.Tensor  # [rows, hidden]: what the head reads


def new_state(dims: ModelDims, rows: int, weights: ModelWeights) -> State:
    shape = (dims.layers, rows, CONV_TAPS - 1, dims.channels)
    return State(torch.zeros(shape, dtype=weights.embed.dtype, device=weights.embed.device))


def seats(dims: ModelDims, tokens: int, arch: str, registry: Registry) -> Counter[str]:
    """Problem key -> how often one step calls it."""
    mix, shared = registry.get("attn_res"), registry.get("moe_shared")
    found: Counter[str] = Counter()
    for i in range(dims.layers):
        found[mix.problem(dims.name, tokens, arch, {"variant": _pre_variant(i)}).key] += 1
        found[mix.problem(dims.name, tokens, arch, {"variant": _post_variant(i, dims)}).key] += 1
        found[shared.problem(dims.name, tokens, arch).key] += 1
    found[mix.problem(dims.name, tokens, arch, {"variant": "final"}).key] += 1
    return found


def _pre_variant(layer: int) -> str:
    return "delta" if layer else "prefix_only"


def _post_variant(layer: int, dims: ModelDims) -> str:
    """A layer that opens a block restarts the running sum from the attention output: nothing is added."""
    return "delta" if layer % dims.block else "prefix_only"


class DecodeStep:
    """The model at one token bin, with a callable bound in every op's seat. Call: ids [rows], state -> Output."""

    def __init__(
        self, dims: ModelDims, weights: ModelWeights, tokens: int, arch: str, binder: Binder, registry: Registry
    ) -> None:
        self.dims, self.weights, self.tokens = dims, weights, tokens
        self._arch, self._binder, self._registry = arch, binder, registry
        self._pre = [self._mix(f"layer{i}.pre", _pre_variant(i)) for i in range(dims.layers)]
        self._post = [self._mix(f"layer{i}.post", _post_variant(i, dims)) for i in range(dims.layers)]
        self._final = self._mix("final", "final")
        self._shared = [self._bind("moe_shared", f"layer{i}.shared", {}) for i in range(dims.layers)]

    def __call__(self, ids: torch.Tensor, state: State) -> Output:
        prefix, delta = self.weights.embed[ids], None
        shape = (ids.shape[0], self.dims.slots, self.dims.hidden)
        blocks = torch.zeros(shape, dtype=prefix.dtype, device=prefix.device)
        for i, layer in enumerate(self.weights.layers):
            opens = i % self.dims.block == 0
            write = i // self.dims.block if opens else -1
            done = self.dims.finished_blocks(i)
            got = self._pre[i](self._mix_values(layer.pre, prefix, delta, blocks, done, write))
            o = mixer(layer.mixer, got["out"], state.conv[i])
            prefix, pending = (o, None) if opens else (got["prefix"], o)
            blocks = got["blocks"]
            got = self._post[i](self._mix_values(layer.post, prefix, pending, blocks, done + opens, -1))
            prefix, blocks = got["prefix"], got["blocks"]
            delta = self._moe(i, layer, got["out"])
        done = self.dims.finished_blocks(self.dims.layers)
        got = self._final(self._mix_values(self.weights.final, prefix, delta, blocks, done, -1))
        return Output(F.linear(got["out"], self.weights.head), got["out"])

    def _moe(self, i: int, layer: LayerWeights, m: torch.Tensor) -> torch.Tensor:
        """Routed latent experts plus the shared expert, bf16 sum: the block's delta."""
        values: Values = {"m": m, "w_gate_up": layer.shared.w_gate_up, "w_down": layer.shared.w_down}
        shared = self._shared[i](values)["y"]
        return routed(layer.routed, m, self.dims.top_k) + shared

    def _mix_values(
        self, w: MixNorm, prefix: torch.Tensor, delta: torch.Tensor | None, blocks: torch.Tensor, nb: int, write: int
    ) -> Values:
        values: Values = {"prefix": prefix, "blocks": blocks, "nb": nb, "write_idx": write}
        values |= {"w_norm": w.w_norm, "w_query": w.w_query, "w_out": w.w_out, "eps": RMS_EPS, "eps_out": RMS_EPS}
        return values if delta is None else {**values, "delta": delta}

    def _mix(self, seat: str, variant: str) -> OpCall:
        return self._bind("attn_res", seat, {"variant": variant})

    def _bind(self, name: str, seat: str, axes: Mapping[str, str]) -> OpCall:
        op = self._registry.get(name)
        problem: Problem = op.problem(self.dims.name, self.tokens, self._arch, axes)
        return self._binder.bind(op, problem, seat)


def mixer(w: MixerWeights, a: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
    """a [rows, hidden] -> [rows, hidden]; `history` [rows, CONV_TAPS - 1, channels] moves on by one position."""
    value, gate = F.linear(a, w.w_in).chunk(2, dim=-1)
    window = torch.cat([history, value[:, None]], dim=1)
    mixed = (_wide(window) * _wide(w.taps).T).sum(1)
    history.copy_(window[:, 1:])
    y = F.silu(mixed) * torch.sigmoid(_wide(gate))
    return F.linear(y.to(a.dtype), w.w_out)


def routed(w: RoutedWeights, m: torch.Tensor, top_k: int) -> torch.Tensor:
    """Top-k latent experts: [rows, hidden] -> [rows, hidden]. All experts run; weights of the unchosen are zero."""
    score = torch.sigmoid(F.linear(_wide(m), w.router))
    ids = torch.topk(score + w.bias, top_k, dim=-1).indices
    chosen = score.gather(1, ids)
    weight = (chosen / (chosen.sum(-1, keepdim=True) + 1e-20)).to(m.dtype)
    latent = F.linear(m, w.down)
    gate, up = _wide(torch.matmul(latent, w.gate_up.transpose(1, 2))).chunk(2, dim=-1)  # [experts, rows, width]
    rows = torch.bmm(situ(gate, up).to(m.dtype), w.expert_down.transpose(1, 2))
    combine = _wide(torch.zeros_like(score, dtype=m.dtype).scatter(1, ids, weight))
    part = _wide((combine.T[..., None] * _wide(rows)).sum(0).to(m.dtype))
    normed = part * torch.rsqrt(part.square().mean(-1, keepdim=True) + RMS_EPS) * _wide(w.norm)
    return F.linear(normed.to(m.dtype), w.up)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """The dtype that intermediate arithmetic uses: float32 for bf16 values, float64 for float64."""
    return x if x.dtype == torch.float64 else x.float()
