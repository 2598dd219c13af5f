"""Seeded weights whose activations have the statistics of a trained model, without a checkpoint.

What is imitated, since kernels meet it in service:
* residual growth: what a layer writes grows geometrically with depth, GROWTH times from the first to the last layer;
* outlier channels: about one residual channel in a thousand carries values OUTLIER times its neighbours', at most half
  of a row's energy, and the norms that feed a GEMM damp those channels, as trained norms do;
* norm weights 1 +- 0.1; projections N(0, 1/K); router scores with clear gaps and a small learned-like bias;
* logits with a standard deviation of about LOGIT_SCALE, so that top-1 gaps and KL have a natural size.

Not imitated: correlations between weights, real routing skew, real text. Values depend on (dims, seed, device type).
"""

import dataclasses
from dataclasses import dataclass
from typing import TypeVar

import torch

from kgen.contract.families import generator, normal
from kgen.model.dims import CONV_TAPS, ModelDims

GROWTH = 2.0
OUTLIER = 30.0
OUTLIER_EVERY = 1024  # channels an outlier
DAMPED = 0.3  # norm weight of an outlier channel
QUERY_SCALE = 0.7  # standard deviation of the mix logits over the sources
SHARED_GAIN, ROUTED_GAIN, MIXER_GAIN = 1.0, 0.2, 0.6  # of the writers: each adds a third to a fifth of the residual
ROUTER_SCALE, ROUTER_BIAS = 2.0, 0.05
LOGIT_SCALE = 3.0

W = TypeVar("W")


@dataclass(frozen=True)
class MixNorm:
    """Vectors [hidden] of one AttnRes instance."""

    w_norm: torch.Tensor
    w_query: torch.Tensor
    w_out: torch.Tensor


@dataclass(frozen=True)
class MixerWeights:
    """Gated depthwise causal convolution over the last CONV_TAPS positions."""

    w_in: torch.Tensor  # [2 channels, hidden]: values, then gates
    taps: torch.Tensor  # float32 [channels, CONV_TAPS], oldest first
    w_out: torch.Tensor  # [hidden, channels]


@dataclass(frozen=True)
class RoutedWeights:
    """Router, latent projections and experts."""

    router: torch.Tensor  # float32 [experts, hidden]
    bias: torch.Tensor  # float32 [experts]: steers the choice, not the weight
    down: torch.Tensor  # [latent, hidden]
    gate_up: torch.Tensor  # [experts, 2 expert_width, latent]
    expert_down: torch.Tensor  # [experts, latent, expert_width]
    norm: torch.Tensor  # [latent]
    up: torch.Tensor  # [hidden, latent]


@dataclass(frozen=True)
class SharedWeights:
    w_gate_up: torch.Tensor  # [2 shared_width, hidden]
    w_down: torch.Tensor  # [hidden, shared_width]


@dataclass(frozen=True)
class LayerWeights:
    pre: MixNorm
    mixer: MixerWeights
    post: MixNorm
    shared: SharedWeights
    routed: RoutedWeights


@dataclass(frozen=True)
class ModelWeights:
    embed: torch.Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final: MixNorm
    head: torch.Tensor  # [vocab, hidden]


def draw(dims: ModelDims, seed: int, device: str) -> ModelWeights:
    """bf16 weights (float32 where a serving engine keeps float32)."""
    gen = generator(seed, device)
    count = max(1, dims.hidden // OUTLIER_EVERY)
    channels = torch.randperm(dims.hidden, generator=gen, device=gen.device)[:count]
    boost = torch.ones(dims.hidden, device=gen.device)
    boost[channels] = min(OUTLIER, (dims.hidden / count) ** 0.5)
    last = max(1, dims.layers - 1)
    layers = tuple(_layer(dims, gen, boost, GROWTH ** (i / last)) for i in range(dims.layers))
    embed = normal((dims.vocab, dims.hidden), gen) * boost
    head = normal((dims.vocab, dims.hidden), gen, LOGIT_SCALE * dims.hidden**-0.5)
    return ModelWeights(_bf16(embed), layers, _mix_norm(dims, gen, boost), _bf16(head))


def cast(weights: W, dtype: torch.dtype) -> W:
    """The same weights with every tensor in `dtype`."""
    if isinstance(weights, torch.Tensor):
        return weights.to(dtype)  # type: ignore[return-value]
    if isinstance(weights, tuple):
        return tuple(cast(item, dtype) for item in weights)  # type: ignore[return-value]
    fields = dataclasses.fields(weights)  # type: ignore[arg-type]
    return type(weights)(**{f.name: cast(getattr(weights, f.name), dtype) for f in fields})


def checksum(weights: object) -> int:
    """Sum over all bytes, position-blind: two processes that drew different weights disagree."""
    if isinstance(weights, torch.Tensor):
        return int(weights.contiguous().view(torch.uint8).sum(dtype=torch.int64))
    items = weights if isinstance(weights, tuple) else vars(weights).values()
    return sum(checksum(item) for item in items)


def _layer(dims: ModelDims, gen: torch.Generator, boost: torch.Tensor, gain: float) -> LayerWeights:
    return LayerWeights(
        pre=_mix_norm(dims, gen, boost),
        mixer=MixerWeights(
            w_in=_bf16(_projection(2 * dims.channels, dims.hidden, gen)),
            taps=normal((dims.channels, CONV_TAPS), gen, CONV_TAPS**-0.5) + 0.5,
            w_out=_bf16(_writer(dims.hidden, dims.channels, gen, boost, gain * MIXER_GAIN)),
        ),
        post=_mix_norm(dims, gen, boost),
        shared=SharedWeights(
            w_gate_up=_bf16(_projection(2 * dims.shared_width, dims.hidden, gen)),
            w_down=_bf16(_writer(dims.hidden, dims.shared_width, gen, boost, gain * SHARED_GAIN)),
        ),
        routed=_routed(dims, gen, boost, gain),
    )


def _routed(dims: ModelDims, gen: torch.Generator, boost: torch.Tensor, gain: float) -> RoutedWeights:
    experts, width = dims.experts, dims.expert_width
    return RoutedWeights(
        router=_projection(experts, dims.hidden, gen) * ROUTER_SCALE,
        bias=normal((experts,), gen, ROUTER_BIAS),
        down=_bf16(_projection(dims.latent, dims.hidden, gen)),
        gate_up=_bf16(normal((experts, 2 * width, dims.latent), gen, dims.latent**-0.5)),
        expert_down=_bf16(normal((experts, dims.latent, width), gen, width**-0.5)),
        norm=_bf16(1 + normal((dims.latent,), gen, 0.1)),
        up=_bf16(_writer(dims.hidden, dims.latent, gen, boost, gain * ROUTED_GAIN)),
    )


def _mix_norm(dims: ModelDims, gen: torch.Generator, boost: torch.Tensor) -> MixNorm:
    w_out = 1 + normal((dims.hidden,), gen, 0.1)
    return MixNorm(
        w_norm=_bf16(1 + normal((dims.hidden,), gen, 0.1)),
        w_query=_bf16(normal((dims.hidden,), gen, QUERY_SCALE * dims.hidden**-0.5)),
        w_out=_bf16(torch.where(boost > 1, w_out * DAMPED, w_out)),
    )


def _projection(rows: int, k: int, gen: torch.Generator) -> torch.Tensor:
    return normal((rows, k), gen, k**-0.5)


def _writer(rows: int, k: int, gen: torch.Generator, boost: torch.Tensor, gain: float) -> torch.Tensor:
    """A projection back into the residual: its outlier rows are boosted."""
    return _projection(rows, k, gen) * gain * boost[:, None]


def _bf16(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16)
