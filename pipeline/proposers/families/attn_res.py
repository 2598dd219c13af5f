"""attn_res: one row a CTA, the row kept in registers."""

from kgen.proposers.families.family import Family
from kgen.proposers.families.point import Variant
from kgen.proposers.families.space import Choice, Space

ROW = "attn_res.py.tmpl"
SPACE = Space("row", ROW, (Choice("threads", (128, 224, 256, 448, 896)), Choice("pdl", (True, False))))
FAMILY = Family("attn_res", known=(Variant(ROW, {"threads": 448, "pdl": True}),), spaces=(SPACE,))
