"""The pool of other machines, from this end: what goes out, and what is made of the answers.

Files come back as bytes, are checked against the hashes in their record, and lie in the cache here as if they had been
built here. A result that the cache has is not asked for again. Seeds are drawn on the node, after the candidate is
fixed; the run's key never leaves: evidence comes back unsigned. A node is trusted as this machine is: see
docs/scale.md. Not covered: which nodes there are.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kgen.contract.op import Op
from kgen.gates.artefacts import Artefact
from kgen.gates.buildcache import BuildCache, Key, Outcome, passed
from kgen.gates.compile import BuildGate, compiler
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.kit_units import Unit
from kgen.gates.numeric import GATE as NUMERIC
from kgen.pool.dispatch import MANY, Answered, Dispatcher, Nodes, PoolError, Say, Unusable
from kgen.pool.tasks import Blobs, Task, build_task, interpret_task, unit_task
from kgen.records import (
    BuildRecord,
    Candidate,
    Evidence,
    GateResult,
    Problem,
    RecordError,
    Status,
    from_json,
    sha256_bytes,
    to_json,
)
from kgen.store.cache import OBJECT_SUFFIX, Results
from kgen.store.runs import utc_now

SPARE = 4
UNSURE = "numeric.timeout"  # a slow machine's word: not remembered


class RemoteExecutor:
    """`nodes` are this executor's own: they are closed with it."""

    here = False

    def __init__(self, nodes: Nodes, isolation: str, say: Say) -> None:
        """`isolation`: the sandbox levels of the nodes."""
        self._isolation = isolation
        self.dispatcher = Dispatcher(nodes, say)

    @property
    def width(self) -> int:
        """Slots that there are now, and a few pieces to wait for them, so that none is idle between two."""
        return sum(n.slots for n in self.dispatcher.nodes.alive() if not n.gpu) + SPARE

    def provers(self, gpu: str) -> int:
        return max(1, sum(n.slots for n in self.dispatcher.nodes.alive() if n.gpu == gpu))

    def archs(self) -> Sequence[str]:
        return tuple(sorted({n.gpu for n in self.dispatcher.nodes.alive()} - {""}))

    def gate(self, op: Op, cache: Path, unsafe: bool = False) -> "RemoteGate":
        if unsafe:
            raise PoolError("--unsafe-no-sandbox builds on this machine only: leave out --executor ray")
        return RemoteGate(op, cache, self.dispatcher, self._isolation)

    def interpret(self, op: Op, artefacts: Sequence[Artefact], cache: Path, deadline: float) -> GateResult:
        builds = [(a.ptx.stem, a.record) for a in artefacts]
        files = [path for a in artefacts for path in (a.object, a.ptx)]
        task = interpret_task(op, builds, {path.name: path.read_bytes() for path in files}, deadline)
        store = Results(cache / "interpreted")
        if (known := store.get({"key": task.key})) is not None:
            return from_json(GateResult, known)

        def take(answered: Answered) -> GateResult:
            result = _result(answered)
            if result.status in (Status.PASS, Status.FAIL) and result.code != UNSURE:
                store.put({"key": task.key}, to_json(result))
            return result

        try:
            return self.dispatcher.result(task, take)
        except PoolError as error:
            return GateResult(NUMERIC, Status.ERROR, "numeric.runner", str(error), contract=GATE_CONTRACT)

    def unit(self, op: Op, unit: Unit, cache: Path, run: str, arch: str, seconds: float) -> tuple[Evidence, Any]:
        files = {c.object for c in (*unit.artefacts, *unit.mutants, *unit.champions)}
        blobs: Blobs = {path.name: path.read_bytes() for path in files}
        task = unit_task(op, unit, blobs, arch, run, utc_now(), seconds)
        return self.dispatcher.result(task, lambda answered: _evidence(task, unit, answered))

    def close(self, at_once: bool = False) -> None:
        self.dispatcher.close(at_once)


class RemoteGate(BuildGate):
    """The compile gate of the pool: screened here, built and audited on a node, kept here."""

    def __init__(self, op: Op, cache: Path, dispatcher: Dispatcher, isolation: str) -> None:
        kept = BuildCache(cache, compiler(), op.contract_sha256(), unfenced=False)
        super().__init__(op, kept, isolation, MANY)
        self._dispatcher = dispatcher

    def _made(self, candidate: Candidate, problem: Problem, defect: str, key: Key) -> Outcome:
        task = build_task(self.op, candidate.source, problem, defect, to_json(key))
        wanted = candidate.id, problem, defect

        def take(answered: Answered) -> Outcome:
            return self._taken(key, wanted, answered)

        try:
            return self._dispatcher.result(task, take)
        except PoolError as error:
            return Outcome(Status.ERROR, "compile.builder", str(error), 0.0)

    def _taken(self, key: Key, wanted: tuple[str, Problem, str], answered: Answered) -> Outcome:
        """What a node made, in the cache here. Raises Unusable."""
        value = answered.value
        try:
            status = Status(value["status"])
            outcome = Outcome(status, str(value["code"]), str(value["message"]), float(value["seconds"]))
            if status is not Status.PASS:
                if value["lasts"]:
                    self._cache.fail(key, outcome)
                return outcome
            record = from_json(BuildRecord, value["record"])
            names = f"{record.object_sha256}{OBJECT_SUFFIX}", str(value["ptx"]), f"{record.cubin_sha256}.cubin"
            object_, ptx, cubin = (_checked(name, answered.blobs) for name in names)
        except (KeyError, ValueError, TypeError) as error:  # RecordError is a ValueError
            raise Unusable(f"an answer of the wrong form: {type(error).__name__}: {error}") from None
        if (record.candidate, record.problem, record.defect) != wanted or record.compiler != self._cache.compiler:
            raise Unusable("a record of another build than was asked for")
        return passed(self._cache.keep(key, record, object_, ptx.decode(), cubin))


def _checked(name: str, blobs: Blobs) -> bytes:
    """The bytes of a file that is named by their hash. Raises KeyError or ValueError."""
    data = blobs[name]
    if sha256_bytes(data) != name.partition(".")[0]:
        raise ValueError(f"{name[:12]}... has other bytes than its name says")
    return data


def _result(answered: Answered) -> GateResult:
    try:
        result = from_json(GateResult, answered.value)
    except RecordError as error:
        raise Unusable(str(error)) from None
    if result.gate != NUMERIC or result.contract != GATE_CONTRACT or (result.passed and not result.interpreted):
        raise Unusable("a result of another gate than was asked for")
    return result


def _evidence(task: Task, unit: Unit, answered: Answered) -> tuple[Evidence, Any]:
    try:
        evidence, raw = from_json(Evidence, answered.value["evidence"]), answered.value["raw"]
    except (RecordError, KeyError) as error:
        raise Unusable(f"evidence of the wrong form: {error}") from None
    said = evidence.op, evidence.candidate, evidence.arch, evidence.run, dict(evidence.objects)
    if said != (task.op, unit.candidate, task.gpu, task.under["run"], unit.objects):
        raise Unusable("evidence of other work than was asked for")
    return evidence, raw
