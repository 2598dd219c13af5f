"""mla_decode: runs of rows over all SMs through a ring in shared memory, then a merge.

Bytes in flight of an SM. A plain read reaches 4.48 TB/s on an H200: 34 KB/us of each of 132 SMs. A loaded read takes
about 1 us, so 34 KB must be under way at the least; a tile computes for part of that time, hence twice as much or more.
A tile is started when the one before the current one is done with: of a ring of S tiles, S - 2 to S - 1 are under way.
By known point, in their order (a CTA an SM):

    point                        bf16                           e4m3
    bulk copies, 16 columns      5 tiles of 37 KB: 111-148 KB   9 tiles of 18 KB: 129-148 KB
    the same by cp.async         as above                       as above
    cp.async, 24 columns         4 tiles of 37 KB: 74-111 KB    9 tiles of 18 KB: 129-148 KB

All tiles have 32 rows. The first two are for whatever is bound by the reads of rows: 12 heads are 16 columns. Copies of
16 bytes (cp.async) take 72 instructions of a warp a bf16 tile, over four warps; bulk copies take one a row, each in a
loop of some ten, since their addresses are uniform. More columns a CTA: several new tokens a
request, where every other CTA that shares the rows reads them from L2 again.
"""

from kgen.gates.audit.limits import SMEM_BYTES
from kgen.proposers.families.family import Family
from kgen.proposers.families.point import Variant
from kgen.proposers.families.space import Choice, Limit, Point, Space, Whole

RING = "mla_decode.py.tmpl"
FETCHERS = 4  # warps
ROW, LATENT, STEP = 576, 512, 16  # elements of a row, of its latent; rows, latents or k of one MMA
PADDED = 2 * ROW + 16  # bytes of a bf16 row in shared memory
SMALL = 2048  # bytes of shared memory for everything that does not grow with a parameter
OTHERS, AHEAD = 20, 6  # registers of a thread beside operands and sums; of rows read ahead, by tile of latents


def parts(point: Point) -> int:
    """Warps that share a row's elements."""
    return int(point["warps"] * STEP // point["rows"])


def _warps(point: Point) -> str:
    if ROW // STEP % parts(point):
        return f"{point['warps']} warps do not share {point['rows']} rows of {ROW // STEP} steps evenly"
    return ""


def shared_bytes(point: Point) -> int:
    """Of a CTA at most, over both cache formats: ring, sums of scores, weights."""
    rows, columns = point["rows"], point["columns"]
    return int(point["ring"] * 1024 + 4 * parts(point) * columns * (rows + 4) + 2 * columns * (rows + 8) + SMALL)


def _shared(point: Point) -> str:
    if point["ring"] * 1024 < 2 * point["rows"] * PADDED:
        return f"a ring of {point['ring']} KB does not hold two tiles of {point['rows']} rows"
    need = shared_bytes(point)
    return f"{need} bytes of shared memory do not fit" if need > SMEM_BYTES else ""


def _registers(point: Point) -> str:
    """Warps, the fetching ones among them, are dealt to four parts of an SM, each with 512 registers a lane."""
    deep = (point["warps"] + FETCHERS) // 4
    most = min(255, 512 // deep // 8 * 8)
    steps, tiles = ROW // STEP // parts(point), LATENT // STEP // point["warps"]
    need = OTHERS + AHEAD * tiles + steps + point["columns"] // 8 * (2 * steps + 4 * tiles + 4)
    return f"a thread needs about {need} registers and has {most}" if need > most else ""


LIMITS = (
    Limit(("rows", "warps"), _warps),
    Limit(("rows", "warps", "ring", "columns"), _shared),
    Limit(("rows", "warps", "columns"), _registers),
)
SPACE = Space(
    "ring",
    RING,
    (
        Choice("rows", (16, 32, 64)),
        Whole("ring", 40, 208, step=8),
        Choice("warps", (4, 8)),
        Choice("columns", (8, 16, 24)),
        Choice("least", (1, 2, 4)),
        Choice("bulk", (False, True)),
    ),
    LIMITS,
)
FAMILY = Family(
    "mla_decode",
    known=(
        Variant(RING, {"rows": 32, "ring": 184, "warps": 8, "columns": 16, "least": 2, "bulk": True}),
        Variant(RING, {"rows": 32, "ring": 184, "warps": 8, "columns": 16, "least": 2, "bulk": False}),
        Variant(RING, {"rows": 32, "ring": 176, "warps": 8, "columns": 24, "least": 2, "bulk": False}),
    ),
    spaces=(SPACE,),
)
