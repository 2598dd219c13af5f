"""mla_dcp_merge: the attended rows of a context that is split over ranks, merged, then W_UV and the gate.

    m   = max_r lse_r;  w_r = 2^(lse_r - m)                    per token and head
    lat = bf16(sum_r w_r lat_r / sum_r w_r)                    float32 sums; W_UV's product reads the bf16 row
    val = bf16(lat[h] @ w_uv[h]);  y = bf16(val * sigmoid(p[:, gate]))

`lse` is in log2. An empty shard has zero rows and float32(-3e38); where all are empty, y is zero. The gathered shards
stand side by side in `lat` and `lse` (dim `ranks`): one GPU plays all of them, and gathered buffers of a real group
take the same place.
Source: vLLM 0.33's Kimi K3 attention (absorbed MLA without rotation). Not covered: the exchange itself, and
making the rows (mla_decode lse=yes).
"""

from typing import ClassVar

import torch

from kgen.contract.families import generator, normal, rows
from kgen.contract.op import Cost, Family, Op, StockFn, Values
from kgen.contract.tensors import Role, TensorSpec
from kgen.ops import mla_math
from kgen.ops.mla_math import (
    EMPTY_LSE,
    LATENT,
    SIZES,
    VALUE,
    Compile,
    fused,
    merge,
    rounding,
    stock_value,
    tensor,
    value_gate,
)
from kgen.ops.pack import PACK
from kgen.records import Problem


def _merge(lat: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    return merge(lat.float(), lse).to(torch.bfloat16)


def _gate(value: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return (value.float() * torch.sigmoid(p[:, p.shape[1] - value.shape[1] :].float())).to(torch.bfloat16)


class MlaDcpMerge(Op):
    name: ClassVar = "mla_dcp_merge"
    title: ClassVar = "MLA: merge of a context split over ranks, W_UV, sigmoid gate"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    shared: ClassVar = (mla_math,)
    dims: ClassVar = {
        "k3-tp8": {**SIZES["k3-tp8"], "ranks": 8},
        "k3-tp16": {**SIZES["k3-tp16"], "ranks": 16},
        "vllm-tp1": {**SIZES["k3-tp8"], "ranks": 1},
        "nano": {**SIZES["nano"], "ranks": 2},
    }
    tensors: ClassVar = (
        TensorSpec("lat", "bf16", ("ranks", "tokens", "heads", "latent"), Role.IN, "attended rows of each shard"),
        TensorSpec("lse", "f32", ("ranks", "tokens", "heads"), Role.IN, "log2 of each shard's softmax sum"),
        TensorSpec("w_uv", "bf16", ("heads", "latent", "value"), Role.WEIGHT, "value projection of each head"),
        TensorSpec("p", "bf16", ("tokens", "in_width"), Role.IN, "projected row; columns from gate_at on are read"),
        TensorSpec("y", "bf16", ("tokens", "width"), Role.OUT, "gated values, head by head"),
    )
    families: ClassVar = (
        Family("normal", "unit normal rows; lse around 12 with a spread of 1, no shard empty"),
        Family("outlier", "one channel in 256 times 30"),
        Family("tiny", "rows times 2^-40"),
        Family("large", "rows times 2^10"),
        Family("ties", "every shard has the same lse"),
        Family("spread", "lse from -5000 to 5000: 2^lse overflows and underflows without the maximum"),
        Family("some_empty", "half of the shards of a token empty, by token"),
        Family("one_full", "all shards but one empty, another one for each token"),
        Family("all_empty", "every other token has no row on any shard"),
    )
    floor: ClassVar = 3e-3
    mutable_inputs: ClassVar = ("lat", "p")
    sweep: ClassVar = {"tokens": "1-8, 16, 32, 64 and 12, 24, 48 padded", "ranks": "the TP width, 1 in one process"}

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        s, gen = self.sizes(problem), generator(seed, device)
        shape = s["ranks"], s["tokens"], s["heads"]
        lat = rows((shape[0] * shape[1] * shape[2], LATENT), family, gen).view(*shape, LATENT)
        lse = 12 + normal(shape, gen)
        if family == "ties":
            lse = lse[:1].repeat(s["ranks"], 1, 1)
        elif family == "spread":
            lse = 1e4 * (torch.rand(shape, generator=gen, device=gen.device) - 0.5)
        empty = self._empty(family, s["ranks"], s["tokens"], gen)[..., None]
        w_uv = normal((s["heads"], LATENT, VALUE), gen, LATENT**-0.5)
        p = rows((s["tokens"], s["in_width"]), family, gen)
        floats = {"lat": lat.masked_fill(empty[..., None], 0.0), "w_uv": w_uv, "p": p}
        return {**{k: v.to(torch.bfloat16) for k, v in floats.items()}, "lse": lse.masked_fill(empty, EMPTY_LSE)}

    def _empty(self, family: str, ranks: int, tokens: int, gen: torch.Generator) -> torch.Tensor:
        """bool [ranks, tokens]"""
        order = torch.argsort(torch.rand((ranks, tokens), generator=gen, device=gen.device), dim=0)
        if family == "some_empty":
            return order < ranks // 2
        if family == "one_full":
            return order > 0
        token = torch.arange(tokens, device=gen.device).expand(ranks, -1)
        return token % 2 == 0 if family == "all_empty" else token < 0

    def stock(self, problem: Problem, compile: Compile = None) -> StockFn:
        join, gate = fused(_merge, compile), fused(_gate, compile)

        def run(values: Values) -> dict[str, torch.Tensor]:
            lat = join(tensor(values, "lat"), tensor(values, "lse"))
            return {"y": gate(stock_value(lat, tensor(values, "w_uv")), tensor(values, "p"))}

        return run

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        lat, lse, w_uv, p = (tensor(values, n).double() for n in ("lat", "lse", "w_uv", "p"))
        r = rounding(rounded)
        return {"y": value_gate(r(merge(lat, lse)), w_uv, p[:, self.sizes(problem)["gate_at"] :], r)}

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """y is finite, and exactly 0 for a head whose shards are all empty."""
        breaches = []
        if not bool(torch.isfinite(got["y"]).all()):
            breaches.append("y is not finite")
        nothing = (tensor(values, "lse") == EMPTY_LSE).all(0).repeat_interleave(VALUE, dim=1)
        if bool((got["y"][nothing] != 0).any()):
            breaches.append("y of a head whose shards are all empty is not zero")
        return breaches

    def cost(self, problem: Problem) -> Cost:
        s = self.sizes(problem)
        return self._cost(problem, s["ranks"] * s["tokens"] * s["heads"])

    def cost_of(self, problem: Problem, values: Values) -> Cost:
        return self._cost(problem, int((tensor(values, "lse") != EMPTY_LSE).sum()))

    def _cost(self, problem: Problem, full: int) -> Cost:
        """`full`: (rank, token, head) rows that are not empty; the others' lse says that they need not be read."""
        s = self.sizes(problem)
        weights, pairs = s["heads"] * LATENT * VALUE, s["ranks"] * s["tokens"] * s["heads"]
        moved = 2 * weights + 2 * LATENT * full + 4 * pairs + 4 * s["tokens"] * s["width"]
        return Cost(bytes=moved, flops=2 * s["tokens"] * weights + 2 * LATENT * full)
