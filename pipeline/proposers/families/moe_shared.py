"""Gate_up, SiTU, down: kernel families of moe_shared. On tensor cores in two kernels or in one, and with plain FMAs.

The tensor-core template reads a tuning table, a row per range of tokens (and of weights). In the space each range has
parameters of its own, called `<name>_<tokens>`; what fits shared memory is decided by `fits` at the widest point.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kgen.gates.audit.limits import SMEM_BYTES
from kgen.proposers.families.family import Family
from kgen.proposers.families.point import Row, Variant
from kgen.proposers.families.space import Choice, Limit, Parameter, Point, Space

MMA, FMA = "moe_shared.py.tmpl", "moe_shared_fma.py.tmpl"

# Axes of a row
SPLITS = {f"{g}x{k}": (g, k) for g, k in ((96, 1), (48, 2), (24, 4), (12, 8))}  # row groups x K splits: 96 CTAs each
WARPS = {f"{k}x{r}": (k, r) for k, r in ((8, 1), (7, 1), (4, 2), (2, 4), (4, 1))}  # along K x along rows
DOWN = {  # weights, activations, warps along K, along rows
    "registers": ("reg", "bulk", 2, 4),
    "bulk": ("all", "bulk", 2, 4),
    "ring": ("all", "ring", 2, 4),
    "direct": ("all", "direct", 4, 2),
}
ONE_DOWN = ("ring", "direct")  # in one kernel only their warps count
QUEUES = (4, 5, 6, 8, 10, 12, 14)
TOKEN_RANGES = (8, 16, 32, 64)
LIGHT, HEAVY = 20, 10**6  # MB of weights that a row serves at most
RESERVE = 2048
ONE_KERNEL_RESERVE = 112 * 1024  # bytes that the second stage of one kernel needs beside the first
STREAMED = {"w": 3, "x": "ring", "x_stages": 3, "down_w": 3, "down_x": "ring"}  # the stages of one kernel share memory


def row(
    split: tuple[int, int], warps: tuple[int, int], w: int, x: str, down: tuple[str, str, int, int], pdl: bool = True,
    rows: int = 64,
) -> dict[str, Any]:  # fmt: skip
    """One row of a tuning table. `w`: K steps of gate_up weights in flight; `rows`: outputs of a down CTA."""
    down_w, down_x, down_warps_k, down_warps_r = down
    return {
        "groups": split[0], "ksplit": split[1], "warps_k": warps[0], "warps_r": warps[1], "w": w, "x": x,
        "x_stages": w, "rows": rows, "down_warps_k": down_warps_k, "down_warps_r": down_warps_r, "down_w": down_w,
        "down_x": down_x, "down_x_stages": 3, "pdl": pdl,
    }  # fmt: skip


def fits(row: Row, tokens: int, reserve: int = RESERVE) -> bool:
    """Whether gate_up's queues fit shared memory at the widest problem (96 pair groups of 8 rows, K of 7168).

    `reserve`: bytes that must stay free.
    """
    tiles_each = 96 // row["groups"] // row["warps_r"]
    if tiles_each < 1:
        return False
    threads = 32 * row["warps_k"] * row["warps_r"]
    token_tiles = (tokens + 7) // 8
    weights = threads * 32 * tiles_each * row["w"]
    ring = 512 * row["warps_k"] * token_tiles * row["x_stages"]
    bulk = tokens * 2 * (7168 // row["ksplit"] + 96)
    sums = 32 * (16 * (96 // row["groups"]) + 20) * token_tiles * row["warps_k"]  # they take the weights' place
    used = max(weights, sums) + (bulk if row["x"] == "bulk" else ring)
    accumulators = 4 * tiles_each * token_tiles
    return bool(used < SMEM_BYTES - reserve and accumulators <= 128)


def _row_of(point: Point, tokens: int, kernels: int) -> dict[str, Any]:
    """The row of one range of tokens."""
    at = {name.removesuffix(f"_{tokens}"): value for name, value in point.items()}
    split, warps, down = SPLITS[at["split"]], WARPS[at["warps"]], DOWN[at["down"]]
    if kernels == 1:
        return {**row(split, warps, 3, "ring", down, point["pdl"], at["rows"]), **STREAMED}
    return row(split, warps, at["w"], at.get("x", "ring"), down, point["pdl"], at["rows"])


def _values(point: Point, kernels: int) -> Mapping[str, Any]:
    table = [[tokens, HEAVY, _row_of(point, tokens, kernels)] for tokens in TOKEN_RANGES]
    return {"tuning": table, "kernels": kernels}


def _read(values: Mapping[str, Any], kernels: int) -> Point | None:
    """The point of a table of exactly these ranges, None for another table."""
    table = values.get("tuning", ())
    if values.get("kernels") != kernels or [list(entry[:2]) for entry in table] != [[t, HEAVY] for t in TOKEN_RANGES]:
        return None
    point: dict[str, Any] = {"pdl": table[0][2]["pdl"]}
    for tokens, _, found in table:
        down = ("down_w", "down_x", "down_warps_k", "down_warps_r")
        columns = down[2:] if kernels == 1 else down  # weights and activations stream in one kernel
        index = len(down) - len(columns)
        options = ONE_DOWN if kernels == 1 else tuple(DOWN)
        alike = (k for k in options if DOWN[k][index:] == tuple(found[c] for c in columns))
        chosen = {
            "split": f"{found['groups']}x{found['ksplit']}",
            "warps": f"{found['warps_k']}x{found['warps_r']}",
            "down": next(alike, ""),
            "rows": found["rows"],
        }
        if kernels == 2:
            chosen |= {"w": found["w"]} | ({"x": found["x"]} if tokens <= 8 else {})
        point |= {f"{name}_{tokens}": value for name, value in chosen.items()}
    same = not any(point[f"down_{t}"] == "" for t in TOKEN_RANGES) and _values(point, kernels) == values
    return point if same else None


def _why(point: Point, tokens: int, kernels: int) -> str:
    reserve = ONE_KERNEL_RESERVE if kernels == 1 else RESERVE
    fine = fits(_row_of(point, tokens, kernels), tokens, reserve)
    return "" if fine else f"the queues of up to {tokens} tokens do not fit shared memory"


def _range(tokens: int, kernels: int) -> tuple[Parameter, ...]:
    """Parameters of one range of tokens."""

    def named(name: str, options: tuple[Any, ...]) -> Choice:
        return Choice(f"{name}_{tokens}", options)

    common = (named("split", tuple(SPLITS)), named("warps", tuple(WARPS)), named("rows", (32, 64)))
    if kernels == 1:
        return (*common, named("down", ONE_DOWN))
    down = tuple(k for k, v in DOWN.items() if tokens <= 16 or v[1] != "bulk")
    bulk = (named("x", ("bulk", "ring")),) if tokens <= 8 else ()
    return (*common, named("down", down), named("w", QUEUES), *bulk)


def tensor_cores(kernels: int, share: float) -> Space:
    """The space of the tensor-core template, in this many kernels."""
    groups = {tokens: _range(tokens, kernels) for tokens in TOKEN_RANGES}
    limits = tuple(
        Limit(tuple(p.name for p in group), partial(_why, tokens=tokens, kernels=kernels))
        for tokens, group in groups.items()
    )
    parameters = (Choice("pdl", (True, False)), *(p for group in groups.values() for p in group))
    name = "two_kernels" if kernels == 2 else "one_kernel"
    values: Callable[[Point], Mapping[str, Any]] = partial(_values, kernels=kernels)
    return Space(name, MMA, parameters, limits, share=share, values=values, read=partial(_read, kernels=kernels))


FMAS = Space(
    "fma",
    FMA,
    (Choice("warps", (4, 8)), Choice("rows", (1, 2, 4)), Choice("unroll", (2, 4, 7)), Choice("pdl", (True, False))),
)

# Good rows by (largest token count, largest weights in MB), chosen by graph time over cold weights on one H200. The
# sweep of this table is the evidence; the comparisons that led to it are not committed (runs/README.md). What they
# suggested: 96 CTAs leave room for down's CTAs to fetch their weights meanwhile; a queue beyond about 145 KB keeps
# those out and loses more than it hides; clusters of 8 do not all fit in one wave of its 132 SMs.
REG, DIRECT = DOWN["registers"], DOWN["direct"]
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
        Variant(MMA, {"tuning": TUNED, "kernels": 2}),
        Variant(FMA, {"warps": 8, "rows": 1, "unroll": 4, "pdl": True}),
    ),
    spaces=(tensor_cores(2, share=3.0), tensor_cores(1, share=1.0), FMAS),
)
