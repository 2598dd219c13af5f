"""Which promoted kernels a set holds, those of one op loaded for a model's sizes, and one trial of each.

The trial runs a kernel on drawn rows with the model's own weights and compares it with the stock op: a kernel that is
broken, or was built for another layout, is found before a request is. It proves nothing beyond that; the gates do.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from kgen.contract import DTYPES, Op, Role, Values, relative_l2
from kgen.contract.rules import RelL2
from kgen.records import Problem
from kgen.serve.load import LOG as LOADER
from kgen.serve.load import Served, load
from kgen.store import KernelSet, parse_problem, serving_sets

TRIAL_LIMIT = 0.02  # relative L2; contracts allow 0.0025 to 0.005 and their judges are exact, this one is not
TRIAL_SEED = 20


class Weights(Protocol):
    """The weights of one seat, by their names in the op."""

    def __call__(self) -> Mapping[str, torch.Tensor]: ...


def held(chosen: str) -> list[Problem]:
    """The points that the serving sets have a kernel for. Raises StoreError for a damaged set."""
    found: dict[str, Problem] = {}
    for place in serving_sets(chosen or None):
        for key in KernelSet(place.path).manifest().champions:
            found.setdefault(key, parse_problem(key))
    return list(found.values())


def arch_of(problems: Sequence[Problem], capability: str) -> str:
    """The arch name that kernels for this GPU go by (sm_90 -> sm_90a); "" when there are none."""
    return next((p.arch for p in problems if capability and p.arch.rstrip("af") == capability), "")


def fitting_dims(op: Op, shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Names of the op's dims whose weights have these shapes."""
    return [name for name in op.dims if weight_shapes(op, name) == {k: tuple(v) for k, v in shapes.items()}]


def weight_shapes(op: Op, dims: str) -> dict[str, tuple[int, ...]]:
    """Weight name -> shape at these dims."""
    problem = _problem(op, dims, op.pack.bins[0], "")
    return {t.name: t.sizes(op.sizes(problem)) for t in op.present(problem) if t.role is Role.WEIGHT}


def weight_dtypes(op: Op) -> dict[str, torch.dtype]:
    problem = _problem(op, next(iter(op.dims)), op.pack.bins[0], "")
    return {t.name: getattr(torch, DTYPES[t.dtype].torch) for t in op.present(problem) if t.role is Role.WEIGHT}


def _problem(op: Op, dims: str, tokens: int, arch: str) -> Problem:
    return Problem(op.name, dims, tokens, arch, {name: values[0] for name, values in op.axes.items()})


@dataclass(frozen=True)
class Kernels:
    """Loaded kernels of one op by token bin. One instance serves every layer: their calls never overlap."""

    op: Op
    dims: str
    by_bin: Mapping[int, Served]

    def serving(self, tokens: int) -> Served | str:
        """The kernel for a true token count, or why there is none."""
        bins = self.op.pack.bins
        if not 1 <= tokens <= bins[-1]:
            return f"more than {bins[-1]} tokens"
        size = self.op.bin_for(tokens)
        return self.by_bin.get(size) or f"no kernel for {size} tokens"

    def without(self, bins: Sequence[int]) -> "Kernels":
        return Kernels(self.op, self.dims, {b: k for b, k in self.by_bin.items() if b not in bins})


def load_all(op: Op, dims: str, arch: str, chosen: str, problems: Sequence[Problem]) -> tuple[Kernels, dict[int, str]]:
    """Every bin that is held at these dims, and bin -> reason for those that could not be loaded."""
    keys = {p.key for p in problems}
    wanted = [b for b in op.pack.bins if _problem(op, dims, b, arch).key in keys]
    with _unsaid():
        served = {b: load(op.name, dims, b, arch, set=chosen or None) for b in wanted}
    return (
        Kernels(op, dims, {b: s for b, s in served.items() if s.promoted}),
        {b: s.reason for b, s in served.items() if not s.promoted},
    )


@contextmanager
def _unsaid() -> Iterator[None]:
    """Without the loader's line for each kernel: a plan says all reasons in one."""

    def drop(record: logging.LogRecord) -> bool:
        return False

    LOADER.addFilter(drop)
    try:
        yield
    finally:
        LOADER.removeFilter(drop)


def trial(served: Served, weights: Weights, device: str) -> str:
    """One call on drawn rows beside the stock op's: what is wrong with it, "" if nothing is."""
    op, problem = served.op, served.problem
    present = op.present(problem)
    if any(t.role is Role.STATE for t in present):
        drawn = op.inputs(problem, op.families[0].name, TRIAL_SEED, device)
    else:
        generator = torch.Generator(device).manual_seed(TRIAL_SEED)
        drawn = {s.name: s.sample for s in op.scalars}
        for rows in (t for t in present if t.role is Role.IN):
            normal = torch.randn(rows.sizes(op.sizes(problem)), generator=generator, device=device)
            drawn[rows.name] = normal.to(getattr(torch, DTYPES[rows.dtype].torch))
    values: Values = {**drawn, **weights(), **served.outputs(device)}
    want = op.stock(problem)(values)  # first: a kernel writes states in place
    got = served(values)
    for spec in op.outputs(problem):
        if isinstance(op.rule(spec), RelL2):
            error = float(relative_l2(got[spec.name], want[spec.name]))
            if not error <= TRIAL_LIMIT:  # NaN too
                return f"{spec.name} is {error:.3g} away from the stock op's (relative L2), allowed {TRIAL_LIMIT}"
    return ""


@dataclass(frozen=True)
class Call:
    """What a seat does with its rows: a promoted kernel inside a decode graph, else None, and a note of either."""

    kernels: Kernels
    weights: Weights
    decoding: Callable[[], bool]
    note: Callable[[str, int, str], None]  # op, tokens, why it ran stock ("" if it did not)

    def __call__(self, rows: torch.Tensor) -> dict[str, torch.Tensor] | None:
        """The outputs of the true rows by name, or None: run stock. For ops with one input and no state."""
        served = self.chosen(int(rows.shape[0]))
        if served is None:
            return None
        (name,) = (t.name for t in self.kernels.op.present(served.problem) if t.role is Role.IN)
        return self.give(served, int(rows.shape[0]), {name: rows})

    def chosen(self, tokens: int, unfit: str = "") -> Served | None:
        """The kernel for this call, or None: run stock. `unfit`: why this very call cannot be a kernel's."""
        served = self.kernels.serving(tokens) if self.decoding() else "not in a decode graph"
        if not isinstance(served, str):
            op, padded = self.kernels.op, served.problem.tokens
            if padded != tokens and any(t.role is Role.STATE and t.by_token for t in op.present(served.problem)):
                served = f"its state has no rows to pad {tokens} tokens to {padded}"
            served = unfit or served
        self.note(self.kernels.op.name, tokens, served if isinstance(served, str) else "")
        return None if isinstance(served, str) else served

    def give(self, served: Served, tokens: int, given: Values) -> dict[str, torch.Tensor]:
        """The outputs of the true rows and the states. `given`: inputs of as many rows, states, scalars of its own."""
        op, values = self.kernels.op, dict(given)
        device = next(v.device for v in given.values() if isinstance(v, torch.Tensor))
        for spec in op.present(served.problem):
            if spec.role is Role.IN:
                rows = values[spec.name]
                assert isinstance(rows, torch.Tensor)
                more = served.problem.tokens - tokens
                if more:
                    behind = rows.dim() - 1 - (spec.token_dim or 0)  # dimensions after that of the tokens
                    rows = torch.nn.functional.pad(rows, (0, 0) * behind + (0, more), value=spec.padding or 0)
                values[spec.name] = rows.contiguous()
        scalars = {s.name: s.sample for s in op.scalars}
        got = served({**scalars, **values, **self.weights(), **served.outputs(device)})
        states = {t.name for t in op.present(served.problem) if t.role is Role.STATE}
        return {k: v if k in states else v[:tokens] for k, v in got.items()}
