"""One layer of the decode model on its own, as one rank runs it: the model's own parts, without its stand-ins.

The decode model runs on one device what several ranks share, and fills mailboxes that peers would fill: a dozen small
copies a layer that no deployment makes. Here a rank runs its own shard, and what a collective would bring lies there
already (`Gathered`), for every side of a comparison alike. A rank without peers hands its tensors on as they are, so
that the layer is whole. Places in states are worked out once, ahead of the step.

`Lanes` runs a piece of work beside another on a second stream: a fork and a join, which a CUDA graph keeps.
Not covered: layers that open a block, verify widths, contexts over several shards.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from kgen.contract.op import Registry, Values
from kgen.model.bind import Binder
from kgen.model.decoder.attention import MLA_SCALE, Kda, Mla, OutProjection, keep
from kgen.model.decoder.config import KDA, Config
from kgen.model.decoder.ffn import Moe, Part
from kgen.model.decoder.residual import Residual
from kgen.model.decoder.seats import Seats
from kgen.model.decoder.state import State
from kgen.ops.pack import RMS_EPS

T = TypeVar("T")
cuda: Any = torch.cuda  # parts of it carry no types


class Lanes:
    """`side`: the stream that work may run on beside the current one; None: one thing after the other."""

    def __init__(self, side: Any = None) -> None:
        self.side = side

    def beside(self, work: Callable[[], T]) -> Callable[[], T]:
        """Starts the work; the result may be handed on at once, and may be read on the current stream after the join,
        which is what is returned."""
        if self.side is None:
            done = work()
            return lambda: done
        self.side.wait_stream(cuda.current_stream())
        with cuda.stream(self.side):
            started = work()

        def join() -> T:
            cuda.current_stream().wait_stream(self.side)
            return started

        return join


@dataclass(frozen=True)
class Gathered:
    """What collectives have brought to this rank: the whole latent [rows, latent], all ranks' routed partial sums
    [ranks, rows, latent], and of the shared expert [ranks, rows, columns]. All None for a rank without peers."""

    latent: torch.Tensor | None = None
    parts: torch.Tensor | None = None
    shared: torch.Tensor | None = None

    def double(self) -> "Gathered":
        return Gathered(*(None if t is None else t.double() for t in (self.latent, self.parts, self.shared)))


@dataclass
class Placed(State):
    """A state whose places are worked out when it is made: a step launches nothing for them."""

    def __post_init__(self) -> None:
        self._slots, self._lengths = super().slots(), super().request_lengths()
        self._cache_slots = [super(Placed, self).cache_slots(shard) for shard in range(self.dcp)]

    def slots(self) -> torch.Tensor:
        return self._slots

    def request_lengths(self) -> torch.Tensor:
        return self._lengths

    def cache_slots(self, shard: int, positions: torch.Tensor | None = None) -> torch.Tensor:
        return self._cache_slots[shard] if positions is None else super().cache_slots(shard, positions)


class RankMla(Mla):
    """The cache row is written beside the query. Plain decoding of a whole context."""

    def __init__(self, layer: int, seats: Seats, w: Part, lanes: Lanes) -> None:
        super().__init__(layer, seats, w)
        self.lanes = lanes

    def __call__(self, a: torch.Tensor, state: State) -> torch.Tensor:
        p, cache, lengths = self.project(a), state.cache[self.layer, 0], state.request_lengths()
        written = self.lanes.beside(lambda: self.append(0, p, state.cache_slots(0), cache))
        query = self.query(p)
        keep(cache, written())
        where = {"block_table": state.block_table, "lengths": lengths}
        scalars = {"sm_scale": MLA_SCALE, "out_scale": 1.0, "shard": 0, "shards": 1}
        lat = self._attend[0]({"query": query, "cache": cache, **where, **scalars})["lat"]
        return self.gate({"lat": lat, "w_uv": self.w["w_uv"], "p": p, "lengths": lengths})["y"]


class RankOut(OutProjection):
    """Where one op joins projection, sum over ranks and residual mix, its mailbox lies there from the start: of a rank
    without peers, that reads nothing of it."""

    def __init__(self, layer: int, seats: Seats, w_o: torch.Tensor, mix: Part) -> None:
        super().__init__(layer, seats, w_o, mix)
        self.mailbox = w_o.new_zeros((1, seats.rows, w_o.shape[0])) if self.fused is not None else None

    def __call__(self, y: torch.Tensor, residual: Residual) -> torch.Tensor:
        if self.fused is None or self.mailbox is None:
            return super().__call__(y, residual)
        values: Values = {**self.mix, "y": y, "w_o": self.w_o, "peers": self.mailbox, "rank": 0}
        values |= {"prefix": residual.prefix, "blocks": residual.blocks, "nb": self.done}
        got = self.fused({**values, "eps": RMS_EPS, "eps_out": RMS_EPS})
        residual.prefix, residual.blocks = got["prefix"], got["blocks"]
        return got["out"]


class RankMoe(Moe):
    """This rank's shard of the latent projections; the shared expert runs beside router and experts."""

    def __init__(self, layer: int, seats: Seats, w: Part, lanes: Lanes, gathered: Gathered) -> None:
        """`w`: with the rows of `w_latent` and `w_up` that this rank has."""
        super().__init__(layer, seats, w)
        self.lanes, self.gathered = lanes, gathered

    def __call__(self, m: torch.Tensor) -> torch.Tensor:
        w, brought = self.w, self.gathered
        gate_up, down = w["w_shared_gate_up"], w["w_shared_down"]
        shared = self.lanes.beside(lambda: self._shared({"m": m, "w_gate_up": gate_up, "w_down": down})["y"])
        chosen = self._router({"m": m, "w_router": w["w_router"], "bias": w["bias"], "scale": 1.0})
        ((project, rows),) = self._down
        lat = project({"m": m, "w_latent": rows})["lat"]
        lat = lat if brought.latent is None else brought.latent
        quantised = {n: w[n] for n in ("w13", "s13", "w2", "s2")}
        part = self._experts({"lat": lat, "ids": chosen["ids"], "w": chosen["w"], **quantised})["part"]
        sums = shared()
        ((tail, _),) = self._tail
        values: Values = {
            "parts": part.unsqueeze(0) if brought.parts is None else brought.parts,
            "shared": sums.unsqueeze(0) if brought.shared is None else brought.shared,
            "gamma": w["gamma"],
            "w_up": w["w_up"],
            "eps": RMS_EPS,
        }
        return tail(values)["delta"]


class OneLayer:
    """(residual, state) -> the delta that the next layer would add: AttnRes, attention, projection, AttnRes, MoE.

    `weights`: the layer's own, by the rest of their names behind `layers.<i>.`. Raises ValueError (one line) for a
    number of rows that no token bin holds.
    """

    def __init__(
        self,
        config: Config,
        layer: int,
        weights: Mapping[str, torch.Tensor],
        rows: int,
        arch: str,
        binder: Binder,
        registry: Registry,
        lanes: Lanes,
        gathered: Gathered,
    ) -> None:
        def part(name: str) -> Part:
            return {n.removeprefix(f"{name}."): t for n, t in weights.items() if n.startswith(f"{name}.")}

        kind = config.layers[layer].attention
        self.seats = Seats(config, registry, rows, 1, arch, binder)
        self._mix, self._done = part("pre"), config.finished_blocks(layer)
        self._pre = self.seats.bind("attn_res", f"layers.{layer}.pre", {"variant": "delta"})
        self._attention: Kda | Mla = (
            Kda(layer, self.seats, part(kind)) if kind == KDA else RankMla(layer, self.seats, part(kind), lanes)
        )
        self._out = RankOut(layer, self.seats, weights[f"{kind}.w_o"], part("post"))
        self._ffn = RankMoe(layer, self.seats, part("moe"), lanes, gathered)

    def __call__(self, residual: Residual, state: State) -> torch.Tensor:
        assert residual.delta is not None, "a layer in the middle of a block has something to add"
        values: Values = {"prefix": residual.prefix, "delta": residual.delta, "blocks": residual.blocks, **self._mix}
        scalars = {"nb": self._done, "write_idx": -1, "eps": RMS_EPS, "eps_out": RMS_EPS}
        got = self._pre({**values, **scalars})
        residual.prefix, residual.blocks, residual.delta = got["prefix"], got["blocks"], None
        residual.delta = self._ffn(self._out(self._attention(got["out"], state), residual))
        return residual.delta
