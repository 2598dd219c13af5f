"""Kits and evidence for tests: build records with a few bytes as objects, and evidence as a kit would sign it."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kgen.contract import Op
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.ingest import Ledger
from kgen.gates.kit_results import UNIT, EvidenceSet, raw_digest
from kgen.gates.kit_units import GATE_NAMES
from kgen.ops import REGISTRY
from kgen.records import (
    BuildRecord,
    Compiler,
    Environment,
    Evidence,
    GateResult,
    PerfPoint,
    SignedEvidence,
    Status,
    canonical_json,
    sha256_bytes,
    to_json,
)
from kgen.records.envelope import label
from kgen.store.signing import sign

OP = REGISTRY.get("moe_shared")
RUN, KEY = "20260101T000000Z-moe_shared-abcdef", b"k" * 32
CANDIDATE = "c" * 64
ARCH = "sm_90a"
SERVED = OP.pack.served[0]
MACHINE = Environment("NVIDIA H200", ARCH, 132, 60 << 20, 141 << 30, "580", "13.0", "2.11", "3.12", "0.1.15", "cu13")


@dataclasses.dataclass(frozen=True)
class Made:
    record: BuildRecord
    object: Path


def make(
    folder: Path,
    tokens: int,
    dims: str = SERVED,
    defect: str = "",
    arch: str = ARCH,
    op: Op = OP,
    candidate: str = CANDIDATE,
) -> Made:
    """A build record and its object file, whose bytes say what it is."""
    data = f"{tokens} {dims} {defect} {arch}{'' if op is OP else f' {op.name}'}".encode() * 50
    sha256 = sha256_bytes(data)
    path = folder / f"{sha256}.o"
    path.write_bytes(data)
    record = BuildRecord(
        candidate=candidate,
        problem=op.problem(dims, tokens, arch),
        function="kgen_entry",
        object_sha256=sha256,
        object_bytes=len(data),
        cubin_sha256="0" * 64,
        kernels=(),
        launches=(),
        workspaces=(),
        compiler=Compiler("4.8.1", "cu12"),
        isolation="test/1",
        compile_seconds=1.0,
        defect=defect,
    )
    return Made(record, path)


def ledger_of(builds: Iterable[BuildRecord]) -> Ledger:
    """What the run knows that made these builds, of one candidate or several."""
    found: dict[str, tuple[BuildRecord, ...]] = {}
    for build in builds:
        found[build.candidate] = (*found.get(build.candidate, ()), build)
    return Ledger(OP, RUN, KEY, found)


def point(record: BuildRecord, ratio: float = 0.7) -> PerfPoint:
    high = ratio + 0.05
    return PerfPoint(
        problem=record.problem.key,
        tokens=record.problem.tokens,
        column="graph",
        timer="events",
        candidate_us=10.0,
        baselines_us={"stock": 10 / ratio},
        best_baseline="stock",
        ratio=ratio,
        ratio_low=ratio - 0.05,
        ratio_high=high,
        roofline=0.5,
        floor_us=5.0,
        samples=40,
        label=label(high),
    )


def part(
    gate: str,
    *made: Made,
    status: Status = Status.PASS,
    code: str = "",
    raw: Mapping[str, Any] | None = None,
    **changed: Any,
) -> Evidence:
    """One piece of evidence: gate "numeric", "model" or "perf" over some builds."""
    name = GATE_NAMES[gate]
    result = GateResult(name, status, code or f"{gate}.{status}", f"{len(made)} points", {}, 1.0, GATE_CONTRACT)
    tokens = "+".join(str(m.record.problem.tokens) for m in made)
    body = Evidence(
        op=OP.name,
        candidate=CANDIDATE,
        op_contract=OP.contract_sha256(),
        gate_contract=GATE_CONTRACT,
        arch=ARCH,
        run=RUN,
        objects={m.record.problem.key: m.record.object_sha256 for m in made},
        environment=MACHINE,
        results=(result,),
        points=tuple(point(m.record) for m in made) if gate == "perf" else (),
        seeds={},
        started="2026-01-01T00:00:00Z",
        finished="2026-01-01T00:05:00Z",
        raw_sha256=raw_digest(raw or {}),
        facts={UNIT: f"{name} {tokens}"},
    )
    return dataclasses.replace(body, **changed)


def document(*parts: Evidence, key: bytes = KEY) -> bytes:
    """The file that a kit writes."""
    signed: tuple[SignedEvidence, ...] = tuple(sign(p, key) for p in parts)
    return canonical_json(to_json(EvidenceSet(RUN, "kit", signed)))
