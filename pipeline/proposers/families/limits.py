"""Limits that several spaces share."""

from kgen.proposers.families.space import Limit, Point


def _early_without_pdl(point: Point) -> str:
    return "" if point["pdl"] or not point["early"] else "without pdl there is no next kernel to start early"


EARLY = Limit(("early", "pdl"), _early_without_pdl)  # `early`: the next kernel may start as soon as this one has
