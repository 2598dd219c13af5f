"""Typed parameter spaces: what a family's template may be rendered with, for seeded samples and for optuna alike.

A parameter is a Choice or a Whole number; a Limit says over some of them what does not fit. Points are plain dicts,
name -> JSON scalar. `values` turns a point into what the template reads, `point` goes back (None: no point of this
space). Not covered: which points are good (`search`, `studies`), or right (the gates).
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kgen.proposers.families.point import Variant

Point = Mapping[str, Any]
DRAWS = 20_000  # of one point, until it is within all limits: more says that the space is next to empty


@dataclass(frozen=True)
class Choice:
    """One of `options`: bool, int, float or str. Numbers in rising order are near each other, others are only equal."""

    name: str
    options: tuple[bool | int | float | str, ...]

    @property
    def ordered(self) -> bool:
        numbers = all(isinstance(o, int | float) and not isinstance(o, bool) for o in self.options)
        return numbers and list(self.options) == sorted(set(self.options))  # type: ignore[type-var]

    def draw(self, rng: random.Random) -> Any:
        return rng.choice(self.options)

    def holds(self, value: object) -> bool:
        return any(value == o and type(value) is type(o) for o in self.options)


@dataclass(frozen=True)
class Whole:
    """A whole number from `low` to `high`, both included, in steps; `log`: ratios matter, not differences (step 1)."""

    name: str
    low: int
    high: int
    step: int = 1
    log: bool = False

    def draw(self, rng: random.Random) -> Any:
        if self.log:
            exact = math.exp(rng.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5)))
            return min(max(round(exact), self.low), self.high)
        return rng.randrange(self.low, self.high + 1, self.step)

    def holds(self, value: object) -> bool:
        inside = type(value) is int and self.low <= value <= self.high
        return inside and (value - self.low) % self.step == 0  # type: ignore[operator]


Parameter = Choice | Whole


@dataclass(frozen=True)
class Limit:
    """`why` gives one line when the parameters `names` do not go together, "" when they do."""

    names: tuple[str, ...]
    why: Callable[[Point], str]


def _same(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(values)


@dataclass(frozen=True)
class Space:
    """All points of one template. `share`: of the seeded samples, beside the family's other spaces."""

    name: str
    template: str
    parameters: tuple[Parameter, ...]
    limits: tuple[Limit, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)  # values that belong to the op
    share: float = 1.0
    values: Callable[[Point], Mapping[str, Any]] = _same
    read: Callable[[Mapping[str, Any]], Point | None] = _same  # of values without `fixed`

    def variant(self, point: Point) -> Variant:
        return Variant(self.template, {**self.fixed, **self.values(point)})

    def point(self, variant: Variant) -> Point | None:
        """The point that gives this variant, None where it is none of this space."""
        mine = {k: v for k, v in variant.values.items() if k not in self.fixed}
        same = variant.template == self.template and len(mine) + len(self.fixed) == len(variant.values)
        found = self.read(mine) if same and all(variant.values[k] == v for k, v in self.fixed.items()) else None
        return found if found is not None and not self.complaints(found) else None

    def complaints(self, point: Point) -> list[str]:
        """Why this is no point of the space: one line each."""
        names = [p.name for p in self.parameters]
        if sorted(point) != sorted(names):
            return [f"it must have exactly the parameters {', '.join(names)}"]
        wrong = [f"{p.name} cannot be {point[p.name]!r}" for p in self.parameters if not p.holds(point[p.name])]
        return wrong or [why for limit in self.limits if (why := limit.why(point))]

    def draw(self, rng: random.Random) -> Point:
        """A point within all limits."""
        return self.repaired({p.name: p.draw(rng) for p in self.parameters}, rng)

    def repaired(self, point: Point, rng: random.Random) -> Point:
        """The point with what breaks a limit drawn anew until nothing does."""
        found, by_name = dict(point), {p.name: p for p in self.parameters}
        for _ in range(DRAWS):
            broken = next((limit for limit in self.limits if limit.why(found)), None)
            if broken is None:
                return found
            found |= {name: by_name[name].draw(rng) for name in broken.names}
        raise ValueError(f"no point of the space {self.name} was found within its limits")


def sampled(spaces: tuple[Space, ...], rng: random.Random) -> Variant:
    """A seeded sample over several spaces, by their shares."""
    space = rng.choices(spaces, [s.share for s in spaces])[0] if len(spaces) > 1 else spaces[0]
    return space.variant(space.draw(rng))
