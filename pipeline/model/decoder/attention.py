"""The two attention kinds and the output projection of a layer, seated on the ops.

Attention maps the mixed row [rows, hidden] to this rank's heads [rows, d] and updates the State's tensors; the output
projection maps those to the row that the FFN reads, residual mix included.
"""

from collections.abc import Mapping

import torch

from kgen.contract.op import Values
from kgen.model.bind import OpCall
from kgen.model.decoder.config import FUSED_OPROJ
from kgen.model.decoder.residual import Residual
from kgen.model.decoder.seats import Seats
from kgen.model.decoder.state import State
from kgen.ops.mla_math import EMPTY_LSE
from kgen.ops.pack import RMS_EPS

Part = Mapping[str, torch.Tensor]
KDA_LOWER_BOUND, KDA_SCALE, KDA_QK_EPS = -5.0, 128**-0.5, 1e-6
MLA_SCALE = 192**-0.5


class Kda:
    def __init__(self, layer: int, seats: Seats, w: Part) -> None:
        self.layer, self.w, self.verify = layer, w, seats.q > 1
        self._in = seats.bind("kda_in_proj", f"layers.{layer}.in_proj")
        self._core = seats.bind("kda_core", f"layers.{layer}.core", {"q": str(seats.q)})

    def project(self, a: torch.Tensor) -> torch.Tensor:
        return self._in({"x": a, "w_in": self.w["w_in"]})["p"]

    def __call__(self, a: torch.Tensor, state: State) -> torch.Tensor:
        w, p = self.w, self.project(a)
        values = {n: w[n] for n in ("conv_w", "f_b", "a_log", "dt_bias", "w_onorm")}
        conv, s = state.conv[self.layer], state.s[self.layer]
        places = {"slots": state.slots(), **({"accepted": state.accepted} if self.verify else {})}
        scalars = {"lower_bound": KDA_LOWER_BOUND, "scale": KDA_SCALE, "eps_qk": KDA_QK_EPS, "eps": RMS_EPS}
        got = self._core({"p": p, **values, "conv": conv, "s": s, **places, **scalars})
        keep(conv, got["conv"])
        keep(s, got["s"])
        return got["y"]


class Mla:
    def __init__(self, layer: int, seats: Seats, w: Part) -> None:
        self.layer, self.w, self.dcp = layer, w, seats.config.dcp
        self._in = seats.bind("mla_in_proj", f"layers.{layer}.in_proj")
        self._query = seats.bind("mla_q", f"layers.{layer}.query")
        shards = range(self.dcp)
        self._append = [seats.bind("mla_kv_append", f"layers.{layer}.append.{r}") for r in shards]
        axes = {"q": str(seats.q), "lse": "no" if self.dcp == 1 else "yes"}
        self._attend = [seats.bind("mla_decode", f"layers.{layer}.attend.{r}", axes) for r in shards]
        joined = "mla_out_gate" if self.dcp == 1 else "mla_dcp_merge"
        self.gate: OpCall = seats.bind(joined, f"layers.{layer}.value")
        self._empty = 0 if self.dcp == 1 else max(0, seats.sizes(joined)["ranks"] - self.dcp)

    def project(self, a: torch.Tensor) -> torch.Tensor:
        return self._in({"x": a, "w_in": self.w["w_in"]})["p"]

    def query(self, p: torch.Tensor) -> torch.Tensor:
        own = {n: self.w[n] for n in ("w_qn", "w_qb", "w_uk")}
        return self._query({"p": p, **own, "eps": RMS_EPS, "q_scale_inv": 1.0})["query"]

    def append(self, shard: int, p: torch.Tensor, slots: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        """The shard's cache with the new rows in it."""
        values = {"p": p, "w_kvn": self.w["w_kvn"], "slots": slots, "cache": cache}
        return self._append[shard]({**values, "eps": RMS_EPS, "k_scale_inv": 1.0})["cache"]

    def __call__(self, a: torch.Tensor, state: State) -> torch.Tensor:
        w_uv, p = self.w["w_uv"], self.project(a)
        query = self.query(p)
        found = [self._shard(r, p, query, state) for r in range(self.dcp)]
        if self.dcp == 1:
            lengths = state.request_lengths().repeat_interleave(state.q)
            return self.gate({"lat": found[0]["lat"], "w_uv": w_uv, "p": p, "lengths": lengths})["y"]
        lat, lse = (torch.stack([f[name] for f in found]) for name in ("lat", "lse"))
        if self._empty:  # the op merges what all ranks of its group hold: those without a part of the context, nothing
            lat = torch.cat([lat, lat.new_zeros((self._empty, *lat.shape[1:]))])
            lse = torch.cat([lse, lse.new_full((self._empty, *lse.shape[1:]), EMPTY_LSE)])
        return self.gate({"lat": lat, "lse": lse, "w_uv": w_uv, "p": p})["y"]

    def _shard(self, r: int, p: torch.Tensor, query: torch.Tensor, state: State) -> dict[str, torch.Tensor]:
        """Append this step's rows to one shard and attend to it."""
        cache = state.cache[self.layer, r]
        keep(cache, self.append(r, p, state.cache_slots(r), cache))
        where = {"block_table": state.block_table, "lengths": state.request_lengths()}
        scalars = {"sm_scale": MLA_SCALE, "out_scale": 1.0, "shard": r, "shards": self.dcp}
        return self._attend[r]({"query": query, "cache": cache, **where, **scalars})


class OutProjection:
    """o = y Wo^T summed over ranks (peers hold zeros), then AttnRes_post; fused into one op where the model says so."""

    def __init__(self, layer: int, seats: Seats, w_o: torch.Tensor, mix: Part) -> None:
        config = seats.config
        self.w_o, self.mix = w_o, mix
        self.opens, self.done = config.opens_block(layer), config.finished_blocks(layer) + config.opens_block(layer)
        variant = {"variant": "prefix_only" if self.opens else "delta"}
        self.fused: OpCall | None = None
        if config.fused_oproj:
            self.fused = seats.bind(FUSED_OPROJ, f"layers.{layer}.oproj", variant)
            self._ranks = seats.sizes(FUSED_OPROJ)["ranks"]
        else:
            self._project = seats.bind("oproj_partial", f"layers.{layer}.oproj")
            self._mix = seats.bind("attn_res", f"layers.{layer}.post", variant)

    def __call__(self, y: torch.Tensor, residual: Residual) -> torch.Tensor:
        values: Values = {**self.mix, "blocks": residual.blocks, "nb": self.done, "write_idx": -1}
        values |= {"eps": RMS_EPS, "eps_out": RMS_EPS}
        if self.fused is not None:
            peers = residual.prefix.new_zeros((self._ranks, *residual.prefix.shape))
            got = self.fused({**values, "y": y, "w_o": self.w_o, "peers": peers, "rank": 0, "prefix": residual.prefix})
        else:
            o = self._project({"y": y, "w_o": self.w_o})["part"]
            moved: Values = {"prefix": o} if self.opens else {"prefix": residual.prefix, "delta": o}
            got = self._mix({**values, **moved})
        residual.prefix, residual.blocks = got["prefix"], got["blocks"]
        return got["out"]


def keep(own: torch.Tensor, got: torch.Tensor) -> None:
    """A state that an op returned as a new tensor goes back where sequences keep it."""
    if got.data_ptr() != own.data_ptr():
        own.copy_(got)
