"""`kgen ingest`: take in evidence that came back from a kit, or refuse it with one line.

    ingest(documents, raws, ledger, trust=False) -> tuple[Ingested, ...]     one a candidate; raises Refusal

Checked: the signature under the run's key, the run, the candidate, the hashes of the objects that were run, op contract
and gate-contract version, completeness (every gate at every point that it has to judge), raw samples. Evidence that is
not signed with this run's key is taken only with `trust`, and is marked self-reported for good.
Not covered: whether the GPU host was honest. Whoever holds the kit holds the key.
"""

import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kgen.contract import Op
from kgen.gates import kit_results as results
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.kit_results import EvidenceSet, MergeError
from kgen.gates.kit_units import GATE_NAMES, covers
from kgen.gates.perf import counts
from kgen.records import (
    BuildRecord,
    Evidence,
    GateResult,
    RecordError,
    SignedEvidence,
    Status,
    from_json,
    one_line,
    sha256_bytes,
    strict_json,
)
from kgen.records.envelope import HEADLINE, label
from kgen.records.manifest import OWN_KEY, SELF_REPORTED
from kgen.store.signing import check, sign

MAX_BYTES = 64 << 20  # of one document: a whole sweep takes a few MB


class Refusal(Exception):
    """Evidence is not taken: a stable code and one line."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(one_line(message))
        self.code = f"ingest.{code}"


@dataclass(frozen=True)
class Ledger:
    """What this side knows: the run, its key, and what was built for each of its candidates (defects left out)."""

    op: Op
    run: str
    key: bytes
    builds: Mapping[str, tuple[BuildRecord, ...]]  # candidate id -> build records


@dataclass(frozen=True)
class Ingested:
    """One candidate's evidence: `results` go to the run, `raw` (xz, may be empty) beside the evidence."""

    evidence: SignedEvidence
    raw: bytes
    trust: str

    @property
    def candidate(self) -> str:
        return self.evidence.evidence.candidate

    @property
    def results(self) -> tuple[GateResult, ...]:
        return self.evidence.evidence.results

    @property
    def passed(self) -> bool:
        """All three GPU gates passed: with a passed compile gate the candidate is promotable."""
        return all(r.passed for r in self.results)


def ingest(
    documents: Mapping[str, bytes], raws: Mapping[str, bytes], ledger: Ledger, trust: bool = False
) -> tuple[Ingested, ...]:
    """Evidence of one or several files (name -> bytes), which may be parts of one sweep. Raises Refusal."""
    signed = [part for name, data in documents.items() for part in read(name, data)]
    if not signed:
        raise Refusal("empty", f"{', '.join(documents) or 'no file'}: holds no evidence")
    whose = {_trust(part, ledger, trust) for part in signed}
    for part in signed:
        _mine(part.evidence, ledger)
    samples, files = _samples(raws), {sha256_bytes(data): data for data in raws.values()}
    kept = results.distinct(p.evidence for p in signed)
    candidates = dict.fromkeys(e.candidate for e in kept)
    trusted = OWN_KEY if whose == {OWN_KEY} else SELF_REPORTED
    return tuple(_one([e for e in kept if e.candidate == c], samples, files, ledger, trusted) for c in candidates)


def read(name: str, data: bytes) -> tuple[SignedEvidence, ...]:
    """The signed parts of a kit's evidence file, or one signed evidence. Raises Refusal."""
    if len(data) > MAX_BYTES:
        raise Refusal("format", f"{name} is {len(data) >> 20} MiB: too large for evidence")
    try:
        value = strict_json(data)
    except RecordError as error:
        raise Refusal("format", f"{name} is not JSON: {str(error)[:120]}") from None
    schema = value.get("schema") if isinstance(value, dict) else None
    try:
        if isinstance(schema, str) and schema.startswith("kgen.signed-evidence/"):
            return (from_json(SignedEvidence, value),)
        return from_json(EvidenceSet, value).parts
    except RecordError as error:
        raise Refusal("format", f"{name}: {error}") from None


def _trust(part: SignedEvidence, ledger: Ledger, trust: bool) -> str:
    """Whose evidence it is. Raises Refusal."""
    own = part.run == ledger.run and part.evidence.run == ledger.run
    if own and check(part, ledger.key):
        return OWN_KEY
    if own and part.hmac:
        raise Refusal("altered", f"the signature does not fit: altered, or not from a kit of run {ledger.run}")
    if not trust:
        what = f"is of run {part.evidence.run}, not {ledger.run}" if not own else "is not signed"
        raise Refusal("foreign", f"the evidence {what}; --trust takes it as self-reported")
    return SELF_REPORTED


def _mine(evidence: Evidence, ledger: Ledger) -> None:
    """The evidence is about what this run built, under the rules that hold now. Raises Refusal."""
    if evidence.op != ledger.op.name:
        raise Refusal("other_op", f"the evidence is about {evidence.op}, the run about {ledger.op.name}")
    if evidence.op_contract != ledger.op.contract_sha256():
        raise Refusal("stale", f"the contract of {evidence.op} has changed since: make a new kit")
    if evidence.gate_contract != GATE_CONTRACT or any(r.contract != GATE_CONTRACT for r in evidence.results):
        raise Refusal("stale", f"judged under gate contract {evidence.gate_contract}, now {GATE_CONTRACT}")
    if evidence.candidate not in ledger.builds:
        raise Refusal("other_candidate", f"run {ledger.run} has no built candidate {evidence.candidate[:12]}")
    if evidence.environment.arch != evidence.arch:
        text = f"evidence for {evidence.arch} was made on a GPU of {evidence.environment.arch or 'no arch'}"
        raise Refusal("inconsistent", text)
    built = {b.problem.key: b.object_sha256 for b in ledger.builds[evidence.candidate] if not b.defect}
    for key, sha256 in evidence.objects.items():
        if built.get(key) != sha256:
            text = f"{key}: object {sha256[:12]} was run, this run built {built.get(key, 'none')[:12]}"
            raise Refusal("objects", text)
    _consistent(evidence)


def _consistent(evidence: Evidence) -> None:
    if strange := [r.gate for r in evidence.results if r.gate not in GATE_NAMES.values()]:
        raise Refusal("inconsistent", f"{strange[0]} is no gate that a kit runs")
    for point in evidence.points:
        if point.problem not in evidence.objects:
            raise Refusal("inconsistent", f"{point.problem} was timed, but is not among the objects that were run")
        if point.label != label(point.ratio_high):
            raise Refusal("inconsistent", f"{point.problem} is called {point.label} at a ratio of {point.ratio_high}")


def _samples(raws: Mapping[str, bytes]) -> dict[str, Any]:
    """Raw samples by "candidate unit" from all files. Raises Refusal."""
    found: dict[str, Any] = {}
    for name, data in raws.items():
        try:
            text = lzma.LZMADecompressor(memlimit=256 << 20).decompress(data, max_length=MAX_BYTES)
            value = strict_json(text)
        except (lzma.LZMAError, RecordError) as error:
            raise Refusal("format", f"{name} holds no raw samples: {str(error)[:120]}") from None
        found |= value if isinstance(value, dict) else {}
    return found


def _one(
    parts: Sequence[Evidence], samples: Mapping[str, Any], files: Mapping[str, bytes], ledger: Ledger, trust: str
) -> Ingested:
    """`files`: raw files by the hash of their bytes."""
    whole = parts[0]
    if len(parts) > 1 or results.unit_of(whole):
        packed = _packed(parts, samples)
        try:
            whole = results.merge(parts, sha256_bytes(packed) if packed else "")
        except MergeError as error:
            raise Refusal("inconsistent", str(error)) from None
    elif (packed := files.get(whole.raw_sha256, b"")) == b"" and whole.raw_sha256:
        raise Refusal("raw", "the raw samples are missing or altered (--raw)")
    if not any(r.status is Status.FAIL for r in whole.results):
        _complete(parts, ledger)
    signed = sign(whole, ledger.key) if trust == OWN_KEY else SignedEvidence(whole, whole.run, "")
    return Ingested(signed, packed, trust)


def _packed(parts: Sequence[Evidence], samples: Mapping[str, Any]) -> bytes:
    """The raw samples of all parts as one file. Raises Refusal when one's are missing or not those it names."""
    raw: dict[str, Any] = {}
    for part in parts:
        name = f"{part.candidate} {results.unit_of(part)}"
        if part.raw_sha256 and results.raw_digest(samples.get(name, {})) != part.raw_sha256:
            raise Refusal(
                "raw", f"the raw samples of {results.unit_of(part) or 'the sweep'} are missing or altered (--raw)"
            )
        if part.raw_sha256:
            raw[name] = samples[name]
    return results.pack_raw(raw)


def _complete(parts: Sequence[Evidence], ledger: Ledger) -> None:
    """Every gate has judged every point that it has to, on this arch. Raises Refusal."""
    arch = parts[0].arch
    builds = [b for b in ledger.builds[parts[0].candidate] if b.problem.arch == arch and not b.defect]
    if not builds:
        raise Refusal("incomplete", f"run {ledger.run} has built nothing of this candidate for {arch}")
    for short, gate in GATE_NAMES.items():
        judged = {k for p in parts if any(r.gate == gate for r in p.results) for k in p.objects}
        due = [b.problem.key for b in builds if covers(short, b, ledger.op)]
        missing = [key for key in due if key not in judged]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            text = f"{gate} has not judged {missing[0]}{more}: run the rest of the kit, and ingest all files together"
            raise Refusal("incomplete", text)
    headline = [p for part in parts for p in part.points if p.column == HEADLINE and not p.scenario]
    timed = {(p.problem, p.tokens) for p in headline}
    for problem in (b.problem for b in builds if covers("perf", b, ledger.op)):
        for tokens in counts(ledger.op, problem.tokens, problem):
            if (problem.key, tokens) not in timed:
                raise Refusal("incomplete", f"{problem.key} has no {HEADLINE} time at {tokens} tokens")
