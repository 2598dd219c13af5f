"""A loaded candidate: something that can be bound to a set of buffers and called.

`load(spec, cache)` links and loads an artefact by hash, runs its PTX in the interpreter, or takes the stock op in its
place. The stock stand-in runs on CPU too, which is how the gates' own checks are tested without a GPU.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from kgen.contract import Op
from kgen.gates.runner import faults
from kgen.gates.runner.buffers import BufferSet
from kgen.gates.runner.job import ARTEFACT, PTX, LoadSpec
from kgen.ops import REGISTRY
from kgen.serve.launcher import Launcher
from kgen.serve.link import link
from kgen.serve.runtime import find_runtime

Call = Callable[[], None]
INTERPRETED = "kgen.gates.runner.interpreted"  # imported on demand: it needs NumPy, which a kit does not carry


class Ended(Exception):
    """A call that does not come to an end: `code` says why, as a finding would, or that nothing can be said."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Subject(Protocol):
    spec: LoadSpec

    def bind(self, buffers: BufferSet) -> Call:
        """A call without arguments on these buffers, with the scalars that they hold now."""

    def counts(self) -> dict[str, int]:
        """Launches per kernel since load."""

    def findings(self) -> list[tuple[str, str]]:
        """Code and text of what is known to be wrong with the calls since the last time, beside their results."""


class ArtefactSubject:
    def __init__(self, spec: LoadSpec, op: Op, cache: Path) -> None:
        self.spec, self.op = spec, op
        runtime = find_runtime()
        self.launcher = Launcher(link(Path(spec.object), spec.object_sha256, cache, runtime), spec.function, runtime)

    def bind(self, buffers: BufferSet) -> Call:
        tensors = buffers.tensors()
        scalars = [
            int(buffers.scalars[s.name]) if s.dtype == "i32" else float(buffers.scalars[s.name])
            for s in self.op.scalars
        ]
        args = [*(tensors[t.name] for t in self.op.present(self.spec.problem)), *scalars, *buffers.workspaces()]
        launcher = self.launcher
        return lambda: launcher(*args)

    def counts(self) -> dict[str, int]:
        return self.launcher.counts()

    def findings(self) -> list[tuple[str, str]]:
        return []


class StockSubject:
    """The stock op writing into the caller's buffers, with a fault of faults.py when the spec names one."""

    def __init__(self, spec: LoadSpec, op: Op) -> None:
        self.spec, self.op = spec, op
        self.run = op.stock(spec.problem)
        self.calls = 0

    def bind(self, buffers: BufferSet) -> Call:
        fault = faults.FAULTS[self.spec.fault] if self.spec.fault else None

        def call() -> None:
            self.calls += 1
            got = self.run(buffers.values())
            if fault is not None:
                got = fault(buffers, got, self.calls)
            for name, value in got.items():
                buffers.buffers[name].tensor.copy_(value)

        return call

    def counts(self) -> dict[str, int]:
        return {"stock": self.calls}

    def findings(self) -> list[tuple[str, str]]:
        return []


def load(spec: LoadSpec, cache: Path) -> Subject:
    """Raises RuntimeMissing, LinkError, IntegrityError or OSError."""
    op = REGISTRY.get(spec.problem.op)
    if spec.engine == PTX:
        interpreted: Subject = importlib.import_module(INTERPRETED).PtxSubject(spec, op, cache)
        return interpreted
    return ArtefactSubject(spec, op, cache) if spec.engine == ARTEFACT else StockSubject(spec, op)
