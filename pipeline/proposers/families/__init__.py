"""Parametrised kernel families of the `search` proposer: a template, a parameter space and known good points, by op."""

from kgen.proposers.families.space import FAMILIES, Family, Variant, render

__all__ = ["FAMILIES", "Family", "Variant", "render"]
