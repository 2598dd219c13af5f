"""moe_experts: one persistent kernel that streams the MXFP4 weights of the routed experts through a ring of slots.

`stream` is the template that was promoted; `tiles`, below, changes what its record and its machine code say it loses.

Contract acts=bf16. The template spreads the units of each stage evenly over the CTAs, whatever the routing, and derives
from dims how many slots of `stages` shared memory holds. At TP 8 a slot is 30 KB (16 rows of gate and up with their
scales, or 112 rows of down). Bytes in flight an SM, while a unit or two are being multiplied:

    known 0: 6 slots, 150 to 180 KB. That is all of gate and up that a CTA reads at one token, so their latency is paid
             once. The stops that a CTA has to make (the list of experts, the wait for hidden units, latents of the next
             expert: about 1 to 2 us each) are less than what the ring holds at 34 KB a us, an SM's part of the roof.
    known 1: 4 slots, 90 to 120 KB: leaves an SM room for CTAs of a kernel on another stream (shared expert, prefetch).
             64 KB would be enough for the latency of memory alone, 120 KB covers a stop of 3 us.
    known 2: all 14 warps share a unit of gate and up, and down's units are 224 rows, 45 KB, in 4 slots: 140 to 180 KB
             in flight. Half the registers for activations and shorter chains of products: for many tokens, where
             decoding takes over half of the instructions that an SM has time for.

In `tiles`, which has not been timed:

    released once  a unit of gate and up took 1.15 to 1.37 us at 64 tokens, with or without decoding, where its 30 KB
                   arrive in 0.85: the finisher warp released (a fence of the GPU) after each. Now after each segment.
    decoding       the bits of sign and magnitude reach their places by one product instead of two shifts: 75 instead
                   of 83 instructions for 16 bytes of codes, 37 instead of 41 of them of the half-rate integer pipe.
    the list       tokens are bits of words of 32: an `or` of 64 bits in shared memory is a loop, and one that 64 tokens
                   on one expert contend for.
    combine        lanes of a warp read what lies beside each other.
    tiles 2        an expert has a segment for 16 tokens instead of 8: half of the reads from L2 where many share an
                   expert, and half of the decoding of gate and up, whose K over 14 warps leaves registers for both
                   tiles' activations. Down decodes a slot of the ring once a tile.

Not covered: acts=mxfp8, layouts of a backend. An expert with more tokens than a segment is several, each of which reads
its weights, the later ones from L2. Ranked: benchmarks/ranked.json.
"""

from kgen.proposers.families.family import Family
from kgen.proposers.families.limits import EARLY
from kgen.proposers.families.point import Variant
from kgen.proposers.families.space import Choice, Limit, Point, Space

TEMPLATE, TILES_TEMPLATE = "moe_experts.py.tmpl", "moe_experts_tiles.py.tmpl"
THREADS = 576  # of which two warps do not multiply: more would leave a thread too few registers for its activations
K_STEPS = 28  # of 128 at the served latent width
HELD = 4  # K steps of activations in a thread's registers, 16 each


def _too_many_warps(point: Point) -> str:
    warps, most = point["warps"], max(point["k_warps"], point["row_warps"])
    if most > warps:
        return f"a unit for {most} warps is more than the {warps} there are"
    return "" if 32 * (warps + 2) <= THREADS else f"{warps} warps leave a thread too few registers"


def _too_many_steps(point: Point) -> str:
    steps = K_STEPS // point["k_warps"] * point.get("tiles", 1)
    return "" if steps <= HELD else f"{steps} K steps of activations do not fit a thread's registers"


PARAMETERS = (
    Choice("ctas", (66, 132)),
    Choice("warps", (7, 8, 14, 16)),
    Choice("k_warps", (7, 14)),
    Choice("row_warps", (2, 4, 7, 8, 14)),
    Choice("stages", (3, 4, 5, 6)),
    Choice("early", (True, False)),
    Choice("pdl", (True, False)),
)
SPACE = Space(
    "stream",
    TEMPLATE,
    PARAMETERS,
    (
        Limit(("warps", "k_warps", "row_warps"), _too_many_warps),
        Limit(("k_warps",), _too_many_steps),
        EARLY,
    ),
)
TILES_SPACE = Space(
    "tiles",
    TILES_TEMPLATE,
    (*PARAMETERS, Choice("tiles", (1, 2))),
    (
        Limit(("warps", "k_warps", "row_warps"), _too_many_warps),
        Limit(("k_warps", "tiles"), _too_many_steps),
        EARLY,
    ),
    share=3.0,
)
BASE = {"ctas": 132, "warps": 14, "k_warps": 7, "row_warps": 7, "stages": 6, "early": True, "pdl": True}
TILES = {**BASE, "tiles": 1}
FAMILY = Family(
    "moe_experts",
    known=(
        Variant(TEMPLATE, BASE),
        Variant(TEMPLATE, {**BASE, "stages": 4}),
        Variant(TEMPLATE, {**BASE, "k_warps": 14, "row_warps": 14}),
        Variant(TILES_TEMPLATE, TILES),
        Variant(TILES_TEMPLATE, {**TILES, "stages": 4}),
        Variant(TILES_TEMPLATE, {**TILES, "k_warps": 14, "tiles": 2}),
        Variant(TILES_TEMPLATE, {**TILES, "k_warps": 14}),
    ),
    spaces=(SPACE, TILES_SPACE),
)
