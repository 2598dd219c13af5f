"""kda_core: one cluster of CTAs a (request, head), the head's state in registers.

The template derives split, threads and lanes of each point from the parameters: a head is split over 1 to 8 CTAs until
there are about `ctas` of them, a thread keeps about `elements` floats of the state, at least `lanes` lanes share a row.
Ranked: benchmarks/ranked.json.
"""

from kgen.proposers.families.family import Family
from kgen.proposers.families.limits import EARLY
from kgen.proposers.families.point import Variant
from kgen.proposers.families.space import Choice, Space

CLUSTER = "kda_core.py.tmpl"

SPACE = Space(
    "cluster",
    CLUSTER,
    (
        Choice("ctas", (48, 96, 132, 264, 528)),
        Choice("elements", (16, 32, 64)),
        Choice("lanes", (8, 16, 32)),
        Choice("early", (True, False)),
        Choice("pdl", (True, False)),
    ),
    (EARLY,),
)
FAMILY = Family(
    "kda_core",
    known=(
        # more and smaller CTAs: shorter chains in each
        Variant(CLUSTER, {"ctas": 264, "elements": 32, "lanes": 16, "early": True, "pdl": True}),
        # about one CTA an SM for few requests, a whole head a CTA and two CTAs an SM from 8 requests on
        Variant(CLUSTER, {"ctas": 96, "elements": 64, "lanes": 8, "early": True, "pdl": True}),
    ),
    spaces=(SPACE,),
)
