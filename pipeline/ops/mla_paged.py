"""Inputs of mla_decode: queries, a paged cache, block tables and lengths, for families and for long-context scenarios.

Every block id of a table is distinct and the order is random. The cache is drawn block group by block group in its own
dtype, so that a scenario needs hardly more memory than its cache. Families have the sizes that the op states;
scenarios have larger run-time dims (blocks, max_blocks), which follow from problem and scenario alone.
"""

from collections.abc import Mapping, Sequence

import torch

from kgen.contract.families import OUTLIER, normal, rows
from kgen.contract.op import Family, Values
from kgen.ops.mla_math import DTYPES, ROW, SM_SCALE, rows_seen
from kgen.records import Problem

CONTEXT = 1024  # longest context of the families
TYPICAL = 512  # mean length in the first family
SPARE = 2  # blocks that no table names
SHARDS = 8
# Families whose mix may be one cached row: a scale that is no power of two keeps the result from being exact in bf16,
# which would leave a candidate no rounding at all.
ROUNDED = ("outlier", "shortest", "dominant", "equal", "large", "scaled")
FILL_ROWS = 1 << 15  # rows drawn at a time: 75 MB of float32
BORDERS = (63, 64, 65, 1, 127, 128, 129, 1023, 1024)  # of blocks of 64

FAMILIES: tuple[Family, ...] = (
    Family("normal", "unit normal queries and rows, lengths of 256 to 767, blocks in random order"),
    Family("outlier", "one channel in 256 times 30, in queries and rows"),
    Family("borders", "lengths around the ends of blocks: 63, 64, 65, 1, 127, 128, 129, 1023, 1024"),
    Family("shortest", "every length is q: nothing but the new tokens"),
    Family("uneven", "lengths spread by powers of two, every third request empty"),
    Family("empty", "no request has a row, and the whole cache is NaN"),
    Family("garbage", "NaN in every row that no token may see: past the end and in blocks without a request"),
    Family("dominant", "one row has all the weight, anywhere in the sequence"),
    Family("equal", "all rows of the cache are the same"),
    Family("large", "scores of some hundreds: exp() overflows without the maximum"),
    Family("negative", "all scores far below zero: a maximum that starts at 0 loses everything"),
    Family("scaled", "scales of query and cache that are not 1"),
    Family("sharded", "every 8th row of longer contexts, every fourth of q rows only: there some tokens see nothing"),
    Family("long", "1024 rows each"),
)
CONTEXTS: Mapping[str, int] = {
    "context_1": 1,
    "context_64": 64,
    "context_1k": 1 << 10,
    "context_4k": 1 << 12,
    "context_32k": 1 << 15,
    "context_128k": 1 << 17,
    "context_512k": 1 << 19,
}
MIXED = "context_mixed"
SCENARIOS: tuple[Family, ...] = (
    *(Family(name, f"{length} rows a request, at least q") for name, length in CONTEXTS.items()),
    Family(MIXED, "1 to 128k rows, spread by powers of two over the batch"),
)


def draw(problem: Problem, sizes: Mapping[str, int], family: str, gen: torch.Generator, seed: int) -> Values:
    """All inputs and scalars of mla_decode; `sizes`: the op's, at this problem."""
    q, dtype, page = int(problem.axes["q"]), DTYPES[problem.axes["cache"]], sizes["page"]
    lengths = _lengths(family, sizes["requests"], q, gen)
    scenario = family in CONTEXTS or family == MIXED
    own = [-(-n // page) for n in lengths.tolist()] if scenario else [sizes["max_blocks"]] * sizes["requests"]
    blocks = sum(own) + SPARE
    table = _table(own, blocks, gen)
    push = torch.sign(normal((ROW,), gen)) if family in ("dominant", "negative") else torch.zeros(1, device=gen.device)
    query = rows((sizes["tokens"] * sizes["heads"], ROW), family if family == "outlier" else "normal", gen)
    gain, offset = {"large": (16.0, 0.0), "dominant": (0.5, 4.0), "negative": (1.0, 8.0)}.get(family, (1.0, 0.0))
    scaled = 8.0 if family == "scaled" else 1.0
    query = scaled * (gain * query + offset * push)
    cache = torch.empty((blocks, page, ROW), dtype=dtype, device=gen.device)
    _fill(cache, *_row_law(family, push, gen), gen)
    if family == "dominant":
        at = (torch.rand(lengths.shape, generator=gen, device=gen.device) * (lengths - q + 1)).long()
        cache.view(-1, ROW)[_flat(table, at[:, None], page)] = (4 * push).to(dtype)
    if family in ("garbage", "empty"):
        _poison(cache, table, rows_seen(lengths, q, 0, 1)[:, -1])
    return {
        "query": query.view(sizes["tokens"], sizes["heads"], ROW).to(dtype),
        "cache": cache,
        "block_table": table.to(torch.int32),
        "lengths": lengths.to(torch.int32),
        "sm_scale": SM_SCALE / (scaled * scaled),
        "out_scale": 0.6875 if family in ROUNDED else 1.0,
        "shard": 1 + seed % (SHARDS - 1) if family == "sharded" else 0,
        "shards": SHARDS if family == "sharded" else 1,
    }


def _lengths(family: str, requests: int, q: int, gen: torch.Generator) -> torch.Tensor:
    """i64 [requests]: 0, or q and more."""
    order = torch.randperm(requests, generator=gen, device=gen.device)
    spread = torch.linspace(0.0, 1.0, requests, device=gen.device) if requests > 1 else order + 0.5
    fixed = {**CONTEXTS, "long": CONTEXT, "shortest": q, "empty": 0}
    if family in fixed:
        lengths = torch.full_like(order, fixed[family])
    elif family == "borders":
        first = torch.randint(len(BORDERS), (1,), generator=gen, device=gen.device)
        lengths = torch.tensor(BORDERS, device=gen.device)[(order + first) % len(BORDERS)]
    elif family in ("uneven", MIXED):
        lengths = torch.exp2(spread * (10 if family == "uneven" else 17)).long()[order]
    else:
        low, high = (1, SHARDS * CONTEXT // 10) if family == "sharded" else (TYPICAL // 2, 3 * TYPICAL // 2)
        lengths = torch.randint(low, high, (requests,), generator=gen, device=gen.device)
        lengths = torch.where(order % 4 == 3, q, lengths) if family == "sharded" else lengths
    none = (order % 3 == 2) if family == "uneven" else lengths == 0
    return torch.where(none, 0, lengths.clamp_min(q))


def _table(own: Sequence[int], blocks: int, gen: torch.Generator) -> torch.Tensor:
    """i64 [requests, widest]: distinct ids in random order; past a request's own blocks, one that nobody owns."""
    ids = torch.randperm(blocks, generator=gen, device=gen.device)
    table = torch.full((len(own), max(own)), 0, device=gen.device) + ids[-1]
    start = 0
    for request, count in enumerate(own):
        table[request, :count] = ids[start : start + count]
        start += count
    return table


def _row_law(family: str, push: torch.Tensor, gen: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Factor and addend, by column, of unit normal rows."""
    factor, addend = torch.ones(ROW, device=gen.device), torch.zeros(ROW, device=gen.device)
    if family == "outlier":
        factor[torch.randperm(ROW, generator=gen, device=gen.device)[: ROW // 256]] = OUTLIER
    elif family == "equal":
        factor, addend = factor * 0, normal((ROW,), gen)
    elif family == "large":
        factor = factor * 16
    elif family == "negative":
        addend = -8 * push
    elif family == "scaled":
        factor = factor * 8
    return factor, addend


def _fill(cache: torch.Tensor, factor: torch.Tensor, addend: torch.Tensor, gen: torch.Generator) -> None:
    for part in torch.split(cache, max(1, FILL_ROWS // cache.shape[1])):
        part.copy_(normal(tuple(part.shape), gen) * factor + addend)


def _flat(table: torch.Tensor, position: torch.Tensor, page: int) -> torch.Tensor:
    """Rows of the flattened cache at positions [requests, n] of the sequences."""
    return torch.gather(table, 1, position // page) * page + position % page


def _poison(cache: torch.Tensor, table: torch.Tensor, ends: torch.Tensor) -> None:
    """NaN in every row but the first `ends` of each request."""
    page = cache.shape[1]
    position = torch.arange(table.shape[1] * page, device=cache.device).expand(table.shape[0], -1)
    kept = torch.zeros(cache.shape[0] * page, dtype=torch.bool, device=cache.device)
    kept[_flat(table, position, page)[position < ends[:, None]]] = True
    cache.view(torch.uint8).view(kept.numel(), -1)[~kept] = 0xFF  # NaN in bf16 and in e4m3
