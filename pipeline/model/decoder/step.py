"""One decode step, written once for every arithmetic: ops as an engine runs them, or float64 without roundings.

    x0 = embed[ids];  prefix = x0;  delta = none
    per layer:  a = AttnRes_pre(prefix, delta);  o = attention(a);  m = AttnRes_post(prefix, o);  delta = ffn(m)
    h = AttnRes_final(prefix, delta);  logits = lm_head(h)

A layer that opens a block snapshots the residual in AttnRes_pre and restarts the running sum from o. Rows are
`requests x q` tokens. A step reads and writes a State but does not advance it. Seats are bound once; a binder decides
what sits in each. Not covered: embedding and head across ranks; sampling.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kgen.contract.op import Registry, Values
from kgen.model.bind import Binder, OpCall
from kgen.model.decoder.attention import Kda, Mla, OutProjection
from kgen.model.decoder.config import KDA, MOE, Config, sizes
from kgen.model.decoder.ffn import Dense, Moe
from kgen.model.decoder.residual import Residual
from kgen.model.decoder.seats import Seats
from kgen.model.decoder.state import State
from kgen.model.decoder.weights import Weights
from kgen.ops.pack import RMS_EPS


@dataclass(frozen=True)
class Output:
    """`logits` [rows, vocab], `hidden` [rows, hidden] (what the head reads), `best` [rows]: the greedy token."""

    logits: torch.Tensor
    hidden: torch.Tensor
    best: torch.Tensor


class DecodeStep:
    """A model at `requests` requests of `q` tokens, with a callable in every op's seat: (ids [rows], state) -> Output.

    Raises ValueError (one line) for a number of rows that no token bin holds.
    """

    def __init__(
        self, config: Config, weights: Weights, requests: int, q: int, arch: str, binder: Binder, registry: Registry
    ) -> None:
        self.config, self.weights, self.requests, self.q = config, weights, requests, q
        self.seats = Seats(config, registry, requests * q, q, arch, binder)
        self._slots = sizes(registry.get("attn_res"), config.dims)["slots"]
        self._attention = [self._attend(i) for i in range(len(config.layers))]
        self._ffn = [self._feed(i) for i in range(len(config.layers))]
        self._pre = [self._mix(f"layers.{i}.pre", "delta" if i else "prefix_only") for i in range(len(config.layers))]
        self._out = [self._project(i) for i in range(len(config.layers))]
        self._final = self._mix("final", "final")
        self._head = self.seats.bind("lm_head_argmax", "lm_head", {"logits": "yes"})

    @property
    def rows(self) -> int:
        return self.requests * self.q

    def __call__(self, ids: torch.Tensor, state: State) -> Output:
        prefix = self.weights["embed"][ids]
        shape = (ids.shape[0], self._slots, prefix.shape[1])
        residual = Residual(prefix, torch.zeros(shape, dtype=prefix.dtype, device=prefix.device))
        for i in range(len(self.config.layers)):
            a = self._before(i, residual)
            y = self._attention[i](a, state)
            m = self._out[i](y, residual)
            residual.delta = self._ffn[i](m)
        done = self.config.finished_blocks(len(self.config.layers))
        got = self._final(self._mix_values("final", residual, done, -1))
        head = self._head({"h": got["out"], "w_head": self.weights["lm_head"], "base_id": 0})
        return Output(head["logits"], got["out"], head["id"])

    def _before(self, i: int, residual: Residual) -> torch.Tensor:
        """AttnRes before attention: adds the last delta, snapshots the row where a block opens."""
        write = i // self.config.block if self.config.opens_block(i) else -1
        values = self._mix_values(f"layers.{i}.pre", residual, self.config.finished_blocks(i), write)
        got = self._pre[i](values)
        residual.prefix, residual.blocks, residual.delta = got["prefix"], got["blocks"], None
        return got["out"]

    def _mix_values(self, name: str, residual: Residual, nb: int, write: int) -> Values:
        values: Values = {"prefix": residual.prefix, "blocks": residual.blocks, "nb": nb, "write_idx": write}
        values |= {**self.weights.part(name), "eps": RMS_EPS, "eps_out": RMS_EPS}
        return values if residual.delta is None else {**values, "delta": residual.delta}

    def _mix(self, seat: str, variant: str) -> OpCall:
        return self.seats.bind("attn_res", seat, {"variant": variant})

    def _attend(self, i: int) -> "Kda | Mla":
        kind = Kda if self.config.layers[i].attention == KDA else Mla
        return kind(i, self.seats, self.weights.part(f"layers.{i}.{self.config.layers[i].attention}"))

    def _project(self, i: int) -> "OutProjection":
        attention = self.config.layers[i].attention
        w_o = self.weights[f"layers.{i}.{attention}.w_o"]
        return OutProjection(i, self.seats, w_o, self.weights.part(f"layers.{i}.post"))

    def _feed(self, i: int) -> "Dense | Moe":
        kind = Moe if self.config.layers[i].ffn == MOE else Dense
        return kind(i, self.seats, self.weights.part(f"layers.{i}.{self.config.layers[i].ffn}"))

    def calls(self) -> Mapping[str, int]:
        """Problem key -> calls a step."""
        return Counter(problem.key for problem in self.seats.problems)
