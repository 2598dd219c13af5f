"""lm_head_argmax: 294 MB of weights streamed through a queue in shared memory, then two small maxima.

20480 rows are 128 equal blocks of 160 rows: 97 % of an H200's SMs, all done in one pass.
"""

from kgen.gates.audit.limits import SMEM_BYTES
from kgen.proposers.families import wgmma
from kgen.proposers.families.family import Family
from kgen.proposers.families.point import Variant
from kgen.proposers.families.space import Choice, Limit, Point, Space

TEMPLATE = "lm_head_argmax.py.tmpl"
RESERVE = 2048  # bytes of shared memory that stay free
ACCUMULATORS = 128  # float32 registers of a thread
ROW_TILES = {132: 10, 264: 5}  # of 16 rows, of a CTA, at 20480 rows; 264 CTAs are two an SM
TOKEN_TILES = 8  # at 64 tokens


def _why(point: Point) -> str:
    warps_r, warps_k, unroll, depth = (point[n] for n in ("warps_r", "warps_k", "unroll", "depth"))
    tiles, per_sm = ROW_TILES[point["ctas"]], point["ctas"] // 132
    if tiles % warps_r:
        return f"{tiles} row tiles do not go over {warps_r} warps"
    if 4 * (tiles // warps_r) * TOKEN_TILES > ACCUMULATORS:
        return f"the sums of {tiles // warps_r} row tiles and {TOKEN_TILES} token tiles do not fit a thread's registers"
    if warps_r * warps_k * per_sm > 32:
        return f"{warps_r * warps_k * per_sm} warps an SM leave too few registers for each"
    queue = depth * unroll * warps_k * 32 * 2 * (16 * tiles + 8 * TOKEN_TILES)
    sums = 4 * (16 * tiles + 4) * 8 * TOKEN_TILES * warps_k
    if max(queue, sums) > SMEM_BYTES // per_sm - RESERVE:
        return f"{depth} stages do not fit shared memory"
    return ""


PARAMETERS = (
    Choice("ctas", (132, 264)),
    Choice("warps_r", (1, 2, 5, 10)),
    Choice("warps_k", (1, 2, 4)),
    Choice("unroll", (1, 2, 4)),
    Choice("depth", (3, 4, 5, 6, 8)),
    Choice("pdl", (True, False)),
)
SPACE = Space("stream", TEMPLATE, PARAMETERS, (Limit(tuple(p.name for p in PARAMETERS[:5]), _why),))

# 10 warps of two row tiles each; 5 stages of 20 kB of weights in flight
BASE = {"ctas": 132, "warps_r": 5, "warps_k": 2, "unroll": 1, "depth": 6, "pdl": True}
FAMILY = Family(
    "lm_head_argmax",
    known=(
        Variant(TEMPLATE, BASE),
        wgmma.HEAD_KNOWN[0],
        Variant(TEMPLATE, {**BASE, "warps_r": 10, "warps_k": 1, "unroll": 2}),  # 128 bytes of a row a stage
        Variant(TEMPLATE, {**BASE, "ctas": 264}),  # two CTAs an SM: one streams as one ends
        *wgmma.HEAD_KNOWN[1:],
    ),
    spaces=(SPACE, wgmma.HEAD_SPACE),
)
