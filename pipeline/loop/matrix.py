"""Which problems a run builds: the quick tier for every candidate, the whole matrix and the mutants for the best."""

from itertools import product

from kgen.contract.op import Op
from kgen.gates.fullmodel_plan import few_bins
from kgen.loop.settings import Settings
from kgen.records import Problem


def quick(op: Op, settings: Settings) -> tuple[Problem, ...]:
    """First arch and dims at the pack's quick bins (at the smallest bin where the matrix has none of those)."""
    bins = [b for b in op.pack.quick_bins if b in settings.bins] or list(settings.bins[:1])
    return tuple(op.problem(settings.dims[0], tokens, settings.archs[0]) for tokens in bins)


def full(op: Op, settings: Settings) -> tuple[Problem, ...]:
    """Every arch x dims x bin, at the default value of the other axes."""
    return tuple(
        op.problem(d, tokens, arch) for arch, d, tokens in product(settings.archs, settings.dims, settings.bins)
    )


def mutants(op: Op, settings: Settings) -> tuple[Problem, ...]:
    """The model gate decodes mutants briefly: first dims, at a narrow, a middle and a wide bin, on every arch."""
    few = few_bins(settings.bins)
    return tuple(op.problem(settings.dims[0], tokens, arch) for arch, tokens in product(settings.archs, few))
