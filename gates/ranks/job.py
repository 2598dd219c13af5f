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


def buffer(of: SymmetricBuffer) -> Symmetric:
    """As a candidate declares it, with the contract's rules. Raises ValueError (one line) for one that cannot be."""
    return Symmetric(of.name, of.dtype, of.shape, of.parities, of.sentinel)


@dataclass(frozen=True)
class Carried:
    """One built kernel for one problem. `variant`: names another kernel that is measured beside the candidate."""

    SCHEMA: ClassVar[str] = "kgen.ranked-build/2"
    record: BuildRecord
    variant: str = ""


@dataclass(frozen=True)
class RankedSpec:
    """What every rank loads for one problem. `fault`: of the stand-in, to show that the checks bite."""

    SCHEMA: ClassVar[str] = "kgen.ranked-load/1"
    problem: Problem
    engine: str
    symmetric: tuple[SymmetricBuffer, ...]
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
        symmetric=record.symmetric,
        workspaces=record.workspaces,
        object=str(object_path.resolve()),
        object_sha256=record.object_sha256,
        function=record.function,
        candidate=record.candidate,
        variant=carried.variant,
    )
