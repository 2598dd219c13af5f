"""What a layer is measured on: its weights, states and rows, drawn from a seed. One `Drawn` is one set of a rotation.

Weights are those of `kgen.model.decoder.draw` without outlier channels, of this rank's shard. Without skew the router's
bias is left out: independent rows then choose independent experts. States are drawn, not warmed: what they hold moves
no clock. Not covered: caches of 8 bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from kgen.contract.families import generator
from kgen.contract.op import Registry
from kgen.gates.layer.chain import Gathered, Placed
from kgen.gates.layer.points import SKEWED, Job, layer_of, model_of
from kgen.model.decoder.config import Config, sizes
from kgen.model.decoder.draw import maker_of
from kgen.model.decoder.residual import Residual
from kgen.model.decoder.state import State, new_state
from kgen.model.decoder.weights import expected

STATE_RMS = 0.3  # of the recurrent state: what unit keys leave after some tokens
DELTA_RMS = 0.5


@dataclass(frozen=True)
class Drawn:
    """One set. `state` is shared by all sides: `restore` brings back what a step changes in it."""

    config: Config
    layer: int
    weights: Mapping[str, torch.Tensor]
    state: Placed
    prefix: torch.Tensor  # [rows, hidden]
    blocks: torch.Tensor  # [rows, slots, hidden]
    delta: torch.Tensor  # [rows, hidden]
    gathered: Gathered
    before: Mapping[str, torch.Tensor]  # recurrent states as they were

    def residual(self, prefix: torch.Tensor | None = None) -> Residual:
        """Fresh: a step may write into `prefix`, which is a copy unless one is given."""
        return Residual(self.prefix.clone() if prefix is None else prefix, self.blocks, self.delta)

    def restore(self) -> None:
        for name, kept in self.before.items():
            _recurrent(self.state, self.layer)[name].copy_(kept)

    @property
    def nbytes(self) -> int:
        held = (*self.weights.values(), *self.state.cache.values(), *self.before.values(), *self.before.values())
        return sum(t.nbytes for t in held)

    def exact(self) -> "Drawn":
        """The same in float64, weights excepted: float64 ops take those as they are. Its state is a copy."""
        state = replace(
            self.state,
            conv={i: t.double() for i, t in self.state.conv.items()},
            s={i: t.double() for i, t in self.state.s.items()},
            cache={k: t.double() for k, t in self.state.cache.items()},
        )
        return replace(
            self,
            state=state,
            prefix=self.prefix.double(),
            blocks=self.blocks.double(),
            delta=self.delta.double(),
            gathered=self.gathered.double(),
            before={},
        )


def draw(job: Job, registry: Registry, number: int) -> Drawn:
    """Set `number` of a job. Raises ValueError (one line) for a point that does not exist."""
    point, config = job.point, model_of(job.point.setting)
    layer, gen = layer_of(config, point.kind), generator(job.seed + number, job.device)
    weights = _weights(config, layer, registry, gen, job.routing != SKEWED)
    state = _state(config, layer, registry, job, gen)
    hidden, slots = (sizes(registry.get("attn_res"), config.dims)[n] for n in ("hidden", "slots"))
    rows = (point.tokens, hidden)
    return Drawn(
        config=config,
        layer=layer,
        weights=weights,
        state=state,
        prefix=_normal(rows, gen),
        blocks=_normal((point.tokens, slots, hidden), gen),
        delta=_normal(rows, gen, DELTA_RMS),
        gathered=_gathered(config, registry, point.tokens, gen),
        before={name: t.clone() for name, t in _recurrent(state, layer).items()},
    )


def _normal(shape: tuple[int, ...], gen: torch.Generator, rms: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, generator=gen, device=gen.device) * rms).to(torch.bfloat16)


def _weights(
    config: Config, layer: int, registry: Registry, gen: torch.Generator, even: bool
) -> dict[str, torch.Tensor]:
    start = f"layers.{layer}."
    hidden = sizes(registry.get("attn_res"), config.dims)["hidden"]
    own = {
        "moe.w_latent": sizes(registry.get("moe_latent_down"), config.dims)["latent"],
        "moe.w_up": sizes(registry.get("moe_tail"), config.dims)["columns"],
    }
    plain = torch.ones(hidden, device=gen.device)
    drawn: dict[str, torch.Tensor] = {}
    for whole, (dtype, shape) in expected(config, registry).items():
        if not whole.startswith(start):
            continue
        name = whole.removeprefix(start)
        mine = (own.get(name, shape[0]), *shape[1:])
        boost = plain[: mine[0]] if name in own else plain
        made = maker_of(name.rsplit(".", 1)[-1], boost, 1.0)(mine, gen).to(dtype)
        drawn[name] = torch.zeros_like(made) if name == "moe.bias" and even else made
    return drawn


def _recurrent(state: State, layer: int) -> dict[str, torch.Tensor]:
    return {"conv": state.conv[layer], "s": state.s[layer]} if layer in state.s else {}


def _state(config: Config, layer: int, registry: Registry, job: Job, gen: torch.Generator) -> Placed:
    point = job.point
    context = max(1, point.context)
    found = new_state(config, registry, point.tokens, 1, context, job.device)
    found.lengths.fill_(context - 1)
    for name, part in (("conv", found.conv), ("s", found.s), ("cache", found.cache)):
        for key in [k for k in part if (k[0] if isinstance(k, tuple) else k) != layer]:
            del part[key]  # type: ignore[arg-type]
        for tensor in part.values():
            rms = STATE_RMS if name == "s" else 1.0
            tensor.copy_(torch.randn(tensor.shape, generator=gen, device=gen.device, dtype=tensor.dtype) * rms)
    return Placed(**{name: getattr(found, name) for name in State.__dataclass_fields__})


def _gathered(config: Config, registry: Registry, rows: int, gen: torch.Generator) -> Gathered:
    """None where this rank has no peers."""
    tail = sizes(registry.get("moe_tail"), config.dims)
    ranks = tail["ranks"]
    if ranks == 1:
        return Gathered()
    share = ranks**-0.5
    return Gathered(
        latent=_normal((rows, tail["latent"]), gen),
        parts=_normal((ranks, rows, tail["latent"]), gen, share),
        shared=_normal((ranks, rows, tail["columns"]), gen, share),
    )
