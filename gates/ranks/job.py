"""What the ranks of a part are told. Plain records; JSON on the wire."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from kgen.contract.ranks import RankedOp, Symmetric
from kgen.ops import RANKED
from kgen.records import BuildRecord, Problem, SymmetricBuffer

OPS = RANKED  # the registry's: kgen.ops has the line of each
ARTEFACT, STANDIN = "artefact", "stand-in"
CUDA, CPU = "cuda", "cpu"


@dataclass(frozen=True)
class Declared(SymmetricBuffer):
    """A symmetric buffer as the candidate declares it (kgen.contract.ranks.Symmetric says what the fields mean)."""

    def buffer(self) -> Symmetric:
        """Raises ValueError for a declaration that cannot be."""
        return Symmetric(self.name, self.dtype, self.shape, self.parities, self.sentinel)


@dataclass(frozen=True)
class Carried:
    """One built kernel for one problem. `variant`: names another kernel that is measured beside the candidate."""

    SCHEMA: ClassVar[str] = "kgen.ranked-build/2"
    record: BuildRecord
    variant: str = ""

    @property
    def symmetric(self) -> tuple[Declared, ...]:
        """What its record says was declared."""
        return tuple(Declared(s.name, s.dtype, s.shape, s.parities, s.sentinel) for s in self.record.symmetric)


@dataclass(frozen=True)
class RankedSpec:
    """What every rank loads for one problem. `fault`: of the stand-in, to show that the checks bite."""

    SCHEMA: ClassVar[str] = "kgen.ranked-load/1"
    problem: Problem
    engine: str
    symmetric: tuple[Declared, ...]
    workspaces: tuple[tuple[str, tuple[int, ...]], ...]
    object: str = ""  # path
    object_sha256: str = ""
    function: str = ""
    candidate: str = ""
    fault: str = ""
    variant: str = ""

    @property
    def label(self) -> str:
        """The problem's key, and which variant of the candidate it is."""
        return f"{self.problem.key}#{self.variant}" if self.variant else self.problem.key

    @property
    def op(self) -> RankedOp:
        return OPS[self.problem.op]


def spec(carried: Carried, object_path: Path) -> RankedSpec:
    """A built kernel, to be loaded from `object_path`."""
    record = carried.record
    return RankedSpec(
        problem=record.problem,
        engine=ARTEFACT,
        symmetric=carried.symmetric,
        workspaces=record.workspaces,
        object=str(object_path.resolve()),
        object_sha256=record.object_sha256,
        function=record.function,
        candidate=record.candidate,
        variant=carried.variant,
    )
