"""A node's end of the pool: does one task with the gates of this machine, and gives back JSON and files.

It holds nothing of a run but the tasks: no key, no other candidate's answers. Builds go through the same sandbox as at
home; where none works the node says so and is not used. Builds stay in the node's own cache. Not covered: who is asked
(`dispatch`), and what is made of an answer (`remote`).
"""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgen.contract.op import Op
from kgen.gates import kinds
from kgen.gates.audit.recorder import RecorderError
from kgen.gates.builder.outcome import BuilderError
from kgen.gates.builder.pool import Builder
from kgen.gates.compile import CompileGate, compiler
from kgen.gates.environment import device_arch
from kgen.gates.gpu.lease import JUDGING_SECONDS, leased
from kgen.gates.gpu.quarantine import NoDevice
from kgen.gates.kit_units import RUN, Runner, Unit, carried_in, part_of
from kgen.gates.runner.child import child_environment
from kgen.gates.sandbox import NoSandboxError, choose
from kgen.ops import REGISTRY
from kgen.pool.tasks import BUILD, INTERPRET, UNIT, Blobs, interpreted_under, rules
from kgen.records import (
    BuildRecord,
    Candidate,
    Origin,
    Problem,
    Status,
    canonical_json,
    from_json,
    one_line,
    sha256_bytes,
    strict_json,
    to_json,
)
from kgen.store.cache import OBJECT_SUFFIX, linked_in, objects_in
from kgen.store.paths import cache_path

Answer = tuple[bytes, dict[str, bytes]]
KEPT = ("RAY_", "KGEN_", "XDG_", "PYTHON", "OMP_", "VIRTUAL_ENV")  # of a worker's environment, beside a runner's


@dataclass(frozen=True)
class Received:
    """An artefact that came with a task."""

    record: BuildRecord
    object: Path
    ptx: Path


class Worker:
    """Thread-safe. `cache`: the folder of builds, "" for the node's own."""

    def __init__(self, cache: str = "", runners: Mapping[str, Runner] = RUN) -> None:
        self.cache = Path(cache) if cache else cache_path()
        self._runners = runners
        self._lock = threading.Lock()
        self._builder: Builder | None = None
        self._gates: dict[str, CompileGate] = {}

    def hello(self) -> dict[str, str]:
        """The sandbox level, the arch of the GPU ("" without one), and why this node is of no use ("" if it is)."""
        forget_secrets()
        unfit = level = ""
        try:
            level = choose().label
            compiler()
        except (NoSandboxError, BuilderError) as error:
            unfit = one_line(str(error))
        return {"isolation": level, "arch": device_arch(), "unfit": unfit}

    def do(self, message: bytes, blobs: Blobs) -> Answer:
        """One task. Raises what its gate raises for faults of the machine."""
        task = strict_json(message)
        op = REGISTRY.get(task["op"])
        kinds = {BUILD: self._build, INTERPRET: self._interpret, UNIT: self._unit}
        try:
            return kinds[task["kind"]](op, task["under"], task["body"], blobs)
        except (NoSandboxError, RecorderError, NoDevice) as error:
            return unfit(one_line(str(error)))

    def close(self) -> None:
        with self._lock:
            for gate in self._gates.values():
                gate.close()
            if self._builder is not None:
                self._builder.close()
            self._gates, self._builder = {}, None

    def _gate(self, op: Op) -> CompileGate:
        with self._lock:
            if self._builder is None:
                self._builder = Builder(choose())
            if op.name not in self._gates:
                self._gates[op.name] = CompileGate(op, self.cache, self._builder, workers=1)
            return self._gates[op.name]

    def _build(self, op: Op, under: Mapping[str, Any], body: Mapping[str, Any], blobs: Blobs) -> Answer:
        gate = self._gate(op)
        candidate, problem = Candidate(op.name, body["source"], Origin("")), from_json(Problem, body["problem"])
        if reason := other(under, gate.key(candidate, problem, body["defect"])):
            return unfit(reason)
        outcome = gate.one(candidate, problem, body["defect"])
        if outcome.status is Status.ERROR:
            return again(outcome.message)
        said = {n: to_json(getattr(outcome, n)) for n in ("status", "code", "message", "seconds", "lasts")}
        if outcome.artefact is None:
            return canonical_json(said), {}
        files = [outcome.artefact.object, outcome.artefact.ptx, outcome.artefact.cubin]
        said |= {"record": to_json(outcome.artefact.record), "ptx": outcome.artefact.ptx.name}
        return canonical_json(said), {path.name: path.read_bytes() for path in files}

    def _interpret(self, op: Op, under: Mapping[str, Any], body: Mapping[str, Any], blobs: Blobs) -> Answer:
        builds = [(sha256, from_json(BuildRecord, record)) for sha256, record in body["builds"]]
        if reason := other(under, interpreted_under(op, builds)):
            return unfit(reason)
        artefacts = [
            Received(r, self._put(r.object_sha256, OBJECT_SUFFIX, blobs), self._put(sha256, ".ptx", blobs))
            for sha256, r in builds
        ]
        result = kinds.of(op).interpret(op, artefacts, cache=linked_in(self.cache), deadline=body["deadline"])
        return again(result.message) if result.code == "numeric.runner" else (canonical_json(to_json(result)), {})

    def _unit(self, op: Op, under: Mapping[str, Any], body: Mapping[str, Any], blobs: Blobs) -> Answer:
        if under["rules"] != rules():
            return unfit(other({"rules": under["rules"]}, {"rules": rules()}))
        root, lists = objects_in(self.cache).root, {}
        for name in ("artefacts", "mutants", "champions"):
            records = [from_json(BuildRecord, record) for record in body[name]]
            for record in records:
                self._put(record.object_sha256, OBJECT_SUFFIX, blobs)
            lists[name] = tuple(carried_in(root, record) for record in records)
        unit = Unit(body["gate"], body["name"], body["candidate"], **lists)
        seconds = body["deadline"]
        with leased("cuda", f"{unit.name} of {unit.candidate[:12]}", seconds + JUDGING_SECONDS):
            done = self._runners[unit.gate](op, unit, linked_in(self.cache), seconds)
            evidence = part_of(op, under["run"], under["arch"], "", unit, done, body["started"])
        return canonical_json({"evidence": to_json(evidence), "raw": to_json(done.raw)}), {}

    def _put(self, sha256: str, suffix: str, blobs: Blobs) -> Path:
        """The file of a blob that came with the task. Raises ValueError when its bytes are not those of its name."""
        data = blobs[f"{sha256}{suffix}"]
        if sha256_bytes(data) != sha256:
            raise ValueError(f"{sha256}{suffix} arrived damaged")
        store = objects_in(self.cache)
        store.put(data, suffix)
        return store.where(sha256, suffix)


def unfit(reason: str) -> Answer:
    """The answer of a node that is not to be asked again."""
    return canonical_json({"unfit": reason}), {}


def again(reason: str) -> Answer:
    """The answer where this machine failed: another one may do better."""
    return canonical_json({"again": one_line(reason)}), {}


def other(asked: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Why this node's result would not be the one that was asked for, "" when it would."""
    names = [n.replace("_", " ") for n in sorted({*asked, *here}) if asked.get(n) != to_json(here.get(n))]
    return f"it has another {names[0]} than the machine that asks: install the same kgen there" if names else ""


def forget_secrets() -> None:
    """Of a process that works for others: only what a runner gets stays in its environment."""
    kept = child_environment()
    for name in [n for n in os.environ if n not in kept and not n.startswith(KEPT)]:
        del os.environ[name]
