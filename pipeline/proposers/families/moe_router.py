"""moe_router: a skinny product with K split over CTAs, then the choice of experts by rank.

The template chooses for itself how often to split K: as often as `ctas` allow. Up to `last` tokens the CTA that comes
last chooses, beyond that a second kernel with a CTA a token. Ranked: benchmarks/ranked.json.
"""

from kgen.proposers.families.family import Family
from kgen.proposers.families.limits import EARLY
from kgen.proposers.families.point import Variant
from kgen.proposers.families.space import Choice, Space

TEMPLATE = "moe_router.py.tmpl"

SPACE = Space(
    "router",
    TEMPLATE,
    (
        Choice("rows", (16, 32)),
        Choice("rows_many", (16, 32, 64)),
        Choice("ctas", (132, 264)),
        Choice("threads", (128, 256)),
        Choice("depth", (4, 7, 10, 14)),
        Choice("last", (0, 1, 4, 8)),
        Choice("early", (True, False)),
        Choice("pdl", (True, False)),
    ),
    (EARLY,),
)
# 112 CTAs at the served dims, and all weights of a CTA in flight before the kernel before has ended.
BASE = {"rows": 16, "rows_many": 64, "ctas": 132, "threads": 256, "depth": 14, "last": 8, "early": True, "pdl": True}
FAMILY = Family(
    "moe_router",
    known=(
        Variant(TEMPLATE, BASE),
        Variant(TEMPLATE, {**BASE, "last": 0, "depth": 7}),  # the choice is always a kernel of its own
    ),
    spaces=(SPACE,),
)
