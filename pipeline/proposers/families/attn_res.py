"""attn_res: a row over a cluster of 2 to 8 CTAs, all sources in registers, two reductions.

Ranked: benchmarks/ranked.json.
"""

from kgen.proposers.families.family import Family
from kgen.proposers.families.limits import EARLY
from kgen.proposers.families.point import Variant
from kgen.proposers.families.space import Choice, Space

ROW = "attn_res.py.tmpl"

SPACE = Space(
    "row",
    ROW,
    (
        Choice("ctas", (16, 32, 64, 128, 256)),
        Choice("vectors", (1, 2)),
        Choice("early", (True, False)),
        Choice("pdl", (True, False)),
    ),
    (EARLY,),
)
FAMILY = Family(
    "attn_res",
    known=(
        Variant(ROW, {"ctas": 64, "vectors": 1, "early": True, "pdl": True}),  # 8 CTAs a row up to 8 tokens
        Variant(ROW, {"ctas": 32, "vectors": 1, "early": True, "pdl": True}),  # smaller clusters: less to wait for
    ),
    spaces=(SPACE,),
)
