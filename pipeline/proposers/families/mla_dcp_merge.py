"""mla_dcp_merge: the merge of a context's shards in registers, on its way into W_UV and the gate.

1.6 MB of weights at 12 heads and up to 6.3 MB of shards at 64 tokens: latency decides up to 8 tokens.
"""

from kgen.gates.audit.limits import SMEM_BYTES
from kgen.proposers.families.family import Family
from kgen.proposers.families.point import Variant
from kgen.proposers.families.space import Choice, Limit, Point, Space

TEMPLATE = "mla_dcp_merge.py.tmpl"
LATENT, STEP, VALUES = 512, 32, 128  # rows of W_UV, how many of them two MMAs take, and its values
RESERVE = 2048
WEIGHT_REGISTERS = 128  # of a thread: its weights are all in flight
OPERAND_REGISTERS = 192  # weights, shards in flight, merged latents and sums


def _why(point: Point) -> str:
    vector, groups, warps, ksplit, tiles, ahead = (point[p.name] for p in PARAMETERS[:6])
    if 8 * vector * groups > VALUES:
        return f"{groups} groups of {8 * vector} values are more than a head has"
    if warps * ksplit > LATENT // STEP:
        return f"{warps} warps of {ksplit} CTAs are more than the latent has steps"
    steps = LATENT // STEP // warps // ksplit
    weights, sums = 4 * vector * groups * steps, 2 * vector * groups * tiles
    if weights > WEIGHT_REGISTERS:
        return f"{steps} steps of {vector * groups} values do not fit a thread's registers"
    if weights + 4 * steps * (ahead + tiles + 2) + sums > OPERAND_REGISTERS:
        return f"{ahead} ranks of {steps} steps and the sums of {tiles} token tiles do not fit a thread's registers"
    if 4 * warps * (8 * vector * groups + 4) * 8 * tiles > SMEM_BYTES - RESERVE:
        return f"the sums of {warps} warps and {tiles} token tiles do not fit shared memory"
    return ""


PARAMETERS = (
    Choice("vector", (2, 4, 8)),
    Choice("groups", (1, 2)),
    Choice("warps", (2, 4, 8, 16)),
    Choice("ksplit", (1, 2, 4, 8)),
    Choice("tiles", (1, 2, 4)),
    Choice("ahead", (2, 4, 8, 16)),
    Choice("pdl", (True, False)),
)
SPACE = Space("merge", TEMPLATE, PARAMETERS, (Limit(tuple(p.name for p in PARAMETERS[:6]), _why),))

# 96 CTAs at 12 heads, each of 4 warps; every shard is read by the two CTAs that share its latents
BASE = {"vector": 8, "groups": 1, "warps": 4, "ksplit": 4, "tiles": 1, "ahead": 8, "pdl": True}
FAMILY = Family(
    "mla_dcp_merge",
    known=(
        # wider CTAs, smaller clusters; on an H200 faster than the next at 1, 8 and 64 tokens
        Variant(TEMPLATE, {**BASE, "vector": 4, "groups": 2, "warps": 8, "ksplit": 2}),
        Variant(TEMPLATE, BASE),
        # every shard is read and merged once: for many tokens
        Variant(TEMPLATE, {**BASE, "groups": 2, "warps": 4, "ksplit": 4, "ahead": 8}),
    ),
    spaces=(SPACE,),
)
