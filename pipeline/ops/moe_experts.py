"""moe_experts: the routed experts of the MoE block on one rank: quantise, gate/up, SiTU, down, weighted sum.

    x      = MX(lat)                                      with acts=bf16: lat itself
    g, u   = x @ w13[e].T                                 gate rows 0..I-1, up rows I..2I-1 of expert e = ids[t, j]
    h      = MX(SiTU(g, u))                               with acts=bf16: bf16(SiTU(bf16(g), bf16(u)))
    row_j  = bf16(h @ w2[e].T)                            partial: this rank's slice of the hidden units
    part   = bf16(sum_j w[t, j] row_j)                    float32 FMA in slot order, one rounding

`acts` is the numeric contract: bf16 leaves activations as they are (what Marlin runs on SM90), mxfp8 quantises them to
e4m3 with an E8M0 scale per 32. MX of the latent rounds the scale up. MX of the hidden units takes, at TP8 widths (and
nano), the scale floor(log2 amax) - 8 with saturation, and at TP16 widths the scale rounded up. Accumulation is
float32 or better. beta and lambda of SiTU are 4 and 25.

Weights are in the checkpoint's layout (kgen.ops.mxfp4: nibble order, scales, packing, and zeros from EXPERT_SLICE to
EXPERT_WIDTH where a rank stores more hidden units than it owns). ids of one token are distinct, in any order; -1 marks
a slot without an expert: it adds nothing whatever lat and w hold there, and a token with no expert at all is zero.

In contract: scale bytes 0..252, finite lat and w. Not covered: byte 255 (NaN), 253 and 254 (beyond bf16), rows before
the weighted sum as an output, the sum over ranks (moe_tail), layouts of a particular backend.
"""

import math
from collections.abc import Iterator
from typing import ClassVar

import torch

from kgen.contract import quant
from kgen.contract.families import generator, rows
from kgen.contract.op import Cost, Family, Op, StockFn, Values
from kgen.contract.quant import ScaleRule, mxfp4_unpack, mxfp8_round, round_bf16
from kgen.contract.tensors import Role, TensorSpec
from kgen.ops import dims_moe, experts_stock, moe_shared, mxfp4, routing
from kgen.ops.dims_moe import EXPERT_SLICE, EXPERT_WIDTH, EXPERTS, LATENT, TOP_K
from kgen.ops.experts_stock import Compile, Stock
from kgen.ops.moe_shared import situ
from kgen.ops.mxfp4 import BLOCK, PER_BYTE, bytes_per_expert
from kgen.ops.pack import PACK
from kgen.records import Problem

HIDDEN_SCALE = {
    "k3-tp8": ScaleRule.FLOOR_SATURATE,
    "k3-tp16": ScaleRule.ROUND_UP,
    "nano": ScaleRule.FLOOR_SATURATE,
}
ROUTED = {  # family or scenario -> routing; the others are uniform
    "same_experts": "same",
    "distinct_experts": "distinct",
    "ragged": "ragged",
    "zipf": "trace",
    "hot_half": "hot_half",
    "routing_trace": "trace",
    "routing_same": "same",
    "routing_request": "shared",
}
SPREAD = 2.926 * math.sqrt(1.75)  # rms of uniform e2m1 codes, times that of scales spread over 2^-1, 1 and 2
HIDDEN_RMS = 0.55  # of SiTU(g, u) for unit normal g and u
AT_ONCE = 32  # experts that the reference unpacks together
FAR, NEAR = 96, 20  # exponents that the e8m0 family moves between activations and weights, at most


class MoeExperts(Op):
    name: ClassVar = "moe_experts"
    title: ClassVar = "routed experts: quantise, gate/up, SiTU, down, weighted sum (partial sum of this rank)"
    doc: ClassVar = __doc__ or ""
    pack: ClassVar = PACK
    dims: ClassVar = {
        d: {
            "latent": LATENT[d],
            "latent_bytes": LATENT[d] // PER_BYTE,
            "latent_blocks": LATENT[d] // BLOCK,
            "experts": EXPERTS[d],
            "top_k": TOP_K[d],
            "width": EXPERT_WIDTH[d],
            "width2": 2 * EXPERT_WIDTH[d],
            "width_bytes": EXPERT_WIDTH[d] // PER_BYTE,
            "width_blocks": EXPERT_WIDTH[d] // BLOCK,
        }
        for d in LATENT
    }
    tensors: ClassVar = (
        TensorSpec("lat", "bf16", ("tokens", "latent"), Role.IN, "latent rows"),
        TensorSpec("ids", "i32", ("tokens", "top_k"), Role.IN, "experts of a token, distinct; -1: none", padding=-1),
        TensorSpec("w", "bf16", ("tokens", "top_k"), Role.IN, "weight of each slot"),
        TensorSpec("w13", "u8", ("experts", "width2", "latent_bytes"), Role.WEIGHT, "gate, then up rows, e2m1 pairs"),
        TensorSpec("s13", "u8", ("experts", "width2", "latent_blocks"), Role.WEIGHT, "E8M0 scales of w13"),
        TensorSpec("w2", "u8", ("experts", "latent", "width_bytes"), Role.WEIGHT, "down rows, e2m1 pairs"),
        TensorSpec("s2", "u8", ("experts", "latent", "width_blocks"), Role.WEIGHT, "E8M0 scales of w2"),
        TensorSpec("part", "bf16", ("tokens", "latent"), Role.OUT, "partial sum of this rank"),
    )
    axes: ClassVar = {"acts": ("bf16", "mxfp8")}
    families: ClassVar = (
        Family("normal", "unit normal latents, uniform routing, uniform codes, outputs near unit rms"),
        Family("same_experts", "every token goes to the same experts"),
        Family("distinct_experts", "no expert twice before all are used"),
        Family("ragged", "one expert serves every token but one"),
        Family("zipf", "popularity falls as rank^-0.6"),
        Family("hot_half", "half of each row from one small set: experts shared across the batch"),
        Family("idle_slots", "a third of the slots and one whole token without an expert, NaN latents there"),
        Family("zero_weights", "half of the slots and one whole token with weight 0"),
        Family("outlier", "one channel in 256 times 30"),
        Family("zero_rows", "every other latent zero: all-zero quantisation blocks"),
        Family("tiny", "latents times 2^-40: gate times up is 2^-80"),
        Family("large", "latents times 2^10: SiTU saturates"),
        Family("situ_traps", "|gate| > 20 and |up| > 200 in both signs"),
        Family("e8m0", "scale bytes from 0 to 252, with latents and later weights that make up for them"),
    )
    scenarios: ClassVar = (
        Family("routing_trace", "stand-in for real prompts: popularity falls as rank^-0.6, a declared skew"),
        Family("routing_uniform", "uniform routing"),
        Family("routing_same", "every token goes to the same experts"),
        Family("routing_request", "four consecutive tokens of a request share three quarters of their experts"),
    )
    sweep: ClassVar = {"routing": "declared Zipf trace, uniform, all tokens the same, shared within a request"}
    shared: ClassVar = (quant, mxfp4, routing, moe_shared, dims_moe, experts_stock)
    floor: ClassVar = 5e-3  # a code flip is one 2^-4 step in one of thousands of terms
    chain: ClassVar = ("part", "lat")
    chain_family: ClassVar = "situ_traps"  # saturated: what comes out no longer depends on how large the input was
    mutable_inputs: ClassVar = ("lat",)

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> Values:
        size, gen = self.sizes(problem), generator(seed, device)
        tokens, top_k, own = size["tokens"], size["top_k"], EXPERT_SLICE[problem.dims]
        ids = routing.route(ROUTED.get(family, "uniform"), tokens, size["experts"], top_k, gen)
        w = routing.weights(tokens, top_k, gen)
        lat = rows((tokens, size["latent"]), family, gen)
        unit13, unit2 = size["latent"] ** 0.5 * SPREAD, own**0.5 * SPREAD * HIDDEN_RMS
        w13, s13 = _codes(gen, size["experts"], size["width2"], size["latent"], unit13)
        w2, s2 = _codes(gen, size["experts"], size["latent"], size["width"], unit2)
        if family == "idle_slots":
            ids[torch.rand(ids.shape, generator=gen, device=gen.device) < 1 / 3] = -1
            ids[-1], lat[-1] = -1, torch.nan
        elif family == "zero_weights":
            w[torch.rand(w.shape, generator=gen, device=gen.device) < 1 / 2] = 0.0
            w[-1] = 0.0
        elif family == "situ_traps":
            s13[:, : size["width"]] += 5  # gates of 32 rms, ups of 256
            s13[:, size["width"] :] += 8
        elif family == "e8m0":
            _extremes(lat, w13, s13, w2, s2)
        _clear_padding(w13, s13, w2, s2, own)
        return {"lat": lat.to(torch.bfloat16), "ids": ids, "w": w, "w13": w13, "s13": s13, "w2": w2, "s2": s2}

    def stock(self, problem: Problem, compile: Compile | None = None) -> StockFn:
        return Stock(HIDDEN_SCALE[problem.dims] if problem.axes["acts"] == "mxfp8" else None, compile)

    def reference(self, problem: Problem, values: Values, rounded: bool) -> dict[str, torch.Tensor]:
        """AT_ONCE experts at a time: never more than their 4 I latent float64 values each beside the rows."""
        mx, hidden_scale = problem.axes["acts"] == "mxfp8", HIDDEN_SCALE[problem.dims]
        t = _tensors(values)
        ids = t["ids"]

        def r(x: torch.Tensor) -> torch.Tensor:
            return round_bf16(x) if rounded else x

        x = t["lat"].double()
        x = mxfp8_round(x, ScaleRule.ROUND_UP) if rounded and mx else x
        found = torch.zeros((*ids.shape, x.shape[1]), dtype=torch.float64, device=x.device)
        for some, (expert, token, slot, place), most in _served(ids):
            rows = x.new_zeros(some.numel(), most, x.shape[1])
            rows[expert, place] = x[token]
            gu = rows @ mxfp4_unpack(t["w13"][some], t["s13"][some], torch.float64).mT
            gate, up = (gu if mx else r(gu)).chunk(2, dim=-1)
            h = situ(gate, up)
            if rounded:
                h = mxfp8_round(h, hidden_scale) if mx else r(h)
            out = r(h @ mxfp4_unpack(t["w2"][some], t["s2"][some], torch.float64).mT)
            found[token, slot] = out[expert, place]
        weight = torch.where(ids >= 0, t["w"], 0.0).double()
        return {"part": r((found * weight[..., None]).sum(1))}

    def hard_rules(self, problem: Problem, values: Values, got: dict[str, torch.Tensor]) -> list[str]:
        """part of a token without an expert, or with a latent of zeros, is exactly 0."""
        t = _tensors(values)
        idle, empty = (t["ids"] < 0).all(1), (t["lat"] == 0).all(1)
        breaches = []
        for what, where in (("without an expert", idle), ("whose latent is zero", empty)):
            if bool((got["part"].to(where.device)[where] != 0).any()):
                breaches.append(f"part of a token {what} is not exactly zero")
        return breaches

    def cost(self, problem: Problem) -> Cost:
        s = self.sizes(problem)
        distinct = routing.expected_distinct(s["tokens"], s["experts"], s["top_k"])
        return self._cost(problem, s["tokens"], distinct, s["tokens"] * s["top_k"])

    def cost_of(self, problem: Problem, values: Values) -> Cost:
        ids = _tensors(values)["ids"]
        return self._cost(problem, ids.shape[0], len(_distinct(ids)), int((ids >= 0).sum()))

    def _cost(self, problem: Problem, tokens: int, distinct: float, pairs: int) -> Cost:
        s = self.sizes(problem)
        experts = distinct * bytes_per_expert(s["latent"], s["width"])
        activations = tokens * (4 * s["latent"] + s["top_k"] * (4 + 2))  # read lat, ids, w; write part
        return Cost(bytes=round(experts) + activations, flops=2 * pairs * 3 * s["latent"] * s["width"])


def _tensors(values: Values) -> dict[str, torch.Tensor]:
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def _distinct(ids: torch.Tensor) -> list[int]:
    """The experts that some slot names."""
    return sorted(set(ids.flatten().tolist()) - {-1})


def _served(ids: torch.Tensor) -> Iterator[tuple[torch.Tensor, tuple[torch.Tensor, ...], int]]:
    """AT_ONCE of the experts that are named, what names them, and how many rows the busiest has.

    Of every (token, slot) that names one: position of the expert there, token, slot, place in its rows. Worked out on
    the host, so that a GPU is waited for once, whatever is routed where.
    """
    flat = ids.flatten().cpu()
    by_expert = torch.argsort(flat, stable=True)[int((flat < 0).sum()) :]
    named, inverse, counts = torch.unique_consecutive(flat[by_expert], return_inverse=True, return_counts=True)
    ends = counts.cumsum(0)
    place = torch.arange(by_expert.numel()) - (ends - counts)[inverse]
    bounds = [0, *ends.tolist()]
    for start in range(0, named.numel(), AT_ONCE):
        end = min(start + AT_ONCE, named.numel())
        own = slice(bounds[start], bounds[end])
        token, slot = by_expert[own] // ids.shape[1], by_expert[own] % ids.shape[1]
        where = torch.stack([inverse[own] - start, token, slot, place[own]]).to(ids.device, non_blocking=True)
        some = named[start:end].long().to(ids.device, non_blocking=True)
        yield some, tuple(where), int(counts[start:end].max())


def _codes(gen: torch.Generator, experts: int, out: int, k: int, unit: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Uniform e2m1 codes with scales 2^-1, 1 or 2 around 1 / `unit`: bytes [E, out, k/2], scales [E, out, k/32]."""
    base = quant.E8M0_BIAS - round(math.log2(unit))

    def draw(low: int, high: int, last: int) -> torch.Tensor:
        return torch.randint(low, high, (experts, out, last), generator=gen, device=gen.device, dtype=torch.uint8)

    return draw(0, 256, k // PER_BYTE), draw(base - 1, base + 2, k // BLOCK)


def _clear_padding(w13: torch.Tensor, s13: torch.Tensor, w2: torch.Tensor, s2: torch.Tensor, own: int) -> None:
    """Zeros where a rank stores more hidden units than it owns, as mxfp4.pack leaves them."""
    for tensor in (w13, s13):
        tensor.view(tensor.shape[0], 2, -1, tensor.shape[2])[:, :, own:] = 0
    w2[..., own // PER_BYTE :] = 0
    s2[..., own // BLOCK :] = 0


def _extremes(lat: torch.Tensor, w13: torch.Tensor, s13: torch.Tensor, w2: torch.Tensor, s2: torch.Tensor) -> None:
    """In place, by block of 32 latents (number modulo 4) and of hidden units (modulo 2).

    0 and 1: latents 2^-96 and 2^96 times as large, scales the other way round. 2: scale byte 0, adding nothing.
    3: scale byte 252 on codes that are all 0. Odd hidden blocks: gate and up 2^-20 times as large, w2 made up for it.
    One down row in eight has scale byte 0, another one scale byte 252 on zero codes.
    """
    latents, scales13 = lat.view(lat.shape[0], -1, BLOCK), s13.view(s13.shape[0], 2, -1, BLOCK, s13.shape[2])
    latents[:, 0::4] *= 2.0**-FAR
    latents[:, 1::4] *= 2.0**FAR
    s13[..., 0::4] += FAR
    s13[..., 1::4] -= FAR
    scales13[:, :, 1::2] -= NEAR
    s2[..., 1::2] += 2 * NEAR  # SiTU(g, u) is near g u / 2
    s13[..., 2::4] = 0
    s13[..., 3::4] = mxfp4.TOP_SCALE
    w13.view(*s13.shape, BLOCK // PER_BYTE)[:, :, 3::4] = 0
    s2[:, 6::8] = 0
    s2[:, 7::8] = mxfp4.TOP_SCALE
    w2[:, 7::8] = 0
