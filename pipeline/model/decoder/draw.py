"""Seeded weights whose activations have the statistics of a trained model, without a checkpoint.

What is imitated, since kernels meet it in service:
* residual growth: what a layer writes grows geometrically with depth, GROWTH times from the first to the last layer;
* outlier channels: about one residual channel in a thousand carries values OUTLIER times its neighbours', at most half
  of a row's energy, and the norms that feed a GEMM damp those channels, as trained norms do;
* routing skew: the learned-like router bias is normal with ROUTER_SKEW times the spread of the scores. Of 896 experts
  with 16 chosen, the most chosen tenth then gets about 45 % of the choices (10 % when even); of 16 with 4 chosen the
  effect is mild (`kgen.model.decoder.skew` measures it);
* decays from nearly 1 down to e^-5 (A = U(1, 16), dt normal), norm weights 1 +- 0.1, projections N(0, 1/K);
* experts: MXFP4 codes uniform over the sixteen values, E8M0 scales that give outputs of unit rms;
* logits with a standard deviation of about LOGIT_SCALE, so that top-1 gaps and KL have a natural size.

Not imitated: correlations between weights, real text. Values depend on (configuration, seed, device type).
"""

from collections.abc import Callable

import torch

from kgen.contract.families import generator, normal
from kgen.contract.op import Registry
from kgen.model.decoder.config import Config
from kgen.model.decoder.weights import Weights, expected

GROWTH = 2.0
OUTLIER = 30.0
OUTLIER_EVERY = 1024  # channels an outlier
DAMPED = 0.3  # norm weight of an outlier channel
QUERY_SCALE = 0.7  # standard deviation of the mix logits over the sources
# Of what writes into the residual: each adds a third to a fifth of a row.
GAINS = {"w_o": 0.6, "w_down": 1.0, "w_shared_down": 1.0, "w_up": 0.4}
ROUTER_SCALE = 1.0  # standard deviation of the router's logits
ROUTER_SKEW = 0.25  # standard deviation of the bias over that of the scores
SIGMOID_SLOPE = 0.25  # scores move by at most this for a unit of logit
LOGIT_SCALE = 3.0
E2M1_RMS = 2.9155  # root mean square of the sixteen e2m1 values: sqrt(68 / 8)
E8M0_BIAS = 127


def draw(config: Config, registry: Registry, seed: int, device: str) -> Weights:
    """Weights for a configuration; float32 where a serving engine keeps float32, experts as MXFP4 codes."""
    gen = generator(seed, device)
    table = expected(config, registry)
    hidden = table["embed"][1][1]
    boost = _boost(hidden, gen)
    last = max(1, len(config.layers) - 1)
    tensors: dict[str, torch.Tensor] = {}
    for name, (dtype, shape) in table.items():
        layer = int(name.split(".")[1]) if name.startswith("layers.") else 0
        maker = maker_of(name.rsplit(".", 1)[-1], boost, GROWTH ** (layer / last))
        tensors[name] = maker(shape, gen).to(dtype)
    return Weights(tensors)


Maker = Callable[[tuple[int, ...], torch.Generator], torch.Tensor]


def _boost(hidden: int, gen: torch.Generator) -> torch.Tensor:
    """float32 [hidden]: OUTLIER (less where that would be most of a row) in a few channels, 1 in the others."""
    count = max(1, hidden // OUTLIER_EVERY)
    boost = torch.ones(hidden, device=gen.device)
    boost[torch.randperm(hidden, generator=gen, device=gen.device)[:count]] = min(OUTLIER, (hidden / count) ** 0.5)
    return boost


def maker_of(kind: str, boost: torch.Tensor, gain: float) -> Maker:
    """How a tensor with this last part of its name is drawn."""
    if kind in GAINS:
        return lambda shape, gen: _projection(shape, gen) * (gain * GAINS[kind]) * boost[:, None]
    return {
        "embed": lambda shape, gen: normal(shape, gen) * boost,
        "lm_head": lambda shape, gen: normal(shape, gen, LOGIT_SCALE * shape[1] ** -0.5),
        "w_query": lambda shape, gen: normal(shape, gen, QUERY_SCALE * shape[0] ** -0.5),
        "w_out": lambda shape, gen: _norm(shape, gen) * torch.where(boost > 1, DAMPED, 1.0),
        "w_router": lambda shape, gen: _projection(shape, gen) * ROUTER_SCALE,
        "bias": lambda shape, gen: normal(shape, gen, ROUTER_SKEW * SIGMOID_SLOPE * ROUTER_SCALE),
        "conv_w": lambda shape, gen: normal(shape, gen, shape[1] ** -0.5) + 0.5,
        "a_log": lambda shape, gen: (1 + 15 * _uniform(shape, gen)).log(),
        "dt_bias": lambda shape, gen: normal(shape, gen),
        "w13": _codes,
        "w2": _codes,
        "s13": _scales,
        "s2": _scales,
    }.get(kind, _norm if kind in ("w_norm", "w_onorm", "w_qn", "w_kvn", "gamma") else _projection)


def _norm(shape: tuple[int, ...], gen: torch.Generator) -> torch.Tensor:
    return 1 + normal(shape, gen, 0.1)


def _projection(shape: tuple[int, ...], gen: torch.Generator) -> torch.Tensor:
    """N(0, 1/K), K the last dimension; batched [heads, in, out] tensors of the latent attention sum over `in`."""
    summed = shape[1] if len(shape) == 3 and shape[1] > shape[2] else shape[-1]
    return normal(shape, gen, summed**-0.5)


def _uniform(shape: tuple[int, ...], gen: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=gen, device=gen.device)


def _codes(shape: tuple[int, ...], gen: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=gen, device=gen.device, dtype=torch.uint8)


def _scales(shape: tuple[int, ...], gen: torch.Generator) -> torch.Tensor:
    """Exponents around the one that gives unit rms for a sum over K = 32 * shape[-1] unit values."""
    target = -torch.log2(torch.tensor(E2M1_RMS * (32 * shape[-1]) ** 0.5))
    spread = torch.randint(-1, 2, shape, generator=gen, device=gen.device)
    return (E8M0_BIAS + int(target.round()) + spread).to(torch.uint8)
