"""Routed experts as torch does them best on one GPU, to be beaten: contract acts=bf16 of kgen.ops.moe_experts.

    fused_mxfp4     the checkpoint's bytes; gather, decode, multiply and sum are one kernel a GEMM when compiled
    gemv_bf16       the same on a resident bf16 copy
    grouped_bf16    torch's grouped GEMM on a resident bf16 copy, rows in the order of their experts
    all_bf16        every token through every expert of a resident bf16 copy, one batched GEMM

A resident copy is made off the clock. At TP 8 it takes 7.4 GB a layer beside (or in place of) 2.0 GB, which no server
of the whole model has room for: these baselines are given more than they could have. What each must read of one expert,
and of how many, bounds it, MB at TP 8 and uniform routing:

    tokens                                       1      8     64
    distinct experts of 896                     16    120    613
    a kernel on the checkpoint's bytes          35    264   1345
    fused_mxfp4: 2.19 a (token, slot)           35    281   2246    (and some 10 operations to decode a weight)
    gemv_bf16: 8.26 a (token, slot)            132   1057   8456
    grouped_bf16: 8.26 an expert               132    993   5063
    all_bf16: 8.26 of all 896                 7399   7399   7399
    the stock op, decoding on the clock        299   2395  16763    (bytes read, values written and read again)

So the first two are timed at few tokens, the last one at many. Not timed: fp8 grouped GEMMs (activations in fp8 are
another contract, and block scales do not fit their row scales); decoding all experts on the clock before a grouped GEMM
(16.8 GB whatever the routing). Not covered: an engine's own kernels (Marlin), whose figures the op's page quotes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from kgen.contract.op import StockFn, Values
from kgen.ops.baseline import Baseline
from kgen.ops.experts_stock import Compile, Stock
from kgen.ops.moe_shared import situ_and_mul
from kgen.ops.mxfp4 import BLOCK, PER_BYTE, decode
from kgen.records import Problem

FEW, MANY = 8, 32  # tokens: up to here by slot, from here every expert
AT_ONCE = 64  # experts in bf16 at a time while a copy is made
HALF = 126 << 23  # the bits of 0.5 in float32
COPIES = (("w13_bf16", "w13", "s13"), ("w2_bf16", "w2", "s2"))

weighted = Stock(None, None).weighted  # the stock op's own sum over slots
Tensors = dict[str, torch.Tensor]
Run = Callable[[Tensors], torch.Tensor]


def resident(values: Values) -> Values:
    """bf16 copies of all experts: w13_bf16 [E, 2 I, latent], w2_bf16 [E, latent, I]."""
    t = _tensors(values)
    made: Values = {}
    for name, codes, scales in COPIES:
        rows = t[codes]
        copy = torch.empty((*rows.shape[:2], PER_BYTE * rows.shape[2]), dtype=torch.bfloat16, device=rows.device)
        for i in range(0, rows.shape[0], AT_ONCE):
            copy[i : i + AT_ONCE] = decode(rows[i : i + AT_ONCE], t[scales][i : i + AT_ONCE])
        made[name] = copy
    return made


def _tensors(values: Values) -> Tensors:
    return {k: v for k, v in values.items() if isinstance(v, torch.Tensor)}


def _fuser(compile: Compile | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return (lambda f: compile(f, dynamic=False)) if compile else (lambda f: f)


def _e2m1(code: torch.Tensor) -> torch.Tensor:
    """i32 codes 0..15 -> float32; from 1.0 on, exponent and fraction bits are float32's, two of them."""
    magnitude = code & 7
    bits = torch.where(magnitude > 1, (magnitude << 22) + HALF, magnitude * HALF) | ((code & 8) << 28)
    return bits.view(torch.float32)


def _mxfp4_rows(x: torch.Tensor, ids: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """bf16 [P, K], expert of each row [P], codes [E, N, K/2], scales [E, N, K/32] -> bf16 [P, N]."""
    codes = packed[ids].to(torch.int32)
    power = (scales[ids].to(torch.int32) << 23).clamp(min=1 << 22).view(torch.float32)  # byte 0: 2^-127
    each = power.unsqueeze(-1).expand(*power.shape, BLOCK // PER_BYTE).reshape(codes.shape)
    pairs = x.float().view(x.shape[0], 1, -1, PER_BYTE)
    products = _e2m1(codes & 15) * pairs[..., 0] + _e2m1(codes >> 4) * pairs[..., 1]
    return (products * each).sum(-1).to(torch.bfloat16)


def _bf16_rows(x: torch.Tensor, ids: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """bf16 [P, K], expert of each row [P], [E, N, K] -> bf16 [P, N]."""
    return (w[ids].float() * x.float().unsqueeze(1)).sum(-1).to(torch.bfloat16)


def _chosen(ids: torch.Tensor) -> torch.Tensor:
    """Expert of each (token, slot), int64: a compiled kernel multiplies it by an expert's elements as it comes, and the
    bf16 copy of gate and up has 2.5e9 of them."""
    return ids.flatten().clamp(min=0).long()


def _by_slot(rows: Callable[..., torch.Tensor], names: tuple[tuple[str, ...], ...], compile: Compile | None) -> Run:
    """Each (token, slot) on its own; `rows` takes the tensors of `names`, gate and up's, then down's."""
    fused = _fuser(compile)

    def up(lat: torch.Tensor, ids: torch.Tensor, *w: torch.Tensor) -> torch.Tensor:
        spread = lat.unsqueeze(1).expand(*ids.shape, lat.shape[1]).reshape(-1, lat.shape[1])
        return rows(spread, _chosen(ids), *w)

    def down(h: torch.Tensor, ids: torch.Tensor, *w: torch.Tensor) -> torch.Tensor:
        return rows(h, _chosen(ids), *w).view(*ids.shape, -1)

    gate_up, activation, last, summed = fused(up), fused(situ_and_mul), fused(down), fused(weighted)

    def run(t: Tensors) -> torch.Tensor:
        ids, (first, second) = t["ids"], ([t[n] for n in some] for some in names)
        part: torch.Tensor = summed(last(activation(gate_up(t["lat"], ids, *first)), ids, *second), t["w"], ids)
        return part

    return run


def _order(ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each (token, slot) stands when they are in the order of their experts, and where each expert's rows end.

    Counted instead of sorted: one kernel, for a thousand at most. A slot without an expert goes to the first one.
    """
    flat = ids.flatten().clamp(min=0)
    n = torch.arange(flat.numel(), device=flat.device)
    before = (flat[None] < flat[:, None]) | ((flat[None] == flat[:, None]) & (n[None] < n[:, None]))
    number = torch.arange(experts, device=flat.device)
    return before.sum(1), (flat[None] <= number[:, None]).sum(1).to(torch.int32)


def _sorted_rows(lat: torch.Tensor, place: torch.Tensor, top_k: int) -> torch.Tensor:
    pair = torch.empty_like(place).scatter_(0, place, torch.arange(place.numel(), device=place.device))
    return lat[pair // top_k]


def _grouped(compile: Compile | None) -> Run:
    fused = _fuser(compile)

    def back(rows: torch.Tensor, place: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return weighted(rows[place].view(*ids.shape, -1), w, ids)

    order, gathered, activation, summed = fused(_order), fused(_sorted_rows), fused(situ_and_mul), fused(back)

    def run(t: Tensors) -> torch.Tensor:
        ids, w13, w2 = t["ids"], t["w13_bf16"], t["w2_bf16"]
        place, ends = order(ids, w13.shape[0])
        x = gathered(t["lat"], place, ids.shape[1])
        h = activation(F.grouped_mm(x, w13.mT, offs=ends))
        part: torch.Tensor = summed(F.grouped_mm(h, w2.mT, offs=ends), place, t["w"], ids)
        return part

    return run


def _all(compile: Compile | None) -> Run:
    fused = _fuser(compile)

    def own(rows: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        token = torch.arange(ids.shape[0], device=ids.device).unsqueeze(1)
        return weighted(rows[ids.clamp(min=0), token], w, ids)

    activation, summed = fused(situ_and_mul), fused(own)

    def run(t: Tensors) -> torch.Tensor:
        lat, w13, w2 = t["lat"], t["w13_bf16"], t["w2_bf16"]
        h = activation(torch.bmm(lat.expand(w13.shape[0], *lat.shape), w13.mT))
        part: torch.Tensor = summed(torch.bmm(h, w2.mT), t["w"], t["ids"])
        return part

    return run


def _baseline(make: Callable[[Compile | None], Run], fewest: int, most: float, copied: bool) -> Baseline:
    def made(problem: Problem, compile: Compile | None) -> StockFn:
        run = make(compile)
        return lambda values: {"part": run(_tensors(values))}

    def fits(problem: Problem, tokens: int) -> bool:
        return problem.axes["acts"] == "bf16" and fewest <= tokens <= most

    return Baseline(made, fits, resident if copied else None)


def _fused_mxfp4(compile: Compile | None) -> Run:
    return _by_slot(_mxfp4_rows, (("w13", "s13"), ("w2", "s2")), compile)


def _gemv_bf16(compile: Compile | None) -> Run:
    return _by_slot(_bf16_rows, (("w13_bf16",), ("w2_bf16",)), compile)


EXPERTS: Mapping[str, Baseline] = {
    "fused_mxfp4": _baseline(_fused_mxfp4, 1, FEW, copied=False),
    "gemv_bf16": _baseline(_gemv_bf16, 1, FEW, copied=True),
    "grouped_bf16": _baseline(_grouped, 1, float("inf"), copied=True),
    "all_bf16": _baseline(_all, MANY, float("inf"), copied=True),
}
