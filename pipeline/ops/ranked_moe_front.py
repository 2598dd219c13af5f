"""ranked_moe_front: router and latent down-projection of the MoE block, split over the ranks, and gathered on all.

    logits_r = m @ w_router_r.T                           float32, kept float32; rank r's experts
    lat_r    = bf16(m @ w_latent_r.T)                     rank r's columns of the latent
    logits, lat = those of all ranks, in rank order       on every rank
    ids, w   = what moe_router (class exact) makes of the logits, with bias and scale

m, bias and scale are the same on all ranks; w_router and w_latent are a rank's own rows, experts / ranks and latent /
ranks of them. ids, w and lat must be the same on all ranks bit for bit: a rank that routed a token otherwise would add
an expert that no other rank computes. What else is right is what moe_router and moe_latent_down say of one rank that
holds all rows. A mailbox's empty word is 0x80000000, a float32 -0 among logits and the pair (+0, -0) among latents:
senders turn -0 into +0, and no element of lat is -0, on its own rank neither.

Source: vLLM 0.33's MoE front for two tokens and more (router shard and latent shard in one GEMM, gathered through a
mailbox row). Not covered: the norm before it, the shared expert's gate and up, MXFP8 of the latent.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch

from kgen.contract.op import Cost, Family, StockFn, Values
from kgen.contract.ranks import AXIS, RankedOp, as_sent, ranks_of
from kgen.contract.rules import ByOp
from kgen.contract.tensors import Role, TensorSpec
from kgen.ops import dims_moe, moe_latent_down, moe_router, projection, ranked_math, router_rules
from kgen.ops.dims_moe import EXPERTS, LATENT, TOP_K
from kgen.ops.moe_latent_down import MoeLatentDown
from kgen.ops.moe_router import MoeRouter
from kgen.ops.pack import HIDDEN, PACK
from kgen.ops.projection import tensor
from kgen.ops.ranked_math import RANKS, SWEPT_RANKS, shared_by_all
from kgen.records import Problem

VANISHING = 2.0**-100  # its square is zero in float32


class _WholeLatent(MoeLatentDown):
    """One rank that holds all rows."""

    def sizes(self, problem: Problem) -> dict[str, int]:
        return {**super().sizes(problem), "latent": LATENT[problem.dims]}


ROUTER, DOWN = MoeRouter(), _WholeLatent()


def _of_router(problem: Problem) -> Problem:
    return replace(problem, axes={"class": "exact", "logits": "no"})


def _routed(values: Values) -> Values:
    """Arguments of the one rank that routes with all experts."""
    return {
        "m": tensor(values, "m")[0],
        "w_router": tensor(values, "w_router").flatten(0, 1),
        "bias": tensor(values, "bias")[0],
        "scale": values["scale"],
    }


def _projected(values: Values) -> Values:
    """Arguments of the one rank that holds all columns of the latent."""
    return {"m": tensor(values, "m")[0], "w_latent": tensor(values, "w_latent").flatten(0, 1)}


def _on_all(routed: dict[str, torch.Tensor], down: dict[str, torch.Tensor], ranks: int) -> dict[str, torch.Tensor]:
    return {name: shared_by_all(value, ranks) for name, value in {**routed, "lat": as_sent(down["lat"])}.items()}


class RankedMoeFront(RankedOp):
    name: ClassVar = "ranked_moe_front"
    title: ClassVar = "MoE front on all ranks: router and latent shards, gathered, and the choice of experts"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    dims: ClassVar = {
        d: {"hidden": HIDDEN[d], "experts": EXPERTS[d], "top_k": TOP_K[d], "latent": LATENT[d]} for d in HIDDEN
    }
    tensors: ClassVar = (
        TensorSpec("m", "bf16", ("tokens", "hidden"), Role.IN, "normed activation rows, the same on all ranks"),
        TensorSpec("w_router", "bf16", ("expert_rows", "hidden"), Role.WEIGHT, "one row for each of own experts"),
        TensorSpec("bias", "f32", ("experts",), Role.WEIGHT, "added to the scores for the choice only; of all experts"),
        TensorSpec("w_latent", "bf16", ("latent_rows", "hidden"), Role.WEIGHT, "down projection of own columns"),
        TensorSpec("ids", "i32", ("tokens", "top_k"), Role.OUT, "experts, best biased score first", rule=ByOp()),
        TensorSpec("w", "bf16", ("tokens", "top_k"), Role.OUT, "weight of each id", rule=ByOp()),
        TensorSpec("lat", "bf16", ("tokens", "latent"), Role.OUT, "all columns of the latent", rule=ByOp()),
    )
    scalars: ClassVar = MoeRouter.scalars
    axes: ClassVar = {AXIS: RANKS}
    same: ClassVar = ("ids", "w", "lat")
    families: ClassVar = (
        *MoeRouter.families,
        Family("signed_zero", "half of the values of m are -0"),
        Family("sentinel", "products that are -0 in float32: sums that begin at -0 are what an empty mailbox holds"),
    )
    floor: ClassVar = MoeRouter.floor
    shared: ClassVar = (dims_moe, moe_latent_down, moe_router, projection, ranked_math, router_rules)
    sweep: ClassVar = {"tokens": "1-8, 16, 32, 64; 12, 24 and 48 padded", AXIS: SWEPT_RANKS}
    mutable_inputs: ClassVar = ("m",)

    def sizes(self, problem: Problem) -> dict[str, int]:
        size = super().sizes(problem)
        return {**size, "expert_rows": size["experts"] // size[AXIS], "latent_rows": size["latent"] // size[AXIS]}

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        ranks, kind = ranks_of(problem), "normal" if family == "sentinel" else family
        drawn = ROUTER.inputs(_of_router(problem), kind, seed, device)
        m, w_router = tensor(drawn, "m"), tensor(drawn, "w_router")
        w_latent = tensor(DOWN.inputs(problem, "normal", seed + 1, device), "w_latent")
        if family == "sentinel":
            m, w_router, w_latent = torch.zeros_like(m), -w_router.abs(), -w_latent.abs()
            m[:, 1], w_router[:, 1], w_latent[:, 1] = VANISHING, -VANISHING, -VANISHING
        common = {"m": m, "bias": tensor(drawn, "bias")}
        shards = {"w_router": w_router, "w_latent": w_latent}
        own = {name: w.reshape(ranks, -1, w.shape[-1]) for name, w in shards.items()}
        return {**{k: shared_by_all(v, ranks) for k, v in common.items()}, **own, "scale": drawn["scale"]}

    def stock(self, problem: Problem, compile: Callable[..., Callable[..., object]] | None = None) -> StockFn:
        ranks = ranks_of(problem)
        route, down = ROUTER.stock(_of_router(problem), compile), DOWN.stock(problem, compile)
        return lambda values: _on_all(route(_routed(values)), down(_projected(values)), ranks)

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        routed = ROUTER.reference(_of_router(problem), _routed(values), rounded)
        return _on_all(routed, DOWN.reference(problem, _projected(values), rounded), ranks_of(problem))

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """The same bits on all ranks; moe_router's rules, the element rule of the latent; no -0 in it."""
        found = super().hard_rules(problem, values, got)
        mine = {name: of[0] for name, of in got.items()}
        lines = ROUTER.hard_rules(_of_router(problem), _routed(values), mine)
        lines += DOWN.hard_rules(problem, _projected(values), mine)
        found += [f"rank 0: {line}" for line in lines]
        if bool(((got["lat"] == 0) & got["lat"].signbit()).any()):
            found.append("an element of lat is -0, which no mailbox can carry")
        return found

    def cost(self, problem: Problem) -> Cost:
        """Of one rank: its rows and m read, what the peers sent, outputs written."""
        s = self.sizes(problem)
        weights, peers = (s["expert_rows"] + s["latent_rows"]) * s["hidden"], s[AXIS] - 1
        received = peers * (4 * s["expert_rows"] + 2 * s["latent_rows"])
        moved = s["tokens"] * (2 * s["hidden"] + received + 2 * s["latent"] + 6 * s["top_k"])
        return Cost(bytes=2 * weights + 4 * s["experts"] + moved, flops=2 * s["tokens"] * weights)
