"""What the MLA ops share: sizes, columns of the projected row, norm, number formats, causal counts, paged attention.

One projected row is q_a [q_lora] ‖ kv 512 ‖ k_pe 64 ‖ gate [width]; one cached row is 512 latent ‖ 64 shared key.
Page size: `page` is a dims symbol, 64 everywhere here. Another page size (an engine binds 16, 32, 64 or 128) is another
dims entry that differs only there; nothing below knows the number. Not here: inputs, costs, stock paths.
"""

import math
import typing
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from kgen.contract.op import Values
from kgen.contract.quant import from_e4m3, round_bf16, to_e4m3
from kgen.records import Problem

LATENT, ROPE, NOPE, VALUE = 512, 64, 128, 128  # ROPE: the un-rotated key part that all heads share
ROW = LATENT + ROPE
PAGE = 64
SM_SCALE = (NOPE + ROPE) ** -0.5
E4M3_MAX = 448.0
LOG2_E = math.log2(math.e)
EMPTY_LSE = float(torch.tensor(-3e38))  # what stands for log2(0): finite, so that differences of two are not NaN

CACHES = ("bf16", "e4m3")  # axis `cache`: bf16 is what SM90 serving keeps
DTYPES: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}
BYTES: Mapping[str, int] = {"bf16": 2, "e4m3": 1}

CHUNK_ROWS = 1 << 15  # cached rows that the float64 reference holds at a time: 150 MB

Round = Callable[[torch.Tensor], torch.Tensor]
Compile = Callable[..., Callable[..., object]] | None
Function = typing.TypeVar("Function", bound=Callable[..., object])


def _sizes(heads: int, q_lora: int) -> Mapping[str, int]:
    width = VALUE * heads
    return {
        "heads": heads,
        "width": width,
        "q_lora": q_lora,
        "in_width": q_lora + ROW + width,
        "kv_at": q_lora,
        "pe_at": q_lora + LATENT,
        "gate_at": q_lora + ROW,
        "latent": LATENT,
        "rope": ROPE,
        "row": ROW,
        "nope": NOPE,
        "value": VALUE,
        "qb_rows": heads * (NOPE + ROPE),
    }


SIZES: Mapping[str, Mapping[str, int]] = {
    "k3-tp8": _sizes(12, 1536),
    "k3-tp16": _sizes(6, 1536),
    "nano": _sizes(2, 128),
}
PAGED: Mapping[str, Mapping[str, int]] = {name: {**sizes, "page": PAGE} for name, sizes in SIZES.items()}


def tensor(values: Values, name: str) -> torch.Tensor:
    value = values[name]
    assert isinstance(value, torch.Tensor), name
    return value


def number(values: Values, name: str) -> float:
    value = values[name]
    assert not isinstance(value, torch.Tensor), name
    return value


def fused(function: Function, compile: Compile) -> Function:
    """An element-wise part of a stock path, compiled where an engine would have it fused."""
    return typing.cast(Function, compile(function, dynamic=False)) if compile else function


def unrounded(x: torch.Tensor) -> torch.Tensor:
    return x


def rounding(rounded: bool) -> Round:
    """bf16() of the formulas, or nothing."""
    return round_bf16 if rounded else unrounded


def widened(x: torch.Tensor) -> torch.Tensor:
    """float64 values of a bf16, float32 or e4m3 tensor, exactly."""
    return from_e4m3(x, torch.float64) if x.dtype is torch.float8_e4m3fn else x.double()


def stored(x: torch.Tensor, problem: Problem, rounded: bool) -> torch.Tensor:
    """float64 x as the cache's number format holds it: saturating at +-448 in e4m3 with or without roundings."""
    if problem.axes["cache"] == "e4m3":
        return from_e4m3(to_e4m3(x), torch.float64) if rounded else x.clamp(-E4M3_MAX, E4M3_MAX)
    return rounding(rounded)(x)


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float32 x in the cache's dtype as an engine casts it."""
    return (x.clamp(-E4M3_MAX, E4M3_MAX) if dtype is torch.float8_e4m3fn else x).to(dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """In the dtype of x (float32 or float64), over the last axis."""
    return F.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps)


def rows_seen(lengths: torch.Tensor, q: int, shard: int, shards: int) -> torch.Tensor:
    """i64 [requests, q]: how many rows of this shard each new token of a request sees.

    Token t sees the first L - q + 1 + t rows of its request; row j lies on shard j mod shards, there as number
    j // shards. Length 0, and a shard without any of those rows, give 0.
    """
    back = torch.arange(q - 1, -1, -1, device=lengths.device)
    ahead = lengths.long()[:, None] - back - shard + shards - 1
    return torch.div(ahead.clamp_min(0), shards, rounding_mode="floor")


def attend(
    query: torch.Tensor, cache: torch.Tensor, blocks: torch.Tensor, seen: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Requests side by side in float64, streaming over their rows; a request that has ended is not looked at again.

    query [requests, q, heads, 576], cache [blocks, page, 576], blocks [requests, max_blocks] (ids in order), seen i64
    [requests, q] -> latent [requests, q, heads, 512] (zeros where nothing is seen) and log2 of the softmax's sum
    [requests, q, heads] (EMPTY_LSE there).
    """
    page, ends = cache.shape[1], seen.amax(1)
    lengths = ends.tolist()
    best = query.new_full(query.shape[:3], EMPTY_LSE)
    total, mixed = torch.zeros_like(best), query.new_zeros((*query.shape[:3], LATENT))
    first = 0
    while going := [r for r, length in enumerate(lengths) if length > first * page]:
        last = min(first + max(1, CHUNK_ROWS // (page * len(going))), -(-max(lengths) // page))
        at = torch.tensor(going).to(query.device, non_blocking=True)
        keys = widened(cache[blocks[at, first:last].long()]).flatten(1, 2)
        position = torch.arange(first * page, last * page, device=query.device)
        keys = keys.masked_fill((position >= ends[at, None])[..., None], 0.0)  # what lies past the end may be NaN
        scores = torch.einsum("rqhk,rnk->rqhn", query[at], keys) * scale
        scores = scores.masked_fill(position >= seen[at][:, :, None, None], -torch.inf)
        now = torch.maximum(best[at], scores.amax(-1))
        weights, decay = torch.exp(scores - now[..., None]), torch.exp(best[at] - now)
        total[at] = total[at] * decay + weights.sum(-1)
        mixed[at] = mixed[at] * decay[..., None] + torch.einsum("rqhn,rnl->rqhl", weights, keys[..., :LATENT])
        best[at], first = now, last
    empty = total == 0
    latent = mixed / total.masked_fill(empty, 1.0)[..., None]
    return latent, (best * LOG2_E + torch.log2(total)).masked_fill(empty, EMPTY_LSE)


def merge(lat: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """lat [ranks, tokens, heads, 512] by the weights 2^lse [ranks, tokens, heads], in the dtype of both."""
    weights = torch.exp2(lse - lse.amax(0))
    return (weights[..., None] * lat).sum(0) / weights.sum(0)[..., None]


def value_gate(lat: torch.Tensor, w_uv: torch.Tensor, gate: torch.Tensor, r: Round) -> torch.Tensor:
    """lat [tokens, heads, 512], w_uv [heads, 512, 128], gate [tokens, width], all float64 -> [tokens, width]."""
    value = r(torch.einsum("bhl,hlv->bhv", lat, w_uv)).flatten(1)
    return r(value * torch.sigmoid(gate))


def stock_value(lat: torch.Tensor, w_uv: torch.Tensor) -> torch.Tensor:
    """As `value_gate` before the gate, in bf16: [tokens, width]."""
    return torch.bmm(lat.transpose(0, 1), w_uv).transpose(0, 1).flatten(1)
