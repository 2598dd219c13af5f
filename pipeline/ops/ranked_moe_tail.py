"""ranked_moe_tail: the end of the MoE block on all ranks: latent sum, norm, up shard, shared reduce-scatter, gather.

    L     = bf16(part_0 + ... + part_{T-1})               float32, in rank order; all of it on every rank
    n     = bf16(L rsqrt(mean(L^2) + eps) gamma)          mean and product in float32 or better
    up_r  = bf16(n @ w_up_r.T)                            rank r's columns of hidden
    rs_r  = bf16(shared_0 + ... + shared_{T-1})           its columns alone; float32, in rank order
    delta = bf16(up_0 + rs_0) | ... | bf16(up_{T-1} + rs_{T-1})      gathered: all columns on every rank

part and shared are a rank's own partial sums, w_up its rows of the up-projection: hidden / ranks columns each. gamma
and eps are the same on all ranks, and so must delta be, bit for bit: a column is computed by one rank and sent. What
else is right is what moe_tail says of one rank that holds all columns. A mailbox cannot hold the bf16 pair (+0, -0): a
-0 in part or shared counts as +0, and no column of delta is -0, on its own rank neither.

Source: vLLM 0.33's MoeTail (one-shot sums, multicast gather). Not covered: the weighted sum over slots (moe_experts).
"""

from collections.abc import Callable
from typing import ClassVar

import torch

from kgen.contract import quant
from kgen.contract.op import Cost, Family, StockFn, Values
from kgen.contract.ranks import AXIS, RankedOp, as_sent, ranks_of
from kgen.contract.tensors import Role, TensorSpec
from kgen.ops import dims_moe, moe_tail, ranked_math
from kgen.ops.dims_moe import LATENT
from kgen.ops.moe_tail import MoeTail
from kgen.ops.pack import HIDDEN, PACK
from kgen.ops.projection import tensor
from kgen.ops.ranked_math import RANKS, SWEPT_RANKS, shared_by_all
from kgen.records import Problem

SPREAD = 4  # of gamma beside moe_tail's: else it counts for little beside the shared partials of 16 ranks


class _Whole(MoeTail):
    """One rank that owns all columns and holds what all have sent."""

    def sizes(self, problem: Problem) -> dict[str, int]:
        return {**super().sizes(problem), "ranks": ranks_of(problem), "columns": HIDDEN[problem.dims]}


WHOLE = _Whole()


def _received(values: Values) -> Values:
    """Arguments of the rank that owns all columns."""
    return {
        "parts": tensor(values, "part"),
        "shared": tensor(values, "shared"),
        "gamma": tensor(values, "gamma")[0],
        "w_up": tensor(values, "w_up").flatten(0, 1),
        "eps": values["eps"],
    }


def _on_all(got: dict[str, torch.Tensor], ranks: int) -> dict[str, torch.Tensor]:
    return {"delta": shared_by_all(as_sent(got["delta"]), ranks)}


class RankedMoeTail(RankedOp):
    name: ClassVar = "ranked_moe_tail"
    title: ClassVar = "MoE tail on all ranks: latent sum, norm, up shard, shared-expert reduce-scatter, gather"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    dims: ClassVar = {d: {"hidden": HIDDEN[d], "latent": LATENT[d]} for d in HIDDEN}
    tensors: ClassVar = (
        TensorSpec("part", "bf16", ("tokens", "latent"), Role.IN, "this rank's routed partial sum"),
        TensorSpec("shared", "bf16", ("tokens", "hidden"), Role.IN, "this rank's shared-expert partial, all columns"),
        TensorSpec("gamma", "bf16", ("latent",), Role.WEIGHT, "norm weights, the same on all ranks"),
        TensorSpec("w_up", "bf16", ("columns", "latent"), Role.WEIGHT, "up-projection rows of own columns"),
        TensorSpec("delta", "bf16", ("tokens", "hidden"), Role.OUT, "what the block adds, all columns"),
    )
    scalars: ClassVar = MoeTail.scalars
    axes: ClassVar = {AXIS: RANKS}
    same: ClassVar = ("delta",)
    families: ClassVar = (
        *MoeTail.families,
        Family("sentinel", "every other token: partials of the pair (+0, -0), as an empty mailbox has them"),
    )
    floor: ClassVar = MoeTail.floor
    shared: ClassVar = (quant, dims_moe, moe_tail, ranked_math)
    sweep: ClassVar = {"tokens": "1-8, 16, 32, 64; 12, 24 and 48 padded", AXIS: SWEPT_RANKS}
    mutable_inputs: ClassVar = ("part", "shared")

    def sizes(self, problem: Problem) -> dict[str, int]:
        size = super().sizes(problem)
        return {**size, "columns": size["hidden"] // size[AXIS]}

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        ranks = ranks_of(problem)
        drawn = WHOLE.inputs(problem, "normal" if family == "sentinel" else family, seed, device)
        part, shared = tensor(drawn, "parts"), tensor(drawn, "shared")
        if family == "sentinel":
            for sent in (part, shared):
                sent[:, ::2, 1::2], sent[:, ::2, ::2] = -0.0, 0.0
        whole = tensor(drawn, "w_up")
        w_up = whole.reshape(ranks, -1, whole.shape[-1])
        gamma = shared_by_all((1 + SPREAD * (tensor(drawn, "gamma").float() - 1)).to(torch.bfloat16), ranks)
        return {"part": part, "shared": shared, "gamma": gamma, "w_up": w_up, "eps": drawn["eps"]}

    def stock(self, problem: Problem, compile: Callable[..., Callable[..., object]] | None = None) -> StockFn:
        run = WHOLE.stock(problem, compile)
        return lambda values: _on_all(run(_received(values)), ranks_of(problem))

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        return _on_all(WHOLE.reference(problem, _received(values), rounded), ranks_of(problem))

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """The same bits on all ranks, none of them -0; a token without latent has the sum of shared, rounded once."""
        found = super().hard_rules(problem, values, got)
        lines = WHOLE.hard_rules(problem, _received(values), {"delta": got["delta"][0]})
        found += [f"rank 0: {line}" for line in lines]
        if bool(((got["delta"] == 0) & got["delta"].signbit()).any()):
            found.append("a column of delta is -0, which no mailbox can carry")
        return found

    def cost(self, problem: Problem) -> Cost:
        """Of one rank: weights and partials, what the peers sent of latents, own columns and delta; delta written."""
        s = self.sizes(problem)
        weights, peers = s["columns"] * s["latent"], s[AXIS] - 1
        received = peers * (s["latent"] + s["columns"]) + s["hidden"] - s["columns"]
        moved = s["tokens"] * (s["latent"] + 2 * s["hidden"] + received)
        return Cost(bytes=2 * (weights + s["latent"] + moved), flops=2 * s["tokens"] * weights)
