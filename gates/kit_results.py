"""Evidence in parts: what a kit writes as it goes, and how parts become the evidence of one candidate.

Each part is signed evidence of one gate on some points, so that a run may be cut into pieces, killed and resumed.
Not covered: whether a part may be believed (ingest.py).
"""

import lzma
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from kgen.records import Evidence, GateResult, SignedEvidence, Status, canonical_json, sha256_bytes

UNIT = "unit"  # the fact that names a part within its candidate, e.g. "unit-numeric nano t1-t4"
TOGETHER = "together"  # the fact that names other candidates in place in the same evaluation, by op
# A part whose findings say so passes when another part of the same gate passed outright: a sweep needs one win, and
# not one in every part.
NEUTRAL: Mapping[str, str] = {"perf.no_win": "perf.pass"}
JUDGED = (Status.PASS, Status.FAIL)
WORST_FIRST = (Status.FAIL, Status.ERROR, Status.SKIP, Status.PASS)
KEPT_FIRST = (Status.FAIL, Status.PASS, Status.ERROR, Status.SKIP)  # of two runs of one part: no picking of the luckier
SAME_MACHINE = ("gpu", "arch", "driver", "cuda", "torch", "tvm_ffi", "runtime_flavour")


class MergeError(ValueError):
    """Parts that do not belong together; one line."""


@dataclass(frozen=True)
class EvidenceSet:
    """The file that a kit writes."""

    SCHEMA: ClassVar[str] = "kgen.evidence-set/1"
    run: str
    kit: str  # sha256 of the kit's table of contents
    parts: tuple[SignedEvidence, ...] = ()

    def with_part(self, part: SignedEvidence) -> "EvidenceSet":
        return replace(self, parts=(*self.parts, part))

    def and_of(self, other: "EvidenceSet") -> "EvidenceSet":
        """With the parts that only `other` has."""
        return replace(self, parts=(*self.parts, *(p for p in other.parts if p not in self.parts)))

    def judged(self, candidate: str, unit: str, objects: Mapping[str, str]) -> Evidence | None:
        """The part of this unit that came to a verdict about exactly these objects: it is not run again."""
        for part in self.parts:
            evidence = part.evidence
            same = (evidence.candidate, unit_of(evidence)) == (candidate, unit) and evidence.objects == objects
            if same and status_of(evidence) in JUDGED:
                return evidence
        return None

    def failed(self, candidate: str) -> bool:
        """Whether a candidate has failed for good: nothing more of it is run."""
        return any(
            part.evidence.candidate == candidate
            and status_of(part.evidence) is Status.FAIL
            and not all(r.code in NEUTRAL for r in part.evidence.results)
            for part in self.parts
        )


def unit_of(evidence: Evidence) -> str:
    """Name of a part; whole evidence has none."""
    return str(evidence.facts.get(UNIT, ""))


def status_of(evidence: Evidence) -> Status:
    """The worst status of a part's results."""
    return min((r.status for r in evidence.results), key=WORST_FIRST.index, default=Status.SKIP)


def distinct(parts: Iterable[Evidence]) -> list[Evidence]:
    """One part a unit and candidate: a failure is kept before a pass, a pass before an error, else the later one."""
    kept: dict[tuple[str, str], Evidence] = {}
    for part in parts:
        key = (part.candidate, unit_of(part))
        old = kept.get(key)
        if old is None or KEPT_FIRST.index(status_of(part)) <= KEPT_FIRST.index(status_of(old)):
            kept[key] = part
    return list(kept.values())


def merge(parts: Sequence[Evidence], raw_sha256: str) -> Evidence:
    """The evidence of one candidate. Raises MergeError for parts of different candidates, contracts or machines."""
    first = parts[0]
    for part in parts[1:]:
        _belongs(first, part)
    gates = dict.fromkeys(r.gate for p in parts for r in p.results)
    return replace(
        first,
        objects={k: v for p in parts for k, v in p.objects.items()},
        results=tuple(merge_results([r for p in parts for r in p.results if r.gate == g]) for g in gates),
        points=tuple(point for p in parts for point in p.points),
        seeds={k: v for p in parts for k, v in p.seeds.items()},
        started=min(p.started for p in parts),
        finished=max(p.finished for p in parts),
        raw_sha256=raw_sha256,
        facts={"parts": [unit_of(p) for p in parts], **_common_facts(parts)},
    )


def _belongs(first: Evidence, part: Evidence) -> None:
    for name in ("op", "candidate", "op_contract", "gate_contract", "arch", "run"):
        if getattr(first, name) != getattr(part, name):
            text = f"{name} is {getattr(first, name)!r} in one and {getattr(part, name)!r} in another"
            raise MergeError(f"parts do not belong together: {text}")
    for name in SAME_MACHINE:
        mine, other = getattr(first.environment, name), getattr(part.environment, name)
        if mine != other:
            raise MergeError(f"parts come from different machines: {name} is {mine!r} in one and {other!r} in another")
    for key, sha256 in part.objects.items():
        if first.objects.get(key, sha256) != sha256:
            raise MergeError(f"parts were run with different objects for {key}")


def _common_facts(parts: Sequence[Evidence]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for part in parts:
        facts = deep_merge(facts, {k: v for k, v in part.facts.items() if k != UNIT})
    return facts


def merge_results(results: Sequence[GateResult]) -> GateResult:
    """One result of one gate: the worst part decides."""
    passing = any(r.passed for r in results)
    judged = [
        replace(r, status=Status.PASS, code=NEUTRAL[r.code]) if passing and r.code in NEUTRAL else r for r in results
    ]
    worst = min(judged, key=lambda r: WORST_FIRST.index(r.status))
    evidence: dict[str, Any] = {}
    for result in results:
        evidence = deep_merge(evidence, dict(result.evidence))
    message = worst.message
    if worst.passed and len(results) > 1:
        message = f"{len(results)} parts: " + "; ".join(dict.fromkeys(r.message for r in judged))
    return replace(worst, message=message, evidence=evidence, seconds=sum(r.seconds for r in results))


def deep_merge(a: Any, b: Any) -> Any:
    """Objects by key, lists one after the other without repeats, numbers added; else the first value stays."""
    if isinstance(a, dict) and isinstance(b, dict):
        return {k: deep_merge(a[k], b[k]) if k in a and k in b else a.get(k, b.get(k)) for k in {**a, **b}}
    if isinstance(a, list) and isinstance(b, list):
        return a + [item for item in b if item not in a]
    both_numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
    return a + b if both_numbers else a


def raw_digest(raw: Mapping[str, Any]) -> str:
    """Hash of one part's raw samples ("" without any), independent of how they are stored."""
    return sha256_bytes(canonical_json(raw)) if raw else ""


def pack_raw(raw: Mapping[str, Any]) -> bytes:
    """Raw samples by "candidate unit", as the compressed file that lies beside the evidence; deterministic."""
    return lzma.compress(canonical_json(raw)) if raw else b""
