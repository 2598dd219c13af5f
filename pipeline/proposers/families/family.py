"""A kernel family: known good points of an op, and the spaces that others are drawn from."""

import random
from dataclasses import dataclass

from kgen.proposers.families.point import Variant
from kgen.proposers.families.space import Space, sampled


@dataclass(frozen=True)
class Family:
    """`known` points come first in their order; they need not lie in a space."""

    op: str
    known: tuple[Variant, ...]
    spaces: tuple[Space, ...]

    def sample(self, rng: random.Random) -> Variant:
        """Another point from a seeded generator."""
        return sampled(self.spaces, rng)
