"""The report as one JSON document, schema `kgen.report/1`: for programs, and for what does not fit into a comment."""

from typing import Any

from kgen.gates.contract import GATE_CONTRACT
from kgen.records import to_json
from kgen.records.envelope import envelope
from kgen.report.document import Document, Entry
from kgen.report.judged import routing_in

SCHEMA = "kgen.report/1"


def as_json(doc: Document) -> dict[str, Any]:
    """Everything that a reader needs; sources and build records stay in the run folder, by hash."""
    return {
        "schema": SCHEMA,
        "routing": routing_in(doc),
        "op": doc.op.name,
        "op_contract": doc.op.contract_sha256(),
        "gate_contract": GATE_CONTRACT,
        "run": to_json(doc.run),
        "path": doc.path,
        "state": doc.state,
        "outcome": doc.outcome,
        "next": doc.next_command,
        "usage": doc.usage,
        "subject": doc.subject.candidate.id if doc.subject else "",
        "candidates": [_entry(e) for e in doc.entries],
    }


def _entry(entry: Entry) -> dict[str, Any]:
    evidence = entry.evidence
    return {
        "folder": entry.folder,
        "id": entry.candidate.id,
        "state": entry.state,
        "origin": to_json(entry.candidate.origin),
        "rank": entry.rank,
        "cost": to_json(entry.ranked) if entry.ranked else None,
        "results": [to_json(r) for r in entry.results],
        "objects": {b.problem.key: b.object_sha256 for b in entry.sound_builds},
        "trust": entry.trust,
        "environment": to_json(evidence.environment) if evidence else None,
        "points": [to_json(p) for p in evidence.points] if evidence else [],
        "envelope": dict(envelope(evidence.points)) if evidence else {},
    }
