"""ranked_mla_dcp_merge: attended rows of a context that is split over the ranks, sent to their heads' owners, merged.

    rank r has lat_r [tokens, all heads, 512] and lse_r [tokens, all heads]    of its part of the cached rows
    for rank o and its heads h = o heads, ..., o heads + heads - 1:
    m   = max_r lse_r;  w_r = 2^(lse_r - m)                    per token and head
    lat = bf16(sum_r w_r lat_r / sum_r w_r)                    float32, in rank order; -0 counts as +0
    val = bf16(lat[h] @ w_uv[h]);  y = bf16(val * sigmoid(p[:, gate]))

With decode context parallelism every rank attends with the queries of all heads to the rows that it holds; head h
belongs to rank h // heads, which has w_uv and the gate of its heads. `lse` is in log2; an empty part has zero rows and
float32(-3e38); where all are empty, y is zero. What is right on a rank is what mla_dcp_merge says of the parts that
were sent to it. No output is the same on two ranks, so ranks are not compared; the sums run in rank order all the
same, so that a second run gives the same bits.

A mailbox's empty word is 0x80000000: the bf16 pair (+0, -0) among rows, -0 among lses. Senders turn -0 into +0.

Source: vLLM 0.33's Kimi K3 attention (absorbed MLA without rotation). Not covered: making the rows (mla_decode
lse=yes), gathering the queries of all heads beforehand.
"""

from collections.abc import Callable
from typing import ClassVar

import torch

from kgen.contract.op import Cost, Family, StockFn, Values
from kgen.contract.ranks import AXIS, RankedOp, as_sent, of_rank, ranks_of
from kgen.contract.tensors import Role, TensorSpec
from kgen.ops import mla_dcp_merge, mla_math, ranked_math
from kgen.ops.mla_dcp_merge import MlaDcpMerge
from kgen.ops.mla_math import LATENT, SIZES, tensor
from kgen.ops.pack import PACK
from kgen.ops.ranked_math import RANKS
from kgen.records import Problem


class _Owner(MlaDcpMerge):
    """The one rank that the parts of its heads have been sent to."""

    def sizes(self, problem: Problem) -> dict[str, int]:
        return {**super().sizes(problem), "ranks": ranks_of(problem)}


OWNER = _Owner()


def _received(values: Values, rank: int) -> Values:
    """Arguments of a heads' owner: what all ranks have of its heads."""
    mine, heads = of_rank(values, rank), tensor(values, "w_uv").shape[1]
    own = slice(rank * heads, (rank + 1) * heads)
    sent = {name: as_sent(tensor(values, name)[:, :, own]) for name in ("lat", "lse")}
    return {"w_uv": mine["w_uv"], "p": mine["p"], **sent}


class RankedMlaDcpMerge(RankedOp):
    name: ClassVar = "ranked_mla_dcp_merge"
    title: ClassVar = "MLA over a context split over ranks: rows to their heads' owners, merge, W_UV, sigmoid gate"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    dims: ClassVar = SIZES
    tensors: ClassVar = (
        TensorSpec("lat", "bf16", ("tokens", "all_heads", "latent"), Role.IN, "attended rows of this rank's part"),
        TensorSpec("lse", "f32", ("tokens", "all_heads"), Role.IN, "log2 of this part's softmax sum"),
        TensorSpec("w_uv", "bf16", ("heads", "latent", "value"), Role.WEIGHT, "value projection of each own head"),
        TensorSpec("p", "bf16", ("tokens", "in_width"), Role.IN, "own projected row; columns from gate_at on are read"),
        TensorSpec("y", "bf16", ("tokens", "width"), Role.OUT, "gated values, own head by own head"),
    )
    axes: ClassVar = {AXIS: tuple(n for n in RANKS if n != "1")}  # one part is what mla_out_gate takes
    same: ClassVar = ()
    families: ClassVar = (
        *MlaDcpMerge.families,
        Family("signed_zero", "half of the rows' values are -0"),
        Family("sentinel", "every other token: rows of the pair (+0, -0), lse -0, as an empty mailbox has them"),
    )
    shared: ClassVar = (mla_dcp_merge, mla_math, ranked_math)
    floor: ClassVar = MlaDcpMerge.floor
    mutable_inputs: ClassVar = ("lat", "p")
    sweep: ClassVar = {**MlaDcpMerge.sweep, AXIS: "2; 4, 8 and 16 as slots on one device"}

    def sizes(self, problem: Problem) -> dict[str, int]:
        size = super().sizes(problem)
        return {**size, "all_heads": size["heads"] * size[AXIS]}

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        """An owner's inputs each, dealt out to the ranks that send them."""
        kind = family if family in {f.name for f in MlaDcpMerge.families} else "normal"
        ranks = ranks_of(problem)
        owners = [OWNER.inputs(problem, kind, seed * 97 + owner, device) for owner in range(ranks)]
        lat, lse = (torch.cat([tensor(of, name) for of in owners], dim=2) for name in ("lat", "lse"))
        if family == "signed_zero":
            lat[..., ::2] = -0.0
        elif family == "sentinel":
            lat[:, ::2] = torch.tensor([0.0, -0.0], device=device).to(lat.dtype).repeat(LATENT // 2)
            lse[:, ::2] = -0.0
        own = {name: torch.stack([tensor(of, name) for of in owners]) for name in ("w_uv", "p")}
        return {"lat": lat, "lse": lse, **own}

    def stock(self, problem: Problem, compile: Callable[..., Callable[..., object]] | None = None) -> StockFn:
        run, ranks = OWNER.stock(problem, compile), ranks_of(problem)
        return lambda values: {"y": torch.stack([run(_received(values, rank))["y"] for rank in range(ranks)])}

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        each = [OWNER.reference(problem, _received(values, rank), rounded)["y"] for rank in range(ranks_of(problem))]
        return {"y": torch.stack(each)}

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """On every rank y is finite, and exactly 0 for a head whose parts are all empty."""
        found = super().hard_rules(problem, values, got)
        for rank in range(ranks_of(problem)):
            lines = OWNER.hard_rules(problem, _received(values, rank), {"y": got["y"][rank]})
            found += [f"rank {rank}: {line}" for line in lines]
        return found

    def cost(self, problem: Problem) -> Cost:
        """Of one rank: its rows of other owners read and its own heads' parts from all ranks, as an owner's merge."""
        s = self.sizes(problem)
        sent = (s[AXIS] - 1) * s["tokens"] * s["heads"] * (2 * LATENT + 4)
        merged = OWNER.cost(problem)
        return Cost(bytes=merged.bytes + sent, flops=merged.flops)
