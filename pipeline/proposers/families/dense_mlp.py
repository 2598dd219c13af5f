"""dense_mlp: moe_shared's two stages at 5.5 times the width. The template is that op's; the tables are not.

What the widths change: K of down is too long for a queue of all of it (4224 or 2112), so its weights stream; gate_up
has rows for 132 CTAs; loops over K are rolled up, as unrolled ones would take a minute to compile. Left out are plain
FMAs, as K of 2112 is no multiple of a half warp's 128, and one kernel for both stages, whose queues would share memory.
"""

from kgen.proposers.families import wgmma
from kgen.proposers.families.family import Family
from kgen.proposers.families.gated import HEAVY, TEMPLATE, Table, Widths, row
from kgen.proposers.families.point import Variant

HALF = 100  # MB of weights: half of the ranks' slices are below
FIXED = {"op": "dense_mlp", "rolled": True}
WIDTHS = Widths(
    splits={f"{g}x{k}": (g, k) for g, k in ((132, 1), (88, 1), (66, 2), (44, 2), (33, 4), (22, 4))},
    down={f"{w}_{k}x{r}": (w, "ring", k, r) for w in (3, 4, 6, 8) for k, r in ((4, 2), (2, 4), (4, 4))},
    one_down=(),
    octets=528,
    queues=(3, 4, 5, 6, 8),
    warps={f"{k}x{r}": (k, r) for k, r in ((8, 1), (7, 2), (4, 2), (8, 2), (4, 4))},
    fixed=FIXED,
)

# A queue of 98 KB for gate_up and 71 KB for down: CTAs of both fit an SM, so down fetches weights meanwhile.
NARROW, WIDE = WIDTHS.down["4_4x2"], WIDTHS.down["4_4x4"]
KNOWN = [
    [16, HALF, row((132, 1), (8, 1), 6, "ring", NARROW)],
    [64, HALF, row((132, 1), (8, 2), 3, "ring", WIDE)],
    [16, HEAVY, row((132, 1), (8, 1), 3, "ring", NARROW)],
    [64, HEAVY, row((132, 1), (4, 4), 4, "ring", WIDE)],
]

# Short queues: what the loops do at the widths of a rank, they do at small ones too.
SHORT = [[64, HEAVY, row((88, 1), (4, 2), 3, "ring", WIDTHS.down["3_2x4"])]]

FAMILY = Family(
    "dense_mlp",
    known=(
        Variant(TEMPLATE, {**FIXED, "tuning": KNOWN, "kernels": 2}),
        Variant(TEMPLATE, {**FIXED, "tuning": SHORT, "kernels": 2}),
        *wgmma.MLP_KNOWN,
    ),
    spaces=(Table(WIDTHS, 2).space("two_kernels", 1.0), wgmma.MLP_SPACE),
)
