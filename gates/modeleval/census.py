"""Which problems a decode model's step calls, and in which model a built problem sits; read from the step, no weights.

A run builds an op at chosen values of its axes; the default model may not seat those (a fused projection, a context
that is split, 8-bit caches, a verify width). `Census.way_for` looks for one that does.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

import torch

from kgen.contract.op import Op, Registry
from kgen.gates.modeleval.exercise import VERIFY, Exercise, Way
from kgen.model.bind import OpCall
from kgen.model.decoder.config import Config, complaints, config
from kgen.model.decoder.step import DecodeStep
from kgen.model.decoder.weights import Weights, expected
from kgen.records import Problem

WIDTHS = (1, 4, 8)  # verify widths


def config_of(way: Way) -> Config:
    """The decoder's configuration. Raises ValueError (one line) for an unknown name."""
    known = config(way.config)
    layers = known.layers[: way.depth or None]
    return replace(known, layers=layers, dcp=way.dcp, fused_oproj=way.fused_oproj, axes=way.axes)


class _Nobody:
    """Seats that are never called."""

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        return lambda values: {}


@dataclass(frozen=True)
class Census:
    """Calls of steps on one arch, remembered."""

    registry: Registry
    arch: str
    _known: dict[tuple[str, int, int], Counter[str]] = field(default_factory=dict)

    def calls(self, way: Way, requests: int, q: int) -> Counter[str]:
        """Problem key -> calls of one step. Raises ValueError for rows that no token bin holds, or a refused point."""
        name = (way.label, requests, q)
        if name not in self._known:
            chosen = config_of(way)
            shapes = expected(chosen, self.registry)
            hollow = {n: torch.empty(shape, dtype=dtype, device="meta") for n, (dtype, shape) in shapes.items()}
            step = DecodeStep(chosen, Weights(hollow), requests, q, self.arch, _Nobody(), self.registry)
            self._known[name] = Counter(step.calls())
        return self._known[name]

    def way_for(self, problem: Problem, base: Way) -> tuple[Way, int] | None:
        """A model and a verify width at which this problem sits in some seat, None if there is none."""
        for way in self._ways(base, problem.axes):
            for q in WIDTHS:
                if problem.tokens % q == 0 and problem.key in self.calls(way, problem.tokens // q, q):
                    return way, q
        return None

    def seats(self, exercise: Exercise, keys: set[str]) -> set[str]:
        """Which of these problems an exercise's steps call."""
        found = set(self.calls(exercise.way, exercise.requests, exercise.q))
        if exercise.kind == VERIFY:  # plain decoding of the same sequences
            found |= set(self.calls(exercise.way, exercise.requests, 1))
        return found & keys

    def _ways(self, base: Way, axes: Mapping[str, str]) -> Iterator[Way]:
        """`base`, then models that differ from it in what may seat a problem with these axes."""
        ops = self.registry.ops.values()
        shared = {op.name: common for op in ops if (common := _common(op, axes))}
        for chosen, fused, dcp in product(({}, shared) if shared else ({},), (False, True), (1, 2)):
            way = replace(base, fused_oproj=fused, dcp=dcp, axes={**base.axes, **chosen})
            if not complaints(config_of(way), self.registry):
                yield way


def _common(op: Op, axes: Mapping[str, str]) -> dict[str, str]:
    """The values that differ from this op's defaults: caches and alike must agree between ops."""
    return {a: v for a, v in axes.items() if v in op.axes.get(a, ())[1:]}
