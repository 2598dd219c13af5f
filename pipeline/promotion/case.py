"""What is put forward for promotion, and every reason to refuse it.

The order of the rules: is it complete, is it whose it claims to be, was it proven, under the rules that hold now, and
does it win somewhere. Not covered: whether the evidence tells the truth; that is what keys and `--trust` are about.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kgen.promotion.freshness import Current, staleness
from kgen.records import (
    GATES,
    BuildRecord,
    Candidate,
    Evidence,
    SignedEvidence,
    Verdict,
    canonical_json,
    sha256_bytes,
    to_json,
)
from kgen.records.envelope import envelope, label
from kgen.records.manifest import OWN_KEY, SELF_REPORTED
from kgen.store import signing
from kgen.store.errors import IntegrityError

GPU_GATES = GATES[1:]
UNSAFE_ISOLATION = ("", "none", "unsafe")  # builds made without a sandbox


class Refused(Exception):
    """The case is not promoted: a stable code and one line. Nothing has been written."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Case:
    """A candidate with everything that speaks for it.

    `objects`: sha256 -> bytes of the objects that the evidence names. `raw`: compressed raw samples, may be empty.
    `against`: problem key -> object that served when the evidence was made; when given, a champion that has changed
    since makes the case superseded.
    """

    candidate: Candidate
    verdict: Verdict
    evidence: SignedEvidence
    builds: tuple[BuildRecord, ...]
    objects: Mapping[str, bytes]
    raw: bytes = b""
    against: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Claim:
    """What a checked case may claim: its keys with their labels and builds, and whose evidence it is."""

    labels: Mapping[str, str]
    builds: Mapping[str, BuildRecord]
    trust: str
    objects: Mapping[str, bytes] = field(default_factory=dict)


def examine(case: Case, current: Current, key: bytes, trust: bool) -> Claim:
    """Raises Refused (the case does not suffice) or IntegrityError (its parts do not belong together)."""
    evidence = case.evidence.evidence
    _storable(case)
    _same_candidate(case, evidence)
    whose = _whose(case, key, trust)
    _proven(case, evidence)
    if reason := staleness(evidence.op, evidence.op_contract, evidence.gate_contract, current):
        raise Refused("promote.stale", f"the evidence is stale: {reason}; run the gates again")
    labels = _labels(evidence)
    builds = _builds(case, evidence, labels)
    objects = {b.object_sha256: _object(case, b) for b in builds.values()}
    return Claim(labels, builds, whose, objects)


def _storable(case: Case) -> None:
    """Foreign evidence may hold text that no UTF-8 file can (lone surrogates)."""
    try:
        canonical_json(to_json(case.evidence))
    except ValueError as error:
        raise IntegrityError(f"the evidence cannot be stored: {error}") from None


def _same_candidate(case: Case, evidence: Evidence) -> None:
    mine = case.candidate.id
    for what, other in (("verdict", case.verdict.candidate), ("evidence", evidence.candidate)):
        if other != mine:
            raise IntegrityError(f"the {what} is about candidate {other[:12]}, not {mine[:12]}")
    if evidence.op != case.candidate.op:
        raise IntegrityError(f"the evidence is about {evidence.op}, the candidate about {case.candidate.op}")
    if case.evidence.run != evidence.run:
        raise IntegrityError(f"the evidence is of run {evidence.run}, its envelope says {case.evidence.run}")
    if evidence.environment.arch != evidence.arch:
        raise IntegrityError(f"evidence for {evidence.arch} was made on {evidence.environment.arch}")
    if (sha256_bytes(case.raw) if case.raw else "") != evidence.raw_sha256:
        raise IntegrityError("the raw samples are not those that the evidence names")


def _whose(case: Case, key: bytes, trust: bool) -> str:
    if signing.check(case.evidence, key):
        return OWN_KEY
    if trust:
        return SELF_REPORTED
    raise Refused("promote.trust", "the evidence is not signed with this run's key: it is promoted only with --trust")


def _proven(case: Case, evidence: Evidence) -> None:
    for gate in GATES:
        result = case.verdict.result(gate)
        if result is None or not result.passed or result.interpreted:
            found = f"{result.status}: {result.message}" if result else "no result"
            raise Refused("promote.verdict", f"not promotable: {gate} is not passed ({found})")
    results = {r.gate: r for r in evidence.results}
    for gate in GPU_GATES:
        if gate not in results or not results[gate].passed or results[gate].interpreted:
            raise Refused("promote.evidence", f"not promotable: the evidence holds no pass of {gate}")
        if results[gate].contract != evidence.gate_contract:
            raise IntegrityError(f"the evidence is of gate contract {evidence.gate_contract}, its {gate} is not")


def _labels(evidence: Evidence) -> Mapping[str, str]:
    for point in evidence.points:
        if point.label != label(point.ratio_high):
            raise IntegrityError(f"point {point.problem} is labelled {point.label} at a ratio of {point.ratio_high}")
    labels = {key: text for key, text in envelope(evidence.points).items() if key in evidence.objects}
    if not labels:
        raise Refused("promote.points", "no measured point is a win or a tie: nothing to promote")
    if "win" not in labels.values():
        raise Refused("promote.no-win", "every measured point is at best a tie: a promotion needs one win")
    return labels


def _builds(case: Case, evidence: Evidence, labels: Mapping[str, str]) -> Mapping[str, BuildRecord]:
    found: dict[str, BuildRecord] = {}
    for build in case.builds:
        key = build.problem.key
        if key not in labels or build.defect:
            continue
        if build.candidate != case.candidate.id or build.object_sha256 != evidence.objects[key]:
            raise IntegrityError(f"{key}: the object that was measured is not the one in the build record")
        if build.isolation.split("/")[0] in UNSAFE_ISOLATION:
            raise Refused("promote.isolation", f"{key} was built without a sandbox: build it again in one")
        if build.problem.arch != evidence.arch or build.problem.op != evidence.op:
            raise IntegrityError(f"{key} is not a point of {evidence.op} on {evidence.arch}")
        found[key] = build
    if missing := sorted(set(labels) - set(found)):
        raise IntegrityError(f"{missing[0]}: measured, but there is no build record for it")
    return found


def _object(case: Case, build: BuildRecord) -> bytes:
    data = case.objects.get(build.object_sha256)
    if data is None:
        raise IntegrityError(f"{build.problem.key}: object {build.object_sha256[:12]} is missing")
    if sha256_bytes(data) != build.object_sha256:
        raise IntegrityError(f"{build.problem.key}: the object's bytes do not hash to {build.object_sha256[:12]}")
    return data
