"""oproj_allreduce_residual: o_proj with the sum over ranks in its epilogue, then attn_res's mix.

22 MB of weights at TP 8: 112 CTAs of 196 kB, all of it in flight before any input; or two CTAs an SM of half of that.
"""

from kgen.gates.audit.limits import SMEM_BYTES
from kgen.proposers.families.family import Family
from kgen.proposers.families.point import Variant
from kgen.proposers.families.space import Choice, Limit, Point, Space

TEMPLATE = "oproj_allreduce_residual.py.tmpl"
STEPS = 1536 // 32  # of K at the widest served dims
ROW_TILES = {132: 4, 264: 2}  # of 16 rows, of a CTA, at 7168 rows; 264 CTAs are two an SM
TOKENS, WARPS = 64, 16  # at most; so many warps have 128 registers a thread
RESERVE = 1024


def _why(point: Point) -> str:
    tiles, per_sm, warps_k = ROW_TILES[point["ctas"]], point["ctas"] // 132, point["warps_k"]
    if tiles % point["warps_r"]:
        return f"{tiles} row tiles do not go over {point['warps_r']} warps"
    if point["warps_r"] * warps_k > WARPS:
        return f"{point['warps_r'] * warps_k} warps are more than {WARPS}"
    depth = min(point["depth"], STEPS // warps_k)
    queue, sums = 1024 * tiles * warps_k * depth, 4 * (16 * tiles + 4) * TOKENS * warps_k
    if max(queue, sums) > SMEM_BYTES // per_sm - RESERVE:
        return f"{depth} steps of {warps_k} warps along K do not fit shared memory"
    return ""


PARAMETERS = (
    Choice("ctas", (132, 264)),
    Choice("warps_r", (1, 2, 4)),
    Choice("warps_k", (2, 4, 6, 8, 12)),
    Choice("depth", (3, 4, 6, 8, 12)),
    Choice("mixers", (32, 64, 128)),
    Choice("pdl", (True, False)),
)
SPACE = Space("two_kernels", TEMPLATE, PARAMETERS, (Limit(tuple(p.name for p in PARAMETERS[:4]), _why),))

# 8 warps with 12 K steps of two row tiles each, all in flight
BASE = {"ctas": 132, "warps_r": 2, "warps_k": 4, "depth": 12, "mixers": 64, "pdl": True}
FAMILY = Family(
    "oproj_allreduce_residual",
    known=(
        Variant(TEMPLATE, BASE),
        Variant(TEMPLATE, {**BASE, "ctas": 264}),  # two CTAs an SM, one row tile a warp
        Variant(TEMPLATE, {**BASE, "warps_r": 4, "depth": 6, "mixers": 128}),  # 16 warps, half of the weights in flight
    ),
    spaces=(SPACE,),
)
