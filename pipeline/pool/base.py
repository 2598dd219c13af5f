"""What the loop asks of the place where the gates run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from kgen.contract.op import Op
from kgen.gates.artefacts import Artefact
from kgen.gates.compile import BuildGate
from kgen.gates.kit_units import Unit
from kgen.records import Evidence, GateResult


class Executor(Protocol):
    """Thread-safe. `width`: pieces of CPU work that it has under way at a time; `here`: whether that is this machine.

    A fault of a machine is a result with status error, never a failure of a candidate.
    """

    @property
    def width(self) -> int: ...

    @property
    def here(self) -> bool: ...

    def provers(self, gpu: str) -> int:
        """Candidates that can be judged at a time, on GPUs of that arch, or in the interpreter for ""."""

    def archs(self) -> Sequence[str]:
        """Architectures of the GPUs that can be used."""

    def gate(self, op: Op, cache: Path, unsafe: bool = False) -> BuildGate:
        """The compile gate, whose results lie in `cache`. Raises NoSandboxError, RecorderError, ..."""

    def interpret(self, op: Op, artefacts: Sequence[Artefact], cache: Path, deadline: float) -> GateResult:
        """unit-numeric of these artefacts in the PTX interpreter."""

    def unit(self, op: Op, unit: Unit, cache: Path, run: str, arch: str, seconds: float) -> tuple[Evidence, Any]:
        """A piece of a GPU gate on another machine: its evidence, unsigned, and its raw samples. Raises PoolError."""

    def close(self, at_once: bool = False) -> None:
        """`at_once`: what is under way is given up."""
