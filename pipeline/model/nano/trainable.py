"""The model in the form that trains: whole sequences at once, float32 masters, any compute dtype.

The maths is the decode step's: attention residuals with snapshots and a restart per block, KDA and gated MLA without
rotation, a dense first layer, then a latent mixture of experts with a shared one. Masters are rounded to the compute
dtype wherever the stored weight is bf16, so what trains is what is stored. Experts are computed densely: all of them
are two matrix products, weights of 0 drop the ones that were not chosen. Parameter names are the stored keys.

Not here: loss and optimiser (`train`), packed expert weights (`export`), caches of decoding.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from kgen.contract.quant import mxfp4_round
from kgen.model.nano.chunked import delta_rule
from kgen.model.nano.pointwise import Pointwise, wide
from kgen.model.nano.shape import Shape


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [..., k] times weight [n, k] rounded to the dtype of x."""
    return F.linear(x, weight.to(x.dtype))


def _per(x: torch.Tensor, parts: int) -> torch.Tensor:
    """[..., parts * n] -> [..., parts, n]."""
    return x.reshape(*x.shape[:-1], parts, -1)


class _Mix(nn.Module):
    """Weights of one attention residual. The query starts at 0: all sources count alike."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.w_norm = nn.Parameter(torch.ones(shape.hidden))
        self.w_query = nn.Parameter(torch.zeros(shape.hidden))
        self.w_out = nn.Parameter(torch.ones(shape.hidden))

    def forward(self, sources: Sequence[torch.Tensor], fn: Pointwise) -> torch.Tensor:
        dtype = sources[0].dtype
        weights = (w.to(dtype) for w in (self.w_norm, self.w_query, self.w_out))
        mixed: torch.Tensor = fn.residual_mix(torch.stack(tuple(sources)), *weights)
        return mixed


class Kda(nn.Module):
    """Delta-rule layer with a decay per channel. [b, t, hidden] -> the same."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, width = shape, shape.width
        self.w_in = _matrix(shape.kda_rows, shape.hidden)
        self.conv_w = nn.Parameter(torch.randn(3 * width, shape.conv) * shape.conv**-0.5)
        self.f_b = _matrix(width, shape.gate_rank, 0.3)
        self.a_log = nn.Parameter(torch.zeros(shape.heads))
        # decays e^-g with g spread over 1e-4..0.5 a step: memories of two to ten thousand tokens
        rate = torch.empty(width).uniform_(-9.2, -0.7).exp() / 5.0
        self.dt_bias = nn.Parameter(torch.log(rate / (1 - rate)))
        self.w_onorm = nn.Parameter(torch.ones(shape.head))
        self.w_o = _matrix(shape.hidden, width)

    def forward(self, x: torch.Tensor, fn: Pointwise) -> torch.Tensor:
        s = self.shape
        qkv, gate, low, strength, _ = torch.split(
            linear(x, self.w_in),
            [3 * s.width, s.width, s.gate_rank, s.heads, s.kda_rows - 4 * s.width - s.gate_rank - s.heads],
            dim=-1,
        )
        q, k, v = (_per(z, s.heads) for z in fn.short_conv(qkv, self.conv_w).chunk(3, dim=-1))
        rank_gate = _per(linear(low, self.f_b), s.heads)
        decay = fn.log_decay(rank_gate, self.a_log, self.dt_bias.view(s.heads, s.head))
        parts = (fn.unit(q) * s.head**-0.5, fn.unit(k), v, decay, torch.sigmoid(wide(strength)))
        q, k, v, decay, beta = (part.transpose(1, 2) for part in parts)
        out = delta_rule(q, k, v, decay, beta, fn.factors).transpose(1, 2)
        y = fn.gated_norm(out, self.w_onorm.to(x.dtype), _per(gate, s.heads))
        return linear(y.flatten(-2), self.w_o)


class Mla(nn.Module):
    """Attention over a latent and one shared key, nothing rotated, output gate. [b, t, hidden] -> the same."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.w_in = _matrix(shape.mla_rows, shape.hidden)
        self.w_qn = nn.Parameter(torch.ones(shape.q_lora))
        self.w_qb = _matrix(shape.heads * shape.query, shape.q_lora)
        self.w_uk = nn.Parameter(torch.randn(shape.heads, shape.head, shape.kv_lora) * shape.kv_lora**-0.5)
        self.w_kvn = nn.Parameter(torch.ones(shape.kv_lora))
        self.w_uv = nn.Parameter(torch.randn(shape.heads, shape.kv_lora, shape.head) * shape.kv_lora**-0.5)
        self.w_o = _matrix(shape.hidden, shape.width)

    def forward(self, x: torch.Tensor, fn: Pointwise) -> torch.Tensor:
        s, dtype = self.shape, x.dtype
        q_a, kv, shared, gate = torch.split(linear(x, self.w_in), [s.q_lora, s.kv_lora, s.rope, s.width], dim=-1)
        query = _per(linear(fn.rms_norm(q_a, self.w_qn.to(dtype)), self.w_qb), s.heads)
        latent = fn.rms_norm(kv, self.w_kvn.to(dtype))
        keys = _per(linear(latent, self.w_uk.flatten(0, 1)), s.heads)
        keys = torch.cat((keys, shared.unsqueeze(-2).expand(-1, -1, s.heads, -1)), dim=-1)
        values = _per(linear(latent, self.w_uv.mT.flatten(0, 1)), s.heads)
        # fused attention wants one width for keys and values
        values = F.pad(values, (0, s.rope))
        found = F.scaled_dot_product_attention(
            query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), is_causal=True, scale=s.query**-0.5
        )
        return linear(fn.gated(found[..., : s.head].transpose(1, 2).flatten(-2), gate), self.w_o)


class Dense(nn.Module):
    """[b, t, hidden] -> the same."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.w_gate_up = _matrix(2 * width, hidden)
        self.w_down = _matrix(hidden, width)

    def forward(self, x: torch.Tensor, fn: Pointwise) -> torch.Tensor:
        return linear(fn.gated_situ(linear(x, self.w_gate_up)), self.w_down)


class Moe(nn.Module):
    """Experts on a normed latent, beside a shared expert. `bias` is moved by the trainer, never by a gradient."""

    bias: torch.Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, scale = shape, shape.latent**-0.5
        self.w_router = _matrix(shape.experts, shape.hidden)
        self.register_buffer("bias", torch.zeros(shape.experts))
        self.w_latent = _matrix(shape.latent, shape.hidden)
        self.w13 = nn.Parameter(torch.randn(shape.experts, 2 * shape.expert, shape.latent) * scale)
        self.w2 = nn.Parameter(torch.randn(shape.experts, shape.latent, shape.expert) * shape.expert**-0.5)
        self.gamma = nn.Parameter(torch.ones(shape.latent))
        self.w_up = _matrix(shape.hidden, shape.latent)
        self.w_shared_gate_up = _matrix(2 * shape.shared, shape.hidden)
        self.w_shared_down = _matrix(shape.hidden, shape.shared)

    def route(self, x: torch.Tensor) -> torch.Tensor:
        """Weights of all experts [..., experts], wide: 0 for those not chosen, the others sum to 1."""
        scores = torch.sigmoid(F.linear(wide(x), wide(self.w_router.to(x.dtype))))
        chosen = (scores.detach() + self.bias).topk(self.shape.top_k, dim=-1).indices
        kept = scores * torch.zeros_like(scores).scatter_(-1, chosen, 1.0)
        return kept / (kept.sum(-1, keepdim=True) + 1e-20)

    def forward(
        self, x: torch.Tensor, fn: Pointwise, experts: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The row to add, and how many rows chose each expert [..., experts] as 0 or 1."""
        s = self.shape
        w13, w2 = experts
        weight = self.route(x)
        inner = _per(linear(linear(x, self.w_latent), w13.flatten(0, 1)), s.experts)
        hidden = fn.weighted_situ(inner, weight.to(x.dtype))
        routed = linear(hidden.flatten(-2), w2.transpose(0, 1).flatten(1, 2))
        up = linear(fn.rms_norm(routed, self.gamma.to(x.dtype)), self.w_up)
        shared = linear(fn.gated_situ(linear(x, self.w_shared_gate_up)), self.w_shared_down)
        return up + shared, weight.detach() > 0


class Layer(nn.Module):
    """One layer's modules: `pre` and `post` mixes, `kda` or `mla`, `dense` or `moe`."""

    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        self.pre, self.post = _Mix(shape), _Mix(shape)
        self.kda = None if shape.is_mla(index) else Kda(shape)
        self.mla = Mla(shape) if shape.is_mla(index) else None
        self.dense = Dense(shape.hidden, shape.dense) if index == 0 else None
        self.moe = Moe(shape) if index else None

    def attend(self, x: torch.Tensor, fn: Pointwise) -> torch.Tensor:
        mixer = self.kda if self.kda is not None else self.mla
        assert mixer is not None
        out: torch.Tensor = mixer(x, fn)
        return out


class NanoModel(nn.Module):
    """Token ids [b, t] -> normed rows [b, t, hidden] for the head, in `compute`; `head` gives the logits."""

    def __init__(self, shape: Shape, *, compute: torch.dtype, seed: int, fn: Pointwise | None = None) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = nn.Parameter(torch.randn(shape.vocab, shape.hidden))
            self.lm_head = _matrix(shape.vocab, shape.hidden)
            self.final = _Mix(shape)
            self.layers = nn.ModuleList(Layer(shape, i) for i in range(shape.layers))
        self.shape, self.compute = shape, compute
        self.fn = fn or Pointwise()

    def stack(self) -> list[Layer]:
        """The layers in order."""
        return [cast(Layer, layer) for layer in self.layers]

    def moes(self) -> list[Moe]:
        """The mixtures of experts in layer order."""
        return [layer.moe for layer in self.stack() if layer.moe is not None]

    def forward(self, ids: torch.Tensor, *, quantise: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows for the head, and which experts each token chose, bool [moe layers, b, t, experts].

        `quantise` rounds expert weights to MXFP4 on the way (the gradient passes as if it had not).
        """
        fn, s = self.fn, self.shape
        flat: list[torch.Tensor] = [w for m in self.moes() for w in (m.w13, m.w2)]
        flat = fake_mxfp4(flat) if quantise else flat
        experts = list(zip(flat[0::2], flat[1::2], strict=True))
        prefix = F.embedding(ids, self.embed).to(self.compute)
        delta: torch.Tensor | None = None
        blocks: list[torch.Tensor] = []
        chosen: list[torch.Tensor] = []
        for i, layer in enumerate(self.stack()):
            prefix = prefix if delta is None else prefix + delta
            attended = layer.attend(layer.pre([*blocks, prefix], fn), fn)
            if i % s.block == 0:  # the snapshot counts as a source from now on, the running sum restarts
                blocks.append(prefix)
                prefix = attended
            else:
                prefix = prefix + attended
            row = layer.post([*blocks, prefix], fn)
            if layer.dense is not None:
                delta = layer.dense(row, fn)
            if layer.moe is not None:
                delta, choice = layer.moe(row, fn, experts[len(chosen)])
                chosen.append(choice)
        assert delta is not None
        return self.final([*blocks, prefix + delta], fn), torch.stack(chosen)

    def head(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits [..., vocab] of rows [..., hidden], wide."""
        return wide(linear(rows, self.lm_head))


def fake_mxfp4(weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Each weight [..., k] rounded to MXFP4 in one go; gradients pass straight through."""
    near = mxfp4_round(torch.cat([w.detach().reshape(-1, 32) for w in weights]))
    parts = torch.split(near, [w.numel() // 32 for w in weights])
    pairs = zip(weights, parts, strict=True)
    return [_Straight.apply(w, part.view_as(w)) for w, part in pairs]  # type: ignore[no-untyped-call]


class _Straight(torch.autograd.Function):
    """The second tensor as the value, its gradient to the first: exact where `w + (near - w).detach()` would round."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
        return near.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def _matrix(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
    """[rows, columns] that keeps the variance of its input, times scale."""
    return nn.Parameter(torch.randn(rows, columns) * (scale * columns**-0.5))
