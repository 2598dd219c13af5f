"""out = x w^T: kernel families of all plain projections, on tensor cores and with plain FMAs.

No point of these has been timed yet: the known ones are what the worked kernels of the guide suggest.
"""

from collections.abc import Mapping

from kgen.proposers.families import wgmma
from kgen.proposers.families.family import Family
from kgen.proposers.families.point import Variant
from kgen.proposers.families.space import Choice, Space

FMA, MMA = "projection_fma.py.tmpl", "projection_mma.py.tmpl"
PDL = Choice("pdl", (True, False))

# op -> the dims symbols of w's rows and of K
PROJECTIONS: Mapping[str, tuple[str, str]] = {
    "kda_in_proj": ("width", "hidden"),
    "mla_in_proj": ("width", "hidden"),
    "oproj_partial": ("hidden", "local"),
    "moe_latent_down": ("latent", "hidden"),
}
# op -> CTAs of a cluster along K that its points with wgmma try
PARTS: Mapping[str, tuple[int, ...]] = {
    "kda_in_proj": (2, 4),
    "mla_in_proj": (4, 2),
    "oproj_partial": (2, 4),
    "moe_latent_down": (8, 4),
}


def _spaces(sizes: Mapping[str, str]) -> tuple[Space, ...]:
    mma = (Choice("warps", (4, 7, 8, 14)), Choice("unroll", (1, 2, 4, 7)), PDL, Choice("blocks", (66, 132, 264, 528)))
    fma = (
        Choice("warps", (4, 8)), Choice("slices", (1, 2, 4, 7, 8)), PDL, Choice("rows", (1, 2, 4)),
        Choice("unroll", (1, 2, 4)),
    )  # fmt: skip
    return (
        Space("mma", MMA, mma, fixed=sizes, share=3.0),
        Space("fma", FMA, fma, fixed=sizes, share=2.0),
        wgmma.space(sizes),
    )


def _family(op: str) -> Family:
    sizes = dict(zip(("outputs", "inputs"), PROJECTIONS[op], strict=True))
    known = (
        Variant(MMA, {**sizes, "warps": 8, "unroll": 4, "blocks": 132, "pdl": True}),
        Variant(FMA, {**sizes, "warps": 8, "slices": 4, "rows": 2, "unroll": 2, "pdl": True}),
        *wgmma.known(sizes, PARTS[op]),
    )
    return Family(op, known, _spaces(sizes))


FAMILIES: Mapping[str, Family] = {op: _family(op) for op in PROJECTIONS}
