"""Parametrised kernel families of the `search` proposer: a template, a parameter space and known good points, by op."""

from kgen.proposers.families.space import FAMILIES, FIXED, Family, Variant, render

__all__ = ["FAMILIES", "FIXED", "Family", "Variant", "render"]
