"""Which problems a run builds: the quick tier for every candidate, the whole matrix and the mutants for the best.

All at the values of the other axes that the run chose, and without the points that the op refuses.
"""

from collections.abc import Iterable
from itertools import product

from kgen.contract.op import Op
from kgen.gates import kinds
from kgen.gates.contract import few_bins
from kgen.loop.settings import Settings, refusal
from kgen.proposers.studies import NSGA
from kgen.records import Problem

AROUND = (1, 4, 16)  # tokens of the points that are interpreted


def asked(op: Op, settings: Settings) -> tuple[Problem, ...]:
    """What a proposer is asked for: all that one source must serve, on the first arch."""
    return _points(op, settings, settings.archs[:1], settings.dims, settings.bins)


def quick(op: Op, settings: Settings) -> tuple[Problem, ...]:
    """First arch and dims at the pack's quick bins (at the smallest bin where the matrix has none of those).

    A search with two objectives (nsga) has them at the smallest and the largest bin.
    """
    points = _first(op, settings)
    if settings.search == NSGA and len(points) > 1:
        return points[0], points[-1]
    return tuple(p for p in points if p.tokens in op.pack.quick_bins) or points[:1]


def full(op: Op, settings: Settings) -> tuple[Problem, ...]:
    """Every arch x dims x bin."""
    return _points(op, settings, settings.archs, settings.dims, settings.bins)


def interpreted(op: Op, settings: Settings) -> tuple[Problem, ...]:
    """What the PTX interpreter judges where there is no GPU: the small dims at a narrow, a middle and a wide bin.

    On the first arch; empty when the matrix has no small dims, or nothing is to be interpreted.
    """
    if not settings.interpret:
        return ()
    small = [name for name in settings.dims if name == op.pack.small]
    points = _points(op, settings, settings.archs[:1], small, settings.bins)
    bins = sorted(p.tokens for p in points)
    wanted = {min(bins, key=lambda n: abs(n - around)) for around in AROUND if bins}
    return tuple(p for p in points if p.tokens in wanted)


def mutants(op: Op, settings: Settings) -> tuple[Problem, ...]:
    """The model gate decodes mutants briefly, at a narrow, a middle and a wide bin: of the first dims, and of the small
    ones, where a fault of one tile weighs more beside the other roundings. On every arch. None of an op that it cannot
    decode: one of several ranks."""
    if not kinds.of(op).here:
        return ()
    few = few_bins(p.tokens for p in _first(op, settings))
    dims = dict.fromkeys((*settings.dims[:1], *(d for d in settings.dims if d == op.pack.small)))
    return _points(op, settings, settings.archs, dims, few)


def _first(op: Op, settings: Settings) -> tuple[Problem, ...]:
    return _points(op, settings, settings.archs[:1], settings.dims[:1], settings.bins)


def _points(
    op: Op, settings: Settings, archs: Iterable[str], dims: Iterable[str], bins: Iterable[int]
) -> tuple[Problem, ...]:
    return tuple(
        op.problem(name, tokens, arch, settings.axes)
        for arch, name, tokens in product(archs, dims, bins)
        if not refusal(op, name, tokens, settings.axes)
    )
