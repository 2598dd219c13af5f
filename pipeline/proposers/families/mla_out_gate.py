"""mla_out_gate: W_UV of a head spread over CTAs, the sums gated. 1.6 MB of weights, latency decides."""

from kgen.gates.audit.limits import SMEM_BYTES
from kgen.proposers.families.family import Family
from kgen.proposers.families.point import Variant
from kgen.proposers.families.space import Choice, Limit, Point, Space

VALUES = "mla_out_gate.py.tmpl"
LATENT, STEP = 512, 16  # rows of W_UV, and how many of them one MMA takes
RESERVE = 2048
WEIGHT_REGISTERS = 64  # of a thread: its weights are all in flight


def _why(point: Point) -> str:
    vector, warps, ksplit, tiles = (point[n] for n in ("vector", "warps", "ksplit", "tiles"))
    if warps * ksplit > LATENT // STEP:
        return f"{warps} warps of {ksplit} CTAs are more than the latent has steps"
    steps = LATENT // STEP // warps // ksplit
    if steps * 2 * vector > WEIGHT_REGISTERS:
        return f"{steps} steps of {vector} values do not fit a thread's registers"
    if 4 * warps * (8 * vector + 4) * 8 * tiles > SMEM_BYTES - RESERVE:
        return f"the sums of {warps} warps and {tiles} token tiles do not fit shared memory"
    return ""


PARAMETERS = (
    Choice("vector", (2, 4, 8)),
    Choice("warps", (4, 8, 16)),
    Choice("ksplit", (1, 2, 4)),
    Choice("tiles", (1, 2, 4)),
    Choice("pdl", (True, False)),
)
SPACE = Space("mma", VALUES, PARAMETERS, (Limit(tuple(p.name for p in PARAMETERS[:4]), _why),))

FAMILY = Family(
    "mla_out_gate",
    known=(
        # 96 CTAs at 12 heads; on an H200 faster than the next at 1, 8 and 64 tokens
        Variant(VALUES, {"vector": 4, "warps": 8, "ksplit": 2, "tiles": 2, "pdl": True}),
        Variant(VALUES, {"vector": 8, "warps": 8, "ksplit": 4, "tiles": 1, "pdl": True}),  # the same, larger clusters
        Variant(VALUES, {"vector": 2, "warps": 8, "ksplit": 1, "tiles": 2, "pdl": True}),  # without clusters
    ),
    spaces=(SPACE,),
)
