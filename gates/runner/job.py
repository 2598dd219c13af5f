"""What a runner is told to load. Plain records; JSON on the wire."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from kgen.records import BuildRecord, Problem

ARTEFACT, STOCK = "artefact", "stock"


class Built(Protocol):
    """The two things a runner needs of an artefact (kgen.gates.artefacts.Artefact has them)."""

    @property
    def record(self) -> BuildRecord: ...

    @property
    def object(self) -> Path: ...


@dataclass(frozen=True)
class LoadSpec:
    """One callable for one problem: an object by hash, or the stock op standing in for a candidate.

    `fault` names a deliberate fault of the stand-in (faults.py): it shows that the gates' checks bite.
    """

    SCHEMA: ClassVar[str] = "kgen.load/1"
    problem: Problem
    engine: str
    object: str = ""  # path
    object_sha256: str = ""
    function: str = ""
    workspaces: tuple[tuple[str, tuple[int, ...]], ...] = ()
    design: str = ""
    candidate: str = ""
    fault: str = ""

    @property
    def label(self) -> str:
        return (
            f"object {self.object_sha256[:12]}" if self.engine == ARTEFACT else f"stock stand-in {self.fault}".strip()
        )


def spec(artefact: Built) -> LoadSpec:
    record = artefact.record
    return LoadSpec(
        problem=record.problem,
        engine=ARTEFACT,
        object=str(Path(artefact.object).resolve()),
        object_sha256=record.object_sha256,
        function=record.function,
        workspaces=tuple((dtype, tuple(shape)) for dtype, shape in record.workspaces),
        design=record.design,
        candidate=record.candidate,
    )


def stock_spec(problem: Problem, fault: str = "") -> LoadSpec:
    return LoadSpec(problem=problem, engine=STOCK, fault=fault)
