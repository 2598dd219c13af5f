"""mla_q: norm, q_b and W_UK of a head in one cluster, all weights in registers before any input.

8.7 MB of weights at 12 heads, 72 kB + 16 kB a CTA in clusters of 8: latency decides as much as bandwidth.
"""

from kgen.gates.audit.limits import SMEM_BYTES
from kgen.proposers.families.family import Family
from kgen.proposers.families.point import Variant
from kgen.proposers.families.space import Choice, Limit, Point, Space

TEMPLATE = "mla_q.py.tmpl"
RESERVE = 2048  # bytes of shared memory that stay free
Q_LORA, HEAD_ROWS, NOPE, LATENT = 1536, 192, 128, 512  # of the served dims
FEW, MANY = 16, 64  # most tokens that `warps` and `warps_many` serve
REGISTERS = 65536  # of an SM
SPARE = 56  # registers of a thread for addresses, accumulators and activations


def _divisor(n: int, most: int) -> int:
    return max(d for d in range(1, max(1, min(n, most)) + 1) if n % d == 0)


def _why(point: Point) -> str:
    cluster = point["parts"] * point["ksplit"]
    if cluster > 8:
        return f"a cluster of {cluster} CTAs is more than 8"
    return _unfit(point, point["warps"], FEW) or _unfit(point, point["warps_many"], MANY)


def _unfit(point: Point, warps: int, tokens: int) -> str:
    """What does not fit a thread or an SM when `tokens` are multiplied by so many warps."""
    rows, kc, columns = (
        HEAD_ROWS // point["parts"],
        Q_LORA // point["ksplit"],
        LATENT // point["parts"] // point["ksplit"],
    )
    groups = columns // (8 * point["vector"])
    warps_c = _divisor(groups, warps)
    warps_n = _divisor(NOPE // 16, warps // warps_c)
    weights_uk = 2 * point["vector"] * (groups // warps_c) * (NOPE // 16 // warps_n)
    weights = 8 * (kc // 32 // warps) * (rows // 16) + weights_uk
    row = Q_LORA // 8 // 32 * 4  # registers of a token's row, or of the norm's weights
    ahead = point["ahead"]
    if weights + row * (1 + ahead) + SPARE > min(255, REGISTERS // (32 * warps)):
        return f"the weights of {warps} warps and {ahead} rows do not fit a thread's registers"
    after = 4 * rows * tokens + 2 * (NOPE + 16) * tokens  # sums and Q, where qc was
    first = max(2 * kc * tokens, after) + 4 * tokens * (rows + 4) * warps
    if max(first, after + 4 * tokens * (columns + 4) * warps_n) > SMEM_BYTES - RESERVE:
        return f"{tokens} tokens and the sums of {warps} warps do not fit shared memory"
    return ""


PARAMETERS = (
    Choice("parts", (2, 4)),
    Choice("ksplit", (1, 2, 4)),
    Choice("warps", (4, 6, 8, 12)),
    Choice("warps_many", (4, 6, 8)),
    Choice("vector", (2, 4, 8)),
    Choice("ahead", (1, 2)),
    Choice("share", (8, 16, 32, 65)),
    Choice("pdl", (True, False)),
)
SPACE = Space("cluster", TEMPLATE, PARAMETERS, (Limit(tuple(p.name for p in PARAMETERS[:6]), _why),))

# 96 CTAs at 12 heads, 88 kB of weights each
BASE = {"parts": 4, "ksplit": 2, "warps": 8, "warps_many": 8, "vector": 8, "ahead": 1, "share": 16, "pdl": True}
FAMILY = Family(
    "mla_q",
    known=(
        Variant(TEMPLATE, BASE),
        Variant(TEMPLATE, {**BASE, "warps": 12, "share": 8}),  # fewer weights a thread: rows are normed sooner
        # a quarter of q_lora in each CTA: less of p to read and to keep, for many tokens
        Variant(TEMPLATE, {**BASE, "parts": 2, "ksplit": 4, "warps": 6, "warps_many": 6, "vector": 4}),
    ),
    spaces=(SPACE,),
)
