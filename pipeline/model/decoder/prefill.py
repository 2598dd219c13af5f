"""Prompts: many tokens of each sequence at once, with the stock ops and plain attention. Plain torch.

    prefill(session, ids)     ids int64 [length, count] -> Output of the last position; the session goes on from there

Row-wise ops run as they do in a step, with more rows; KDA runs in its chunked form, MLA attends to the cache rows of
each sequence. An engine does not run promoted kernels here, so this does not either. A float64 session is
prefilled in float64. All sequences have the same length; ragged prompts: prefill the shared length, then decode.
"""

import torch

from kgen.contract.op import Registry
from kgen.model.bind import Binder, ReferenceBinder, StockBinder
from kgen.model.decoder import chunked
from kgen.model.decoder.attention import KDA_LOWER_BOUND, KDA_QK_EPS, KDA_SCALE, MLA_SCALE, Kda, Mla, Part, keep
from kgen.model.decoder.config import KDA, Config
from kgen.model.decoder.seats import Seats
from kgen.model.decoder.session import Session
from kgen.model.decoder.state import State
from kgen.model.decoder.step import DecodeStep, Output
from kgen.model.decoder.weights import Weights
from kgen.ops import kda_math
from kgen.ops.pack import RMS_EPS

CHUNK_VALUES = 1 << 23  # of the hidden rows of a chunk, over all sequences
SCORES = 1 << 27  # attention scores held at a time
GATHERED = 1 << 28  # values of cached rows held at a time
CONSTANTS = kda_math.Constants(KDA_LOWER_BOUND, KDA_SCALE, KDA_QK_EPS, RMS_EPS)


class KdaSequence(Kda):
    def __call__(self, a: torch.Tensor, state: State) -> torch.Tensor:
        p = self.project(a)
        exact = p.dtype == torch.float64
        wide = torch.float64 if exact else torch.float32
        own = kda_math.Weights(*(self.w[n] for n in ("conv_w", "f_b", "a_log", "dt_bias", "w_onorm"))).to(wide)
        first = state.slots().reshape(state.requests, -1)[state.active, 0].long()
        conv, s = state.conv[self.layer], state.s[self.layer]
        taps = conv[first][..., : own.conv_w.shape[1] - 1]
        rows = p.to(wide).reshape(first.shape[0], -1, p.shape[1])
        y, taps, after = chunked.sequence(rows, taps.to(wide), s[first].to(wide), own, CONSTANTS, not exact)
        conv[first, :, : taps.shape[-1]] = taps.to(conv.dtype)
        s[first] = after.to(s.dtype)
        return y.flatten(0, 1).to(p.dtype)


class MlaSequence(Mla):
    def __init__(self, layer: int, seats: Seats, w: Part) -> None:
        super().__init__(layer, seats, w)
        self.gate = seats.bind("mla_out_gate", f"layers.{layer}.value")  # shards are read together here

    def __call__(self, a: torch.Tensor, state: State) -> torch.Tensor:
        p = self.project(a)
        query = self.query(p)
        count = int(state.active.sum())
        length = p.shape[0] // count
        start = int(state.lengths[0])
        position = (start + torch.arange(length, device=p.device)).repeat(state.requests)
        for r in range(self.dcp):
            slots = state.cache_slots(r, position)[: p.shape[0]]  # the active requests come first
            cache = state.cache[self.layer, r]
            keep(cache, self.append(r, p, slots, cache))
        per = query.reshape(count, length, *query.shape[1:])
        lat = self._attend_all(per, state, start + length)
        lengths = torch.full((p.shape[0],), start + length, dtype=torch.int32, device=p.device)
        return self.gate({"lat": lat.to(p.dtype), "w_uv": self.w["w_uv"], "p": p, "lengths": lengths})["y"]

    def _attend_all(self, query: torch.Tensor, state: State, end: int) -> torch.Tensor:
        """Causal, of the last n of `end` positions: query [count, n, heads, 576] -> [count * n, heads, 512]."""
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        found = []
        for first in range(0, query.shape[0], step := max(1, GATHERED // (end * query.shape[-1]))):
            part = query[first : first + step]
            rows = state.cached(self.layer, slice(first, first + part.shape[0]), end)
            found.append(_causal(part.to(wide), rows.to(wide)))
        return torch.cat(found).flatten(0, 1)


def _causal(query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """query [count, n, heads, 576] at the last n positions of rows [count, m, 576] -> [count, n, heads, 512]."""
    count, n, heads, _ = query.shape
    m = rows.shape[1]
    column, found = torch.arange(m, device=rows.device), []
    for at in range(0, n, step := max(1, SCORES // (count * heads * m))):
        part = query[:, at : at + step]
        last = m - n + at + torch.arange(part.shape[1], device=rows.device)
        scores = part.flatten(1, 2) @ rows.mT * MLA_SCALE
        scores = scores.view(*part.shape[:3], m).masked_fill(column > last[:, None, None], -torch.inf)
        found.append((torch.softmax(scores, -1).flatten(1, 2) @ rows[..., :512]).view(*part.shape[:3], -1))
    return torch.cat(found, dim=1)


class PrefillStep(DecodeStep):
    """A step over any number of rows; its seats hold the stock ops, or the float64 references."""

    def __init__(self, config: Config, weights: Weights, arch: str, registry: Registry) -> None:
        exact = weights["embed"].dtype == torch.float64
        binder: Binder = ReferenceBinder() if exact else StockBinder()
        super().__init__(config, weights, 1, 1, arch, binder, registry)

    def _attend(self, i: int) -> Kda | Mla:
        attention = self.config.layers[i].attention
        kind = KdaSequence if attention == KDA else MlaSequence
        return kind(i, self.seats, self.weights.part(f"layers.{i}.{attention}"))


def prefill(session: Session, ids: torch.Tensor) -> Output:
    """Feed ids [length, count] to a session of `count` sequences that have equal lengths; rows of the result: [count].

    Raises ValueError when the context is too small, or after a verify step that kept several tokens.
    """
    step = PrefillStep(session.step.config, session.step.weights, "", session.step.seats.registry)
    session.make_room(ids.shape[0])
    chunk = max(1, CHUNK_VALUES // (session.count * session.step.weights["embed"].shape[1]))
    for part in torch.split(ids, chunk):
        out = step(part.T.reshape(-1), session.state)
        session.skip(part.shape[0])
    last = torch.arange(session.count, device=ids.device) * part.shape[0] + part.shape[0] - 1
    return Output(out.logits[last], out.hidden[last], out.best[last])
