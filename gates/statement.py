"""Evidence as in-toto statements: which bytes were judged (subjects), and what the gates said of them (predicate).

    statements(parts) -> bytes                  JSON lines: one statement for each candidate and machine
    check(name, data, parts)                    raises StatementError unless `data` is the statement of these parts
    promoted(promotion, evidence, findings)     the statement of a promoted kernel, its source among the subjects

A statement is a function of the evidence: whoever has both can make it again and see that they belong together, and
whoever has only the statement and a signature of it (ssh_signatures.py) knows what was measured on which bytes.
Not covered: whether the machine that measured was honest.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kgen.gates.kit_results import SAME_MACHINE, MergeError, distinct, merge, unit_of
from kgen.records import (
    Evidence,
    Promotion,
    RecordError,
    SignedEvidence,
    canonical_json,
    one_line,
    sha256_bytes,
    strict_json,
    to_json,
)

TYPE = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:kgen:gate-results:1"
SUFFIX = ".intoto.jsonl"


class StatementError(ValueError):
    """A statement that is none, or that does not belong to the evidence; one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def beside(evidence: Path) -> Path:
    """evidence.json -> evidence.intoto.jsonl"""
    return evidence.with_name(evidence.name.removesuffix(".json") + SUFFIX)


def statements(parts: Iterable[Evidence]) -> bytes:
    """One line for each candidate and machine, in order; the same parts give the same bytes. Raises MergeError for
    parts of one machine that do not belong together."""
    groups: dict[tuple[str, ...], list[Evidence]] = {}
    for part in distinct(parts):
        machine = (str(getattr(part.environment, name)) for name in SAME_MACHINE)
        groups.setdefault((part.op, part.candidate, *machine), []).append(part)
    return b"".join(canonical_json(_merged(group)) + b"\n" for _, group in sorted(groups.items()))


def _merged(parts: Sequence[Evidence]) -> dict[str, Any]:
    ordered = sorted(parts, key=unit_of)
    whole = merge(ordered, "")
    bound = sha256_bytes(canonical_json([to_json(part) for part in ordered]))
    return _statement(_subjects(whole.candidate, whole.objects), {**_predicate(whole), "evidence": {"sha256": bound}})


def promoted(promotion: Promotion, signed: SignedEvidence, checks: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Of a promoted kernel: subjects are its source and the objects that were promoted. `checks`: what `kgen verify`
    found of it just now, by check."""
    source = {"name": promotion.source, "digest": {"sha256": promotion.source_sha256}}
    predicate = {
        **_predicate(signed.evidence),
        "evidence": {"sha256": promotion.evidence_sha256},
        "promotion": {"seq": promotion.seq, "labels": dict(promotion.labels), "trust": promotion.trust},
        "verified": dict(checks or {}),
    }
    return _statement([source, *_subjects(promotion.candidate, promotion.objects)], predicate)


def _subjects(candidate: str, objects: Mapping[str, str]) -> list[dict[str, Any]]:
    """A candidate's id is a hash of the op's name and the source: it binds the source where that is not at hand."""
    found = [{"name": "candidate", "digest": {"kgenCandidate": candidate}}]
    return found + [{"name": key, "digest": {"sha256": sha256}} for key, sha256 in sorted(objects.items())]


def _predicate(evidence: Evidence) -> dict[str, Any]:
    return {
        "op": evidence.op,
        "opContract": evidence.op_contract,
        "gateContract": evidence.gate_contract,
        "arch": evidence.arch,
        "run": evidence.run,
        "environment": to_json(evidence.environment),
        "results": [
            {"gate": r.gate, "status": r.status.value, "code": r.code, "message": r.message} for r in evidence.results
        ],
        "points": [to_json(point) for point in evidence.points],
        "seeds": dict(evidence.seeds),
        "started": evidence.started,
        "finished": evidence.finished,
    }


def _statement(subjects: list[dict[str, Any]], predicate: dict[str, Any]) -> dict[str, Any]:
    return {"_type": TYPE, "subject": subjects, "predicateType": PREDICATE, "predicate": predicate}


def check(name: str, data: bytes, parts: Iterable[Evidence]) -> None:
    """Raises StatementError (one line with the first difference) unless `data` is exactly what these parts give."""
    try:
        wanted = statements(parts)
    except MergeError as error:
        raise StatementError(f"{name} is of evidence that does not hold together: {error}") from None
    if data == wanted:
        return
    mine, given = wanted.splitlines(), data.splitlines()
    if len(mine) != len(given):
        raise StatementError(
            f"{name} has {len(given)} statements, the evidence gives {len(mine)}: altered, or another's"
        )
    for number, (one, other) in enumerate(zip(mine, given, strict=True), 1):
        if one == other:
            continue
        try:
            where = _difference(json.loads(one), strict_json(other))
        except RecordError as error:
            raise StatementError(f"{name}, line {number} is no statement ({error})") from None
        text = f"{where} is not what the evidence says" if where else "is spelled otherwise than kgen writes it"
        raise StatementError(f"{name}, line {number}: {text}: altered, or of other evidence")
    raise StatementError(f"{name} ends otherwise than kgen ends it: altered")


def _difference(mine: Any, given: Any, where: str = "") -> str:
    """The path of the first value that differs, "" where none does."""
    if type(mine) is not type(given):
        return where or "the statement"
    if isinstance(mine, dict):
        for key in sorted({*mine, *given}):
            if key not in mine or key not in given:
                return f"{where}.{key}".lstrip(".")
            if found := _difference(mine[key], given[key], f"{where}.{key}".lstrip(".")):
                return found
        return ""
    if isinstance(mine, list):
        if len(mine) != len(given):
            return f"the length of {where}"
        pairs = enumerate(zip(mine, given, strict=True))
        return next((found for i, (a, b) in pairs if (found := _difference(a, b, f"{where}[{i}]"))), "")
    return "" if mine == given else where
