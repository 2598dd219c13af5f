"""Work for a node: what it is, as JSON, and the key of its result.

A key is the sha256 of everything that decides the result: what is judged, the op's contract, the rules' own text, the
compiler. Limits of time are no part of it. Whoever has a result under a key needs no other; a node that computes
another key for the same work runs another kgen or compiler, and is not used. Not covered: doing it (`worker`).
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import kgen.contract
import kgen.gates
from kgen.contract.op import Op
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.gpu.lease import JUDGING_SECONDS, WAIT_SECONDS
from kgen.gates.kit_units import Carried, Unit
from kgen.records import BuildRecord, Problem, canonical_json, sha256_bytes, to_json

Blobs = Mapping[str, bytes]  # by file name: <sha256>.o, .ptx, .cubin
BUILD, INTERPRET, UNIT = "build", "interpret", "unit"
BUILD_SECONDS = 420.0  # two tries of a build, the starts of their servers, and the audit
ANSWER_SECONDS = 120.0  # beside a gate's own deadline: starting, judging, and the way here
JUDGING = (
    "ptx",
    "runner",
    "numeric.py",
    "judge.py",
    "localise.py",
    "rows.py",
    "signature.py",
)  # of the gates: who judges numbers


@dataclass(frozen=True)
class Task:
    """One piece of work. `under`: its key in words; `body`: what it is; `blobs`: the files that it needs.

    `seconds`: a node that has not answered by then counts as lost. `gpu`: the arch that it needs, "" for none.
    """

    SCHEMA: ClassVar[str] = "kgen.pool-task/1"
    kind: str
    op: str
    under: Mapping[str, Any]
    body: Mapping[str, Any]
    seconds: float
    gpu: str = ""
    blobs: Blobs = field(default_factory=dict)

    @property
    def key(self) -> str:
        return sha256_bytes(canonical_json({"kind": self.kind, "op": self.op, "under": self.under}))

    @property
    def message(self) -> bytes:
        """All of it but the blobs, as it goes to a node."""
        words = ("kind", "op", "under", "body")
        return canonical_json({name: to_json(getattr(self, name)) for name in words})


@functools.cache
def rules() -> str:
    """Hash of the text that judges numbers: results of other rules are not taken."""
    gates, contract = (Path(package.__path__[0]) for package in (kgen.gates, kgen.contract))
    places = [contract, *(gates / name for name in JUDGING)]
    files = sorted(f for p in places for f in (p.rglob("*.py") if p.is_dir() else [p]))
    return sha256_bytes(b"\0".join(path.read_bytes() for path in files))


def build_task(op: Op, source: str, problem: Problem, defect: str, under: Mapping[str, Any]) -> Task:
    """A build and its audit, of a source that the screen has seen; `under` is its key in the build cache."""
    body = {"source": source, "problem": to_json(problem), "defect": defect}
    return Task(BUILD, op.name, under, body, BUILD_SECONDS)


Builds = Sequence[tuple[str, BuildRecord]]  # with the sha256 of their PTX


def interpreted_under(op: Op, builds: Builds) -> dict[str, Any]:
    """The key of what the interpreter says of these builds."""
    texts = {record.problem.key: [sha256, record.object_sha256] for sha256, record in builds}
    return {"op_contract": op.contract_sha256(), "gate_contract": GATE_CONTRACT, "rules": rules(), "ptx": texts}


def interpret_task(op: Op, builds: Builds, blobs: Blobs, deadline: float) -> Task:
    """unit-numeric in the interpreter; `blobs` holds the builds' objects and PTX."""
    body = {"builds": [[sha256, to_json(record)] for sha256, record in builds], "deadline": deadline}
    return Task(INTERPRET, op.name, interpreted_under(op, builds), body, deadline + ANSWER_SECONDS, blobs=blobs)


def unit_task(op: Op, unit: Unit, blobs: Blobs, arch: str, run: str, started: str, deadline: float) -> Task:
    """A piece of a GPU gate. Its evidence names the run, whose key stays here."""
    parts = {"artefacts": unit.artefacts, "mutants": unit.mutants, "champions": unit.champions}
    lists = {name: _records(carried) for name, carried in parts.items()}
    body = {"gate": unit.gate, "name": unit.name, "candidate": unit.candidate, **lists, "deadline": deadline}
    under = {"contract": [op.contract_sha256(), GATE_CONTRACT], "rules": rules(), "run": run, "unit": unit.name}
    objects = {name: [c.record.object_sha256 for c in carried] for name, carried in parts.items()}
    seconds = deadline + JUDGING_SECONDS + WAIT_SECONDS + ANSWER_SECONDS
    return Task(UNIT, op.name, {**under, **objects, "arch": arch}, {**body, "started": started}, seconds, arch, blobs)


def _records(carried: Sequence[Carried]) -> list[Any]:
    return [to_json(c.record) for c in carried]
