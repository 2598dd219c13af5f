"""mla_decode: absorbed attention of the new tokens over a paged cache, with the log-sum-exp for a later merge if asked.

    n_t = ceil(max(0, L - q + 1 + t - shard) / shards)         rows that token t (0..q-1) of a request of length L sees
    s_j = (query[t, h] . row_j) * sm_scale, j < n_t            row_j = cache[block_table[r, j // page], j % page]
    lat = bf16((sum_j softmax(s)_j * row_j[:512]) * out_scale);  lse = log2(sum_j exp(s_j))
    n_t = 0: lat is zero and lse is float32(-3e38), which stands for log2(0) without making NaN in a merge

`lengths` counts a request's rows, its q new ones included (they are in the cache already). q is an axis: causal inside
the new tokens. shards = 1, shard = 0 is the whole context; else the cache holds every shards-th row, from row `shard`
on, and table and n_t count those (decode context parallel; lengths stay whole, so that q > 1 masks exactly). sm_scale
is 192^-0.5 times the scales of query and cache, out_scale the cache's; both multiply at cache=bf16 too.

Rows past the end, and blocks that no sequence names, may hold anything, NaN too; table entries past the end are any
valid block id. Scores and sums in float32 or better, softmax weights in bf16 or better (in e4m3 they would exceed the
floor).
Source: vLLM 0.33's Kimi K3 attention (absorbed MLA without rotation). Not covered: prefix sharing between
requests, other page sizes than the dims'.
"""

from typing import ClassVar

import torch

from kgen.contract.families import generator
from kgen.contract.op import Cost, Op, StockFn, Values
from kgen.contract.rules import MaxAbs
from kgen.contract.tensors import Role, ScalarSpec, TensorSpec
from kgen.ops import mla_math, mla_paged
from kgen.ops.mla_math import (
    BYTES,
    CACHES,
    EMPTY_LSE,
    LATENT,
    LOG2_E,
    PAGED,
    ROW,
    SM_SCALE,
    Compile,
    attend,
    fused,
    number,
    rounding,
    rows_seen,
    tensor,
    widened,
)
from kgen.ops.mla_paged import CONTEXT, SCENARIOS, TYPICAL
from kgen.ops.pack import PACK
from kgen.records import Problem

GATHER_BYTES = 1 << 28  # of gathered rows that the stock path holds at a time


def _readable(rows: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
    """Gathered rows in bf16 (exact), zero where no token looks: what lies there may be NaN."""
    return torch.where(here[..., None], rows.to(torch.bfloat16), 0.0)


def _weigh(
    scores: torch.Tensor, visible: torch.Tensor, best: torch.Tensor, total: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """One block's softmax weights in bf16; the new maximum and sum, and what the old mix shrinks by."""
    scores = torch.where(visible, scores * scale, -torch.inf)
    now = torch.maximum(best, scores.amax(-1))
    weights, decay = torch.exp(scores - now[..., None]), torch.exp(best - now)
    return weights.to(torch.bfloat16), now, total * decay + weights.sum(-1), decay


def _finish(
    mixed: torch.Tensor, best: torch.Tensor, total: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    some = total > 0
    lat = torch.where(some[..., None], mixed / total[..., None] * scale, 0.0)
    return lat.to(torch.bfloat16), torch.where(some, best * LOG2_E + torch.log2(total), EMPTY_LSE)


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """bf16 factors, float32 product."""
    return torch.bmm(a, b, out_dtype=torch.float32) if a.is_cuda else torch.bmm(a.float(), b.float())


class MlaDecode(Op):
    name: ClassVar = "mla_decode"
    title: ClassVar = "MLA attention over the paged cache, absorbed"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    shared: ClassVar = (mla_math, mla_paged)
    dims: ClassVar = PAGED
    runtime_dims: ClassVar = ("blocks", "max_blocks")
    tensors: ClassVar = (
        *(
            TensorSpec(name, dtype, shape, Role.IN, doc, only=("cache", (dtype,)), pitched=name == "cache")
            for dtype in CACHES
            for name, shape, doc in (
                ("query", ("tokens", "heads", "row"), "512 latent, then 64 pe; a request's q tokens follow each other"),
                ("cache", ("blocks", "page", "row"), "paged rows"),
            )
        ),
        TensorSpec("block_table", "i32", ("requests", "max_blocks"), Role.IN, "a request's blocks in order", padding=0),
        TensorSpec("lengths", "i32", ("requests",), Role.IN, "rows of a request, new ones included", padding=0),
        TensorSpec("lat", "bf16", ("tokens", "heads", "latent"), Role.OUT, "mixed latent rows"),
        TensorSpec("lse", "f32", ("tokens", "heads"), Role.OUT, "log2", only=("lse", ("yes",)), rule=MaxAbs(2e-3)),
    )
    scalars: ClassVar = (
        ScalarSpec("sm_scale", "f32", "factor of the scores", SM_SCALE, other=2 * SM_SCALE),
        ScalarSpec("out_scale", "f32", "factor of the mixed row", 1.0, other=2.0),
        ScalarSpec("shard", "i32", "which of the interleaved shards this cache is, 0..shards-1", 0, other=1),
        ScalarSpec("shards", "i32", "how many shards the rows are dealt to", 1, other=2),
    )
    axes: ClassVar = {"cache": CACHES, "q": ("1", "4", "8"), "lse": ("no", "yes")}
    families: ClassVar = mla_paged.FAMILIES
    scenarios: ClassVar = SCENARIOS
    floor: ClassVar = 5e-3
    mutable_inputs: ClassVar = ("query",)
    sweep: ClassVar = {
        "tokens": "1-8, 16, 32, 64 and 12, 24, 48 padded; whole requests of q tokens",
        "context": "1, 64, 1k, 4k, 32k, 128k, 512k and mixed",
        "cache": "bf16, e4m3",
        "q": "1, 4, 8",
        "lse": "no; yes where shards are merged",
        "page": "64; 16, 32 and 128 are dims entries of their own",
    }

    def refuses(self, problem: Problem) -> str:
        q = int(problem.axes["q"])
        return f"{problem.tokens} tokens are no whole requests of {q}" if problem.tokens % q else ""

    def sizes(self, problem: Problem) -> dict[str, int]:
        """At the families' contexts; a scenario's cache and table are larger in the two run-time dims."""
        sizes = super().sizes(problem)
        requests, wide = problem.tokens // int(problem.axes["q"]), CONTEXT // sizes["page"] + 1
        blocks = requests * wide + mla_paged.SPARE
        return {**sizes, "requests": requests, "max_blocks": wide, "blocks": blocks}

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        return mla_paged.draw(problem, self.sizes(problem), family, generator(seed, device), seed)

    def stock(self, problem: Problem, compile: Compile = None) -> StockFn:
        readable, weigh, finish = fused(_readable, compile), fused(_weigh, compile), fused(_finish, compile)
        q, heads, page = (self._q(problem), *(self.sizes(problem)[n] for n in ("heads", "page")))

        def run(values: Values) -> dict[str, torch.Tensor]:
            query, cache, table, lengths = (tensor(values, n) for n in ("query", "cache", "block_table", "lengths"))
            seen = rows_seen(lengths, q, int(values["shard"]), int(values["shards"]))
            limit, ends = seen[:, -1:], seen.repeat_interleave(heads, dim=1)[..., None]
            rows = query.to(torch.bfloat16).view(-1, q * heads, ROW)
            best = torch.full(rows.shape[:2], EMPTY_LSE, device=query.device)
            total = torch.zeros_like(best)
            mixed = torch.zeros((*best.shape, LATENT), device=query.device)
            step = max(1, GATHER_BYTES // (2 * ROW * page * max(1, rows.shape[0])))
            for first in range(0, table.shape[1], step):
                ids = table[:, first : first + step].long()
                position = first * page + torch.arange(ids.shape[1] * page, device=query.device)
                keys = readable(cache[ids].flatten(1, 2), position < limit)
                scores = _matmul(rows, keys.transpose(1, 2))
                weights, best, total, decay = weigh(scores, position < ends, best, total, number(values, "sm_scale"))
                mixed = mixed * decay[..., None] + _matmul(weights, keys[..., :LATENT])
            lat, lse = finish(mixed, best, total, number(values, "out_scale"))
            return self._outputs(problem, lat.view(-1, heads, LATENT), lse.view(-1, heads))

        return run

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        query, cache, table, lengths = (tensor(values, n) for n in ("query", "cache", "block_table", "lengths"))
        q = self._q(problem)
        seen = rows_seen(lengths, q, int(values["shard"]), int(values["shards"]))
        by_request = widened(query).view(-1, q, *query.shape[1:])
        lat, lse = (x.flatten(0, 1) for x in attend(by_request, cache, table, seen, number(values, "sm_scale")))
        return self._outputs(problem, rounding(rounded)(lat * number(values, "out_scale")), lse)

    def _q(self, problem: Problem) -> int:
        return int(problem.axes["q"])

    def _outputs(self, problem: Problem, lat: torch.Tensor, lse: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"lat": lat, "lse": lse} if problem.axes["lse"] == "yes" else {"lat": lat}

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """A token that sees no row has lat exactly 0 and lse float32(-3e38)."""
        seen = rows_seen(tensor(values, "lengths"), self._q(problem), int(values["shard"]), int(values["shards"]))
        empty = seen.flatten() == 0
        breaches = []
        if bool((got["lat"][empty] != 0).any()):
            breaches.append("lat of a token that sees no row is not zero")
        if "lse" in got and bool((got["lse"][empty] != EMPTY_LSE).any()):
            breaches.append("lse of a token that sees no row is not float32(-3e38)")
        return breaches

    def cost(self, problem: Problem) -> Cost:
        requests = self.sizes(problem)["requests"]
        return self._cost(problem, rows_seen(torch.full((requests,), TYPICAL), self._q(problem), 0, 1))

    def cost_of(self, problem: Problem, values: Values) -> Cost:
        shard, shards = int(values["shard"]), int(values["shards"])
        return self._cost(problem, rows_seen(tensor(values, "lengths"), self._q(problem), shard, shards))

    def _cost(self, problem: Problem, seen: torch.Tensor) -> Cost:
        """Each request's rows are read once, whatever q is."""
        heads, element = self.sizes(problem)["heads"], BYTES[problem.axes["cache"]]
        per_token = heads * (element * ROW + 2 * LATENT + (4 if problem.axes["lse"] == "yes" else 0))
        moved = int(seen[:, -1].sum()) * element * ROW + seen.numel() * per_token
        return Cost(bytes=moved, flops=2 * heads * (ROW + LATENT) * int(seen.sum()))
