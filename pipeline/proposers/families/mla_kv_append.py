"""mla_kv_append: a warp or a few a token, everything in registers. A few KB, latency decides.

Bytes in flight an SM: the whole of what its tokens need, at most 2.2 KB a token (row, key, norm weights), and that is
also all there is: 64 tokens move 150 KB. So points differ in how long the chain of one token is (more lanes: fewer
values a lane, but a barrier between warps) and in how many SMs take part.
"""

from kgen.proposers.families.family import Family
from kgen.proposers.families.limits import EARLY
from kgen.proposers.families.point import Variant
from kgen.proposers.families.space import Choice, Space

ROWS = "mla_kv_append.py.tmpl"

SPACE = Space(
    "rows",
    ROWS,
    (
        Choice("lanes", (32, 64, 128)),
        Choice("tokens", (1, 2, 4, 8)),  # 8 of 128 lanes are 1024 threads
        Choice("early", (True, False)),
        Choice("pdl", (True, False)),
    ),
    (EARLY,),
)
FAMILY = Family(
    "mla_kv_append",
    known=(
        Variant(ROWS, {"lanes": 64, "tokens": 1, "early": True, "pdl": True}),  # 16 bytes a lane, one barrier
        Variant(ROWS, {"lanes": 32, "tokens": 1, "early": True, "pdl": True}),  # no barrier, no shared memory
        Variant(ROWS, {"lanes": 128, "tokens": 2, "early": True, "pdl": True}),  # shortest chain of arithmetic
    ),
    spaces=(SPACE,),
)
