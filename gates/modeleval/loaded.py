"""Seats of a decode model in a runner process: artefacts by hash, stand-ins, stock, or float64; and who sat where.

`Seating` is a binder (kgen.model.bind) whose launch record is by problem, so that a kernel that two builds name alike
is not mixed up. Not covered: promoted kernels of a kernel set (kgen.model.decoder.swap).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from kgen.contract import Values
from kgen.contract.op import Op, Registry
from kgen.gates.modeleval.standins import STANDINS
from kgen.gates.runner.job import ARTEFACT, LoadSpec
from kgen.model.bind import Binder, OpCall, StockBinder, seat_call
from kgen.records import Problem

Launches = dict[str, dict[str, int]]  # problem key -> kernel -> launches


@dataclass(frozen=True)
class Loaded:
    """A loaded engine for one problem: `seat()` gives one layer's callable, `counts()` its launches so far."""

    seat: Callable[[], OpCall]
    counts: Callable[[], Mapping[str, int]]


@dataclass
class Seating:
    """`others` sits wherever nothing loaded does; `enabled=False`: loaded, but `others` sits everywhere."""

    loaded: Mapping[str, Loaded] = field(default_factory=dict)
    enabled: bool = True
    others: Binder = field(default_factory=StockBinder)
    promoted: Counter[str] = field(default_factory=Counter)  # problem key -> seats, since `forget`
    stock: Counter[str] = field(default_factory=Counter)

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        found = self.loaded.get(problem.key) if self.enabled else None
        (self.stock if found is None else self.promoted)[problem.key] += 1
        return self.others.bind(op, problem, seat) if found is None else found.seat()

    def forget(self) -> None:
        self.promoted.clear()
        self.stock.clear()

    def launches(self) -> Launches:
        counted = {key: dict(loaded.counts()) for key, loaded in self.loaded.items()}
        return {key: {k: n for k, n in counts.items() if n} for key, counts in counted.items() if any(counts.values())}


def seating(specs: Iterable[LoadSpec], device: str, cache: Path, enabled: bool, registry: Registry) -> Seating:
    """Everything loaded. Raises OSError or ValueError for an object that cannot be linked."""
    return Seating({s.problem.key: _load(s, device, cache, registry) for s in specs}, enabled)


def moved(before: Launches, after: Launches) -> Launches:
    """Launches between two records, without zeros."""
    found = {key: {k: n - before.get(key, {}).get(k, 0) for k, n in counts.items()} for key, counts in after.items()}
    return {key: kept for key, counts in found.items() if (kept := {k: n for k, n in counts.items() if n})}


def _load(spec: LoadSpec, device: str, cache: Path, registry: Registry) -> Loaded:
    op = registry.get(spec.problem.op)
    if spec.engine != ARTEFACT:
        return _stand_in(op, spec)
    from kgen.serve.launcher import Launcher  # only an artefact needs the runtime library
    from kgen.serve.link import link
    from kgen.serve.runtime import find_runtime

    runtime = find_runtime()
    launcher = Launcher(link(Path(spec.object), spec.object_sha256, cache, runtime), spec.function, runtime)
    return Loaded(lambda: seat_call(op, spec.problem, launcher, spec.workspaces, device), launcher.counts)


def _stand_in(op: Op, spec: LoadSpec) -> Loaded:
    """The stock op, changed as `spec.fault` says, counting its calls under that name."""
    made, calls = STANDINS[spec.fault](op, spec.problem), [0]

    def call(values: Values) -> dict[str, torch.Tensor]:
        calls[0] += 1
        return made(values)

    return Loaded(lambda: call, lambda: {spec.fault: calls[0]})
