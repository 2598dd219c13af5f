"""moe_tail: rank sums, norm and the up-projection with the latent split over a cluster.

6.4 MB of weights at TP 8: 112 CTAs of 57 kB, all in flight before any input. In one process (7168 columns, 51 MB) the
weights stream through a queue. With many tokens reading all ranks once a cluster costs more than a kernel of its own.
"""

from kgen.gates.audit.limits import SMEM_BYTES
from kgen.proposers.families.family import Family
from kgen.proposers.families.point import Variant
from kgen.proposers.families.space import Choice, Limit, Point, Space

TEMPLATE = "moe_tail.py.tmpl"
STEPS = 3584 // 32  # of K at the served dims
WARPS = 16  # of a CTA at most: 128 registers a thread at least
PIECE = 1024  # bytes of a warp's piece of weights
TOKENS = 64
WIDE_TILES, UNROLLED = 16, 32  # row tiles of a CTA where 7168 columns are in one process; steps of a warp, unrolled


def _why(point: Point) -> str:
    ksplit, warps_r, warps_k, depth = (point[n] for n in ("ksplit", "warps_r", "warps_k", "depth"))
    if STEPS // ksplit % warps_k:
        return f"{STEPS // ksplit} steps of a CTA do not go over {warps_k} warps"
    warps = warps_r * warps_k
    if warps > WARPS:
        return f"{warps} warps are more than {WARPS}"
    if STEPS // ksplit * WIDE_TILES // warps > UNROLLED:
        return f"the steps of {warps} warps at the widest point make the compiler run for too long"
    latent = STEPS // ksplit * 32 * 2 * TOKENS  # n of all tokens
    sums = 4 * (16 * warps_r + 4) * TOKENS * warps_k  # of one row tile a warp: a CTA takes more where they fit
    if warps * PIECE * depth + latent + sums > SMEM_BYTES - 8192:
        return f"{depth} pieces of {warps} warps, {TOKENS} tokens and their sums do not fit shared memory"
    return ""


PARAMETERS = (
    Choice("ksplit", (4, 8)),
    Choice("ctas", (112, 132, 264)),
    Choice("warps_r", (2, 4, 8)),
    Choice("warps_k", (1, 2, 7)),
    Choice("depth", (4, 7, 8, 14)),
    Choice("sum_from", (8, 16, 32, 65)),
    Choice("pdl", (True, False)),
)
SPACE = Space("cluster", TEMPLATE, PARAMETERS, (Limit(("ksplit", "warps_r", "warps_k", "depth"), _why),))

# 112 CTAs at TP 8: 8 warps with 7 pieces of weights each, all in flight
BASE = {"ksplit": 8, "ctas": 132, "warps_r": 4, "warps_k": 2, "depth": 7, "sum_from": 16, "pdl": True}
FAMILY = Family(
    "moe_tail",
    known=(
        Variant(TEMPLATE, BASE),
        Variant(TEMPLATE, {**BASE, "warps_r": 2, "warps_k": 7, "depth": 4}),  # 14 warps: more tokens are normed at once
        Variant(TEMPLATE, {**BASE, "ctas": 112, "warps_r": 8, "warps_k": 1, "depth": 14}),  # one process: a deep queue
    ),
    spaces=(SPACE,),
)
