"""Points with wgmma: weights stream through a ring by TMA; in plain projections K is split over a cluster.

Limits are of an SM that holds two CTAs (a CTA of the next kernel beside one of these), and of clusters of 8 CTAs.
"""

from collections.abc import Mapping

from kgen.proposers.families.point import Variant
from kgen.proposers.families.space import Choice, Limit, Point, Space

TEMPLATE, HEAD, MLP = "projection_wgmma.py.tmpl", "lm_head_wgmma.py.tmpl", "mlp_wgmma.py.tmpl"
CLUSTER = 8  # CTAs that any GPU of the architecture places
MMA = {"warps": 8, "unroll": 4, "blocks": 132}  # of the kernel for other architectures and fewer tokens


def _why(point: Point) -> str:
    together = max(point["parts"], point.get("down_parts", 1)) * point["share"]
    return f"a cluster of {together} CTAs is not placed everywhere" if together > CLUSTER else ""


PARAMETERS = (
    Choice("from_tokens", (1, 2, 16)),
    Choice("ctas", (132, 264)),
    Choice("parts", (1, 2, 4, 8)),
    Choice("share", (1, 2, 4)),
    Choice("ring", (72, 108, 208)),
    Choice("pdl", (True, False)),
)


HEAD_SPACE = Space("wgmma", HEAD, tuple(p for p in PARAMETERS if p.name in ("ctas", "share", "ring", "pdl")))
HEAD_BASE = {"ctas": 132, "share": 2, "ring": 108, "pdl": True}
HEAD_KNOWN = (
    Variant(HEAD, {**HEAD_BASE, "ring": 208}),  # all of an SM's shared memory in flight: the fastest on an H200
    Variant(HEAD, HEAD_BASE),
    Variant(HEAD, {**HEAD_BASE, "share": 4}),
    Variant(HEAD, {**HEAD_BASE, "share": 1}),
)


MLP_PARAMETERS = (*(p for p in PARAMETERS if p.name != "from_tokens"), Choice("down_parts", (1, 2, 4)))
MLP_SPACE = Space(
    "wgmma", MLP, MLP_PARAMETERS, (Limit(("parts", "down_parts", "share"), _why),), fixed={"op": "dense_mlp"}
)
MLP_BASE = {"op": "dense_mlp", "ctas": 132, "parts": 2, "down_parts": 2, "share": 1, "ring": 108, "pdl": True}
MLP_KNOWN = (
    Variant(MLP, MLP_BASE),
    Variant(MLP, {**MLP_BASE, "parts": 1, "share": 2}),
    Variant(MLP, {**MLP_BASE, "down_parts": 4}),
    Variant(MLP, {**MLP_BASE, "ring": 208}),
)


def space(sizes: Mapping[str, str]) -> Space:
    """`sizes`: the dims symbols of outputs and inputs."""
    limits = (Limit(("parts", "share"), _why),)
    return Space("wgmma", TEMPLATE, PARAMETERS, limits, fixed={**sizes, **MMA}, share=3.0)


def known(sizes: Mapping[str, str], parts: tuple[int, ...], fastest: Mapping[str, int]) -> tuple[Variant, ...]:
    """By the `parts` of K that suit an op: the tiles of its CTAs are then about as many bytes as their activations.

    `fastest` on an H200 at 16 to 64 tokens, of these, comes first.
    """
    base = {**sizes, **MMA, "from_tokens": 1, "ctas": 132, "share": 1, "ring": 108, "pdl": True, "parts": parts[0]}
    changes: tuple[dict[str, int], ...] = (*({"parts": p} for p in parts), {"share": 2}, {"ring": 208})
    found = [{**base, **fastest}, *({**base, **change} for change in changes)]
    return tuple(Variant(TEMPLATE, values) for n, values in enumerate(found) if values not in found[:n])
