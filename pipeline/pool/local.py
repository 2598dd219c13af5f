"""The pool of this machine: a builder with its forks, and a process for each interpretation. The default."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kgen.contract.op import Op
from kgen.gates import kinds
from kgen.gates.artefacts import Artefact
from kgen.gates.builder.pool import Builder
from kgen.gates.compile import CompileGate
from kgen.gates.environment import device_arch
from kgen.gates.kit_units import Unit
from kgen.gates.sandbox import choose
from kgen.pool.dispatch import PoolError
from kgen.records import Evidence, GateResult
from kgen.store.cache import linked_in


class LocalExecutor:
    """`workers`: builds, or interpretations, at a time; all cores by default."""

    here = True

    def __init__(self, workers: int = 0) -> None:
        self.width = workers or os.cpu_count() or 1
        self._slots = threading.BoundedSemaphore(self.width)
        self._lock = threading.Lock()
        self._builders: dict[bool, Builder] = {}

    def provers(self, gpu: str) -> int:
        return 1 if gpu else self.width  # a GPU is leased to a whole process

    def archs(self) -> Sequence[str]:
        return tuple(filter(None, (device_arch(),)))

    def gate(self, op: Op, cache: Path, unsafe: bool = False) -> CompileGate:
        with self._lock:
            if unsafe not in self._builders:
                self._builders[unsafe] = Builder(choose(unsafe_no_sandbox=unsafe))
            builder = self._builders[unsafe]
        return CompileGate(op, cache, builder, workers=self.width)

    def interpret(self, op: Op, artefacts: Sequence[Artefact], cache: Path, deadline: float) -> GateResult:
        with self._slots:
            return kinds.of(op).interpret(op, artefacts, cache=linked_in(cache), deadline=deadline)

    def unit(self, op: Op, unit: Unit, cache: Path, run: str, arch: str, seconds: float) -> tuple[Evidence, Any]:
        raise PoolError("the gates of a GPU run in this very process here")

    def close(self, at_once: bool = False) -> None:
        with self._lock:
            builders, self._builders = self._builders, {}
        for builder in builders.values():
            builder.close()
