"""The tools that a model may use in a run: it can try whether a source compiles, look names up, and read lessons.

    check_compile(source)       the run's own compile gate at the quick problems, and its words
    lookup_api(name)            what the installed compiler package says of a name, or the nearest names
    read_lesson(topic)          what earlier runs showed for this op, and for any

All of them read; none can change a run, and nothing that they give is a verdict. Not covered: checking arguments, and
quoting results (`kgen.proposers.tools`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kgen.diagnosis.api_names import Names, installed
from kgen.gates.builder.outcome import BuilderError
from kgen.loop import matrix
from kgen.loop.building import misnamed
from kgen.loop.lessons import FOLDER, page, retrieve
from kgen.loop.work import Work
from kgen.proposers.tools import Tool, ToolError, parameters
from kgen.proposers.wire import MAX_ARGUMENTS, ToolSpec
from kgen.records import BuildRecord, Candidate, Origin
from kgen.store.errors import StoreError


class CheckCompile:
    """Builds count as the run's own: a candidate that was tried before is answered from the cache afterwards."""

    def __init__(self, work: Work) -> None:
        self._work = work

    @property
    def spec(self) -> ToolSpec:
        source = {"type": "string", "maxLength": MAX_ARGUMENTS, "description": "The whole module, as you would answer."}
        said = "Compile a kernel module as the compile gate does, at its first problems, and return what the gate says."
        return ToolSpec("check_compile", said, parameters(source=source))

    def call(self, arguments: Mapping[str, Any]) -> str:
        work = self._work
        if work.stopping.is_set() or (why := work.ledger.time_for("quick", work.seconds_left)):
            raise ToolError(
                "no time is left to compile: answer now" if work.stopping.is_set() else f"{why}: answer now"
            )
        problems = matrix.quick(work.op, work.settings)
        try:
            candidate = Candidate(work.op.name, arguments["source"], Origin("tool"))
            report = misnamed(candidate.source) or work.gate.run(candidate, problems)
        except (BuilderError, StoreError) as error:
            raise ToolError(f"nothing can be compiled here: {error}") from None
        work.ledger.took("quick", report.result.seconds)
        facts = [line for artefact in report.artefacts for line in _facts(artefact.record)]
        return "\n".join([f"{report.result.status}: {report.result.code}", report.result.message, *facts])


def _facts(record: BuildRecord) -> list[str]:
    """What a writer wants to know of a build: registers, local memory, static shared memory."""
    return [
        f"{record.problem.key}: {k.name[:80]}: {k.registers} registers, {k.stack_bytes} bytes of local memory a thread,"
        f" {k.static_smem} bytes of static shared memory"
        for k in record.kernels
    ]


class LookupApi:
    """What the compiler's Python package says of one of its names."""

    def __init__(self, names: Names) -> None:
        self._names = names

    @property
    def spec(self) -> ToolSpec:
        said = "Look a name of the installed CuTe DSL up: its signature and documentation, or the nearest real names."
        name = {"type": "string", "maxLength": 200, "description": "With its modules, e.g. cute.arch.warp_reduction."}
        return ToolSpec("lookup_api", said, parameters(name=name))

    def call(self, arguments: Mapping[str, Any]) -> str:
        found = self._names.lookup(arguments["name"])
        if found is not None:
            return found
        near = self._names.nearest(arguments["name"])
        raise ToolError(f"there is no such name; nearest: {', '.join(near)}" if near else "there is no such name")


class ReadLesson:
    """The lessons in `folder` for an op, those first that have most words in common with a topic."""

    def __init__(self, folder: Path, op: str) -> None:
        self._folder, self._op = folder, op

    @property
    def spec(self) -> ToolSpec:
        said = "Read what earlier runs showed: codes that were repaired or not, designs that led or were refused."
        topic = {"type": "string", "maxLength": 200, "description": "Words, e.g. a code or a technique; may be empty."}
        return ToolSpec("read_lesson", said, parameters(topic=topic))

    def call(self, arguments: Mapping[str, Any]) -> str:
        try:
            found = retrieve(self._folder, self._op, arguments["topic"])
        except StoreError as error:
            raise ToolError(f"the lessons cannot be read: {error}") from None
        if not found:
            raise ToolError(f"there are no lessons for {self._op} yet")
        return page(found)


def tools_of(work: Work) -> tuple[Tool, ...]:
    """Those that work here."""
    names = installed()
    lessons = ReadLesson(work.run.path.parent / FOLDER, work.op.name)
    return (CheckCompile(work), *([LookupApi(names)] if names is not None else []), lessons)
