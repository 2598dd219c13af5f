"""The compile gate: screen, build for every problem, audit. Needs no GPU.

    with CompileGate(op, cache) as gate:
        report = gate.run(candidate, problems)
        report.result       # GateResult: compile.pass, or the first failure in the order of the problems
        report.artefacts    # one per problem, on a pass

Passes are cached by content, and so are failures that last (builder/outcome.py says which). One that the machine may
have caused is tried once more at once, unless its time was up. Not covered: whether the numbers are right, and whether
the PTX text belongs to the cubin (only the cubin is ever loaded).
"""

import functools
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kgen.contract import DTYPES, Op
from kgen.gates import spins
from kgen.gates.artefacts import Artefact
from kgen.gates.audit import limits, phases, ptx
from kgen.gates.audit import object as objects
from kgen.gates.audit.cubin import Cubin
from kgen.gates.audit.object import AuditError
from kgen.gates.audit.recorder import Argument, Recorder, RecorderError
from kgen.gates.buildcache import BuildCache, Key, Outcome, passed
from kgen.gates.builder.outcome import MACHINE, RAN, BuilderError, BuildFailure, Built
from kgen.gates.builder.pool import Builder
from kgen.gates.builder.protocol import FUNCTION
from kgen.gates.contract import DEFECTS, GATE_CONTRACT
from kgen.gates.screen import Finding, screen
from kgen.gates.signature import arguments, signature
from kgen.gates.symmetric import declared
from kgen.records import (
    BuildRecord,
    Candidate,
    Compiler,
    GateResult,
    Problem,
    Status,
    sha256_bytes,
    to_json,
)
from kgen.serve.runtime import installed_flavours

GATE = "compile"
SHORTAGE_SECONDS = 3.0  # a machine that has run out of something is given so long before the second try
MAX_WORKSPACE_BYTES = 256 << 20  # of one instance; a layer holds one each, so more would crowd out the cache
SHOWN_FINDINGS = 8
SHOWN_EARLIER = 4


@dataclass(frozen=True)
class CompileReport:
    result: GateResult
    artefacts: tuple[Artefact, ...]  # in the order of the problems; empty unless all of them passed


def compiler() -> Compiler:
    """The installed compiler release. Raises BuilderError (one line) without one."""
    flavours = installed_flavours()
    try:
        return Compiler(metadata.version("nvidia-cutlass-dsl"), max(flavours))
    except (metadata.PackageNotFoundError, ValueError) as error:
        raise BuilderError("the CuTe DSL compiler is not installed: pip install nvidia-cutlass-dsl") from error


def same_code(a: BuildRecord, b: BuildRecord) -> str:
    """ "" when two builds hold the same machine code and launch it the same way, else the first difference."""
    kernels = [{k.name: k.code_sha256 for k in r.kernels} for r in (a, b)]
    if set(kernels[0]) != set(kernels[1]):
        return f"different kernels: {sorted(set(kernels[0]) ^ set(kernels[1]))[0]}"
    for name, code in kernels[0].items():
        if kernels[1][name] != code:
            return f"kernel {name} has other machine code"
    if a.workspaces != b.workspaces:
        return f"other workspaces: {a.workspaces} and {b.workspaces}"
    if a.symmetric != b.symmetric:
        return f"other symmetric buffers: {a.symmetric} and {b.symmetric}"
    if len(a.launches) != len(b.launches):
        return f"{len(a.launches)} launches a call, and {len(b.launches)}"
    for number, (x, y) in enumerate(zip(a.launches, b.launches, strict=True)):
        if to_json(x) != to_json(y):
            return f"launch {number} ({x.kernel[:60]}) differs"
    return ""


@functools.lru_cache(maxsize=64)
def _screened(source: str) -> tuple[Finding, ...]:
    """A source comes several times: quick tier, full matrix, each mutant, the interpreter."""
    return tuple(screen(source))


class BuildGate(ABC):
    """The gate without the builder: `_made` says how a build is made that the cache does not hold. Thread-safe."""

    def __init__(self, op: Op, cache: BuildCache, isolation: str, workers: int, fresh: bool = False) -> None:
        """`isolation`: of what builds; `workers`: builds at a time; `fresh`: build again what the cache holds."""
        self.op = op
        self._cache, self._isolation, self._fresh = cache, isolation, fresh
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="kgen-compile")
        self._lock = threading.Lock()
        self.cached = 0  # problems answered from the cache so far
        self.built = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self, at_once: bool = False) -> None:
        """Gives up what is not built yet; `at_once`: also what is being built."""
        self._executor.shutdown(cancel_futures=True)

    def run(self, candidate: Candidate, problems: Sequence[Problem], defect: str = "") -> CompileReport:
        """Screen, build and audit. `defect`: a deliberate numeric error for the mutation test."""
        if defect not in ("", *DEFECTS):
            raise ValueError(f"unknown defect {defect!r}; known: {', '.join(DEFECTS)}")
        if not problems:
            raise ValueError("no problem to build: a candidate that is built for nothing has passed nothing")
        started = time.monotonic()
        findings = _screened(candidate.source)
        if findings:
            message = "\n".join(str(f) for f in findings[:SHOWN_FINDINGS])
            return self._report(Status.FAIL, findings[0].code, message, {}, started)
        futures = {p.key: self._begin(candidate, p, defect) for p in problems}
        outcomes = self._gather(futures)
        return self._conclude(outcomes, [key for key in futures if key not in outcomes], started)

    def key(self, candidate: Candidate, problem: Problem, defect: str = "") -> Key:
        """Everything that the outcome of one build depends on."""
        return self._cache.key(candidate, problem, defect)

    def one(self, candidate: Candidate, problem: Problem, defect: str = "") -> Outcome:
        """One problem of a source that has been screened, in this thread, as the cache keeps it: before what `run`
        judges at each use. Never raises for what a candidate did."""
        return self._one(candidate, problem, defect)

    def _judged(self, candidate: Candidate, problem: Problem, defect: str) -> Outcome:
        """A build, unless it may hang: judged at each use, from nothing but the build, whatever the cache holds."""
        outcome = self._one(candidate, problem, defect)
        if outcome.artefact is None:
            return outcome
        said = spins.breach(outcome.artefact.record, outcome.artefact.ptx)
        return replace(outcome, status=Status.FAIL, code=spins.CODE, message=said, artefact=None) if said else outcome

    def _begin(self, candidate: Candidate, problem: Problem, defect: str) -> "Future[Outcome]":
        """One problem's build; a cancelled one when the gate was closed meanwhile."""
        try:
            return self._executor.submit(self._judged, candidate, problem, defect)
        except RuntimeError:  # the executor takes no more work
            gone: Future[Outcome] = Future()
            gone.cancel()
            return gone

    def _gather(self, futures: Mapping[str, "Future[Outcome]"]) -> dict[str, Outcome]:
        """Outcomes in order; after the first failure those not yet started are given up."""
        outcomes: dict[str, Outcome] = {}
        for key, future in futures.items():
            if future.cancelled():
                continue
            outcomes[key] = future.result()
            if outcomes[key].status is not Status.PASS:
                for other in futures.values():
                    other.cancel()
        return outcomes

    def _conclude(self, outcomes: Mapping[str, Outcome], given_up: Sequence[str], started: float) -> CompileReport:
        evidence = {
            "problems": {key: _facts(o) for key, o in outcomes.items()},
            "cached": sum(o.cached for o in outcomes.values()),
            "isolation": self._isolation,
            "compiler": to_json(self._cache.compiler),
        }
        for key, outcome in outcomes.items():
            if outcome.status is not Status.PASS:
                message = f"{key}: {outcome.message}"
                return self._report(outcome.status, outcome.code, message, evidence, started)
        if given_up:  # nothing failed before: the gate was closed while it ran
            message = f"{given_up[0]}: given up, the gate was closed before its turn"
            return self._report(Status.ERROR, "compile.builder", message, evidence, started)
        artefacts = tuple(o.artefact for o in outcomes.values() if o.artefact is not None)
        message = f"{len(artefacts)} problems built and audited{_earlier([k for k, o in outcomes.items() if o.cached])}"
        return self._report(Status.PASS, "compile.pass", message, evidence, started, artefacts)

    def _report(
        self,
        status: Status,
        code: str,
        message: str,
        evidence: Mapping[str, Any],
        started: float,
        artefacts: tuple[Artefact, ...] = (),
    ) -> CompileReport:
        seconds = time.monotonic() - started
        return CompileReport(GateResult(GATE, status, code, message, evidence, seconds, GATE_CONTRACT), artefacts)

    def _one(self, candidate: Candidate, problem: Problem, defect: str) -> Outcome:
        """One problem, from the cache or built. Never raises for what a candidate did."""
        key = self._cache.key(candidate, problem, defect)
        found = None if self._fresh else self._cache.get(key)
        if found is not None:
            with self._lock:
                self.cached += 1
            return found
        with self._lock:
            self.built += 1
        return self._made(candidate, problem, defect, key)

    @abstractmethod
    def _made(self, candidate: Candidate, problem: Problem, defect: str, key: Key) -> Outcome:
        """A build that the cache does not hold. Never raises for what a candidate did."""


class CompileGate(BuildGate):
    """Builds here. `builder` may be shared between gates; without one the gate makes and closes its own.

    Raises NoSandboxError when no isolation level works here, RecorderError without a C compiler.
    """

    def __init__(
        self, op: Op, cache_dir: Path, builder: Builder | None = None, workers: int | None = None, fresh: bool = False
    ) -> None:
        """`workers`: builds at a time, all cores by default. `fresh`: build again what the cache holds."""
        self.builder = builder or Builder()
        self._own_builder = builder is None
        level = self.builder.level
        self._recorder = Recorder(level, cache_dir / "recorder")
        cache = BuildCache(cache_dir, compiler(), op.contract_sha256(), unfenced=level.name == "none")
        super().__init__(op, cache, level.label, workers or os.cpu_count() or 1, fresh)

    def close(self, at_once: bool = False) -> None:
        if self._own_builder or at_once:
            self.builder.close()
        super().close()

    def _made(self, candidate: Candidate, problem: Problem, defect: str, key: Key) -> Outcome:
        try:
            return self._build(candidate, problem, defect, key)
        except BuilderError as error:
            return Outcome(Status.ERROR, "compile.builder", str(error), 0.0)
        except RecorderError as error:
            return Outcome(Status.ERROR, "compile.recorder", str(error), 0.0)

    def _build(self, candidate: Candidate, problem: Problem, defect: str, key: Key) -> Outcome:
        asked = candidate.source, signature(self.op, problem), defect
        built = self.builder.build(*asked)
        if isinstance(built, BuildFailure) and not built.lasts and built.code != "compile.timeout":
            if MACHINE.search(built.message):
                time.sleep(SHORTAGE_SECONDS)
            built = self.builder.build(*asked)
        if isinstance(built, Built):
            try:
                record, cubin = self._audit(candidate, problem, defect, built)
                return passed(self._cache.keep(key, record, built.object, built.ptx, cubin.data))
            except AuditError as error:
                built = BuildFailure(error.code, str(error), built.seconds, lasts=error.code not in RAN)
        outcome = Outcome(Status.FAIL, built.code, built.message, built.seconds, lasts=built.lasts)
        if built.lasts:
            self._cache.fail(key, outcome)
        return outcome

    def _audit(self, candidate: Candidate, problem: Problem, defect: str, built: Built) -> tuple[BuildRecord, Cubin]:
        """The audited record of a build, and the machine code in it. Raises AuditError or RecorderError."""
        symmetric = declared(self.op, problem, built.symmetric)
        cubin = objects.check(built.object, problem.arch)
        if strange := [dtype for dtype, _ in built.workspaces if dtype not in DTYPES]:  # a forged result
            raise AuditError("audit.workspace", f"a workspace of the unknown dtype {strange[0]}")
        call = arguments(self.op, problem, built.workspaces, symmetric)
        if sum(_bytes(a) for a in call[len(call) - len(built.workspaces) :]) > MAX_WORKSPACE_BYTES:
            raise AuditError("audit.workspace", f"workspaces exceed {MAX_WORKSPACE_BYTES} bytes")
        launches = self._recorder.record(built.object, cubin, call)
        limits.check(cubin, launches)
        record = BuildRecord(
            candidate=candidate.id,
            problem=problem,
            function=FUNCTION,
            object_sha256=sha256_bytes(built.object),
            object_bytes=len(built.object),
            cubin_sha256=cubin.sha256,
            kernels=cubin.kernels,
            launches=launches,
            workspaces=built.workspaces,
            compiler=self._cache.compiler,
            isolation=self.builder.level.label,
            compile_seconds=built.seconds,
            ptx=ptx.facts(built.ptx),
            design=built.design,
            defect=defect,
            symmetric=symmetric,
        )
        return record, cubin


def _earlier(keys: Sequence[str]) -> str:
    """Which of them were not built now: this very source was, by the same compiler and under the same rules."""
    shown = ", ".join(keys[:SHOWN_EARLIER]) + (", ..." if len(keys) > SHOWN_EARLIER else "")
    return f" ({len(keys)} of them earlier, by the same rules: {shown})" if keys else ""


def _bytes(argument: Argument) -> int:
    total = DTYPES[argument.dtype].bytes
    for n in argument.shape or ():
        total *= n
    return total


def _facts(outcome: Outcome) -> dict[str, Any]:
    """The evidence of one problem: what a reader compares between candidates."""
    facts: dict[str, Any] = {"code": outcome.code, "seconds": outcome.seconds, "cached": outcome.cached}
    if outcome.artefact is None:
        return facts
    record = outcome.artefact.record
    kernels = {k.name: k for k in record.kernels}
    return facts | {
        "object_sha256": record.object_sha256,
        "design": record.design,
        "workspaces": to_json(record.workspaces),
        **({"symmetric": to_json(record.symmetric)} if record.symmetric else {}),
        "ptx": dict(record.ptx),
        "phases": [] if record.defect else phases.facts(outcome.artefact.ptx),
        "waits": list(spins.waiting_file(outcome.artefact.ptx)),
        "launches": [
            {
                "kernel": launch.kernel,
                "grid": list(launch.grid),
                "block": list(launch.block),
                "cluster": list(launch.cluster),
                "smem": launch.dynamic_smem + kernels[launch.kernel].static_smem,
                "registers": kernels[launch.kernel].registers,
                "stack_bytes": kernels[launch.kernel].stack_bytes,
                "attributes": dict(launch.attributes),
            }
            for launch in record.launches
        ],
    }
