"""What a runner is told to load. Plain records; JSON on the wire."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Protocol

from kgen.records import BuildRecord, Launch, Problem, SymmetricBuffer
from kgen.records.codec import OPTIONAL

ARTEFACT, STOCK, PTX = "artefact", "stock", "ptx"


class Interpretable(Protocol):
    """An artefact whose PTX text was kept."""

    @property
    def record(self) -> BuildRecord: ...

    @property
    def object(self) -> Path: ...

    @property
    def ptx(self) -> Path: ...


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
    ptx: str = ""  # path; with `launches`, for the interpreter only
    launches: tuple[Launch, ...] = ()
    symmetric: tuple[SymmetricBuffer, ...] = field(default=(), metadata=OPTIONAL)  # of an op of several ranks

    @property
    def label(self) -> str:
        return f"stock stand-in {self.fault}".strip() if self.engine == STOCK else f"object {self.object_sha256[:12]}"


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
        symmetric=record.symmetric,
    )


def ptx_spec(artefact: Interpretable) -> LoadSpec:
    """For the interpreter: the PTX and the launches that the audit recorded."""
    text = str(Path(artefact.ptx).resolve())
    return replace(spec(artefact), engine=PTX, ptx=text, launches=artefact.record.launches)


def stock_spec(problem: Problem, fault: str = "") -> LoadSpec:
    return LoadSpec(problem=problem, engine=STOCK, fault=fault)
