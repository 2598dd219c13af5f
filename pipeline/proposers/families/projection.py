"""out = x w^T: kernel families of all plain projections: mma.sync, wgmma with TMA, plain FMAs.

Known points come in the order of what they are good for: few tokens (mma.sync), 16 to 64 (wgmma), and the rest.
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
# op -> CTAs of a cluster along K that its points with wgmma try, and the fastest of them on an H200 (ranked.json)
PARTS: Mapping[str, tuple[tuple[int, ...], Mapping[str, int]]] = {
    "kda_in_proj": ((2, 4), {"ring": 208}),
    "mla_in_proj": ((4, 2), {"parts": 2}),
    "oproj_partial": ((2, 4), {"ring": 208}),
    "moe_latent_down": ((8, 4), {"share": 2}),
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
        *(wide := wgmma.known(sizes, *PARTS[op]))[:1],
        Variant(FMA, {**sizes, "warps": 8, "slices": 4, "rows": 2, "unroll": 2, "pdl": True}),
        *wide[1:],
    )
    return Family(op, known, _spaces(sizes))


FAMILIES: Mapping[str, Family] = {op: _family(op) for op in PROJECTIONS}
