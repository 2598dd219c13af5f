"""moe_shared: gate_up, SiTU, down. On tensor cores in two kernels or in one (`gated`), and with plain FMAs."""

from kgen.proposers.families.family import Family
from kgen.proposers.families.gated import HEAVY, TEMPLATE, Table, Widths, row
from kgen.proposers.families.point import Variant
from kgen.proposers.families.space import Choice, Space

FMA = "moe_shared_fma.py.tmpl"
LIGHT = 20  # MB of weights
WIDTHS = Widths(
    splits={f"{g}x{k}": (g, k) for g, k in ((96, 1), (48, 2), (24, 4), (12, 8))},  # 96 CTAs each
    down={
        "registers": ("reg", "bulk", 2, 4),
        "bulk": ("all", "bulk", 2, 4),
        "ring": ("all", "ring", 2, 4),
        "direct": ("all", "direct", 4, 2),
    },
    one_down=("ring", "direct"),
    octets=96,
    queues=(4, 5, 6, 8, 10, 12, 14),
    warps={f"{k}x{r}": (k, r) for k, r in ((8, 1), (7, 1), (4, 2), (2, 4), (4, 1))},
)
FMAS = Space(
    "fma",
    FMA,
    (Choice("warps", (4, 8)), Choice("rows", (1, 2, 4)), Choice("unroll", (2, 4, 7)), Choice("pdl", (True, False))),
)

# Good rows by (largest token count, largest weights in MB), chosen by graph time over cold weights on one H200. The
# sweep of this table is the evidence; the comparisons that led to it are not committed (runs/README.md). What they
# suggested: 96 CTAs leave room for down's CTAs to fetch their weights meanwhile; a queue beyond about 145 KB keeps
# those out and loses more than it hides; clusters of 8 do not all fit in one wave of its 132 SMs.
REG, DIRECT = WIDTHS.down["registers"], WIDTHS.down["direct"]
TUNED = [
    [2, LIGHT, row((24, 4), (8, 1), 8, "bulk", REG)],
    [16, LIGHT, row((24, 4), (8, 1), 8, "ring", REG)],
    [32, LIGHT, row((24, 4), (8, 1), 4, "ring", DIRECT)],
    [64, LIGHT, row((24, 4), (4, 2), 7, "ring", DIRECT)],
    [1, HEAVY, row((96, 1), (7, 1), 18, "bulk", REG)],
    [2, HEAVY, row((96, 1), (7, 1), 16, "bulk", REG)],
    [3, HEAVY, row((96, 1), (8, 1), 14, "bulk", REG)],
    [4, HEAVY, row((96, 1), (7, 1), 12, "bulk", REG)],
    [8, HEAVY, row((96, 1), (7, 1), 13, "ring", REG)],
    [16, HEAVY, row((96, 1), (8, 1), 9, "ring", REG)],
    [32, HEAVY, row((24, 4), (4, 2), 5, "ring", DIRECT)],
    [64, HEAVY, row((24, 4), (4, 2), 4, "ring", DIRECT)],
]

FAMILY = Family(
    "moe_shared",
    known=(
        Variant(TEMPLATE, {"tuning": TUNED, "kernels": 2}),
        Variant(FMA, {"warps": 8, "rows": 1, "unroll": 4, "pdl": True}),
    ),
    spaces=(Table(WIDTHS, 2).space("two_kernels", 3.0), Table(WIDTHS, 1).space("one_kernel", 1.0), FMAS),
)
