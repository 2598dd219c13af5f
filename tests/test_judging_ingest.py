"""What `kgen ingest` decides in its corners: whose evidence it is, what is still missing, which samples come along."""

import dataclasses
import lzma
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from support.kits import CANDIDATE, KEY, RUN, Made, document, ledger_of, make, part

from kgen.gates.ingest import MAX_BYTES, Ingested, Ledger, Refusal, ingest, read
from kgen.gates.kit_results import UNIT, merge, pack_raw
from kgen.records import Evidence, SignedEvidence, Status, canonical_json, strict_json, to_json
from kgen.records.manifest import OWN_KEY, SELF_REPORTED
from kgen.store.signing import sign

GATES = ("numeric", "model", "perf")


@pytest.fixture
def one(tmp_path: Path) -> Made:
    return make(tmp_path, 1)


@pytest.fixture
def ledger(one: Made) -> Ledger:
    return ledger_of([one.record])


def take(ledger: Ledger, *documents: bytes, raw: bytes = b"", trust: bool = False) -> tuple[Ingested, ...]:
    return ingest(
        {f"e{i}.json": d for i, d in enumerate(documents)}, {"raw.json.xz": raw} if raw else {}, ledger, trust
    )


def refused(ledger: Ledger, *documents: bytes, **options: Any) -> str:
    """Code and message in one line."""
    with pytest.raises(Refusal) as caught:
        take(ledger, *documents, **options)
    return f"{caught.value.code}: {caught.value}"


def alone(*signed: SignedEvidence) -> list[bytes]:
    return [canonical_json(to_json(s)) for s in signed]


def test_two_candidates_in_one_file_are_two_pieces_of_evidence(one: Made) -> None:
    other = dataclasses.replace(one.record, candidate="d" * 64)
    parts = [part(gate, one) for gate in GATES]
    theirs = [dataclasses.replace(p, candidate=other.candidate) for p in parts]
    got = take(ledger_of([one.record, other]), document(*parts, *theirs))
    assert [g.candidate for g in got] == [CANDIDATE, other.candidate]
    assert all(g.passed and len(g.results) == 3 for g in got)


def test_the_largest_document_is_read_and_a_larger_one_is_not() -> None:
    with pytest.raises(Refusal, match="is not JSON"):
        read("e.json", bytes(MAX_BYTES))
    with pytest.raises(Refusal, match=r"e\.json is 64 MiB: too large"):
        read("e.json", bytes(MAX_BYTES + 1))


@pytest.mark.parametrize(("outer", "inner"), [("another", RUN), (RUN, "another"), ("another", "another")])
def test_both_the_envelope_and_the_evidence_have_to_name_this_run(
    ledger: Ledger, one: Made, outer: str, inner: str
) -> None:
    """Even signed with this run's key."""
    whole = merge([part(gate, one) for gate in GATES], "")
    signed = dataclasses.replace(sign(dataclasses.replace(whole, run=inner), KEY), run=outer)
    said = refused(ledger, *alone(signed))
    assert said.startswith(f"ingest.foreign: the evidence is of run {inner}, not {RUN}; --trust")
    (got,) = take(ledger, *alone(signed), trust=True)
    assert got.trust == SELF_REPORTED


def test_own_evidence_without_a_signature_is_said_to_be_unsigned(ledger: Ledger, one: Made) -> None:
    bare = SignedEvidence(merge([part(gate, one) for gate in GATES], ""), RUN, "")
    assert refused(ledger, *alone(bare)) == (
        "ingest.foreign: the evidence is not signed; --trust takes it as self-reported"
    )


def test_one_result_under_older_rules_makes_evidence_stale(ledger: Ledger, one: Made) -> None:
    whole = merge([part(gate, one) for gate in GATES], "")
    old = dataclasses.replace(whole.results[1], contract=whole.gate_contract - 1)
    mixed = dataclasses.replace(whole, results=(whole.results[0], old, whole.results[2]))
    assert refused(ledger, *alone(sign(mixed, KEY))).startswith("ingest.stale: judged under gate contract")


def test_a_gate_that_no_kit_runs_is_refused(ledger: Ledger, one: Made) -> None:
    whole = merge([part(gate, one) for gate in GATES], "")
    more = dataclasses.replace(whole, results=(*whole.results, dataclasses.replace(whole.results[0], gate="compile")))
    assert refused(ledger, *alone(sign(more, KEY))) == "ingest.inconsistent: compile is no gate that a kit runs"


def with_dictionary(data: bytes, code: int) -> bytes:
    """An xz file whose header asks for a dictionary of (2 | code % 2) << code // 2 + 11 bytes."""
    packed = bytearray(lzma.compress(data))
    assert packed[14:16] == b"\x21\x01"  # LZMA2, one byte of properties
    packed[16] = code
    end = 12 + 4 * (packed[12] + 1)
    packed[end - 4 : end] = struct.pack("<I", zlib.crc32(packed[12 : end - 4]))
    return bytes(packed)


def test_raw_samples_may_ask_for_192_mib_of_memory_and_not_for_256(ledger: Ledger, one: Made) -> None:
    samples = {"cell": [1.0, 2.0]}
    perf = part("perf", one, raw=samples)
    data = document(part("numeric", one), part("model", one), perf)
    raw = canonical_json({f"{CANDIDATE} {perf.facts[UNIT]}": samples})
    (got,) = take(ledger, data, raw=with_dictionary(raw, 31))
    assert lzma.decompress(got.raw) == raw
    assert refused(ledger, data, raw=with_dictionary(raw, 32)).startswith("ingest.format: raw.json.xz holds no raw")


def test_a_single_part_is_made_whole_too(ledger: Ledger, one: Made) -> None:
    failed = part("numeric", one, status=Status.FAIL)
    (got,) = take(ledger, document(failed))
    assert got.evidence.evidence.facts == {"parts": [failed.facts[UNIT]]}


def test_whole_evidence_and_a_part_make_one(ledger: Ledger, one: Made) -> None:
    first = dataclasses.replace(merge([part("numeric", one), part("model", one)], ""), facts={})
    (got,) = take(ledger, document(first, part("perf", one)))
    assert [r.gate for r in got.results] == ["unit-numeric", "full-model-eval", "perf-sweep"]
    assert got.passed and len(got.evidence.evidence.points) == 1


def test_a_failure_among_passes_needs_no_further_parts(ledger: Ledger, one: Made) -> None:
    (got,) = take(ledger, document(part("numeric", one, status=Status.FAIL), part("model", one)))
    assert [r.status for r in got.results] == [Status.FAIL, Status.PASS]


def test_samples_that_no_part_names_are_left_out(ledger: Ledger, one: Made) -> None:
    samples = {"cell": [1.0]}
    numeric, model, perf = (part(gate, one, raw=samples if gate == "perf" else None) for gate in GATES)
    named = f"{CANDIDATE} {perf.facts[UNIT]}"
    raw = pack_raw({named: samples, f"{CANDIDATE} {numeric.facts[UNIT]}": {"more": [2.0]}})
    (got,) = take(ledger, document(numeric, model, perf), raw=raw)
    assert strict_json(lzma.decompress(got.raw)) == {named: samples}


def test_a_build_with_a_planted_defect_need_not_be_judged(one: Made, tmp_path: Path) -> None:
    ledger = ledger_of([one.record, make(tmp_path, 64, defect="tile_scale").record])
    (got,) = take(ledger, document(*(part(gate, one) for gate in GATES)))
    assert got.passed


def test_sizes_that_are_not_served_are_judged_and_not_timed(one: Made, tmp_path: Path) -> None:
    small = make(tmp_path, 1, dims="nano")
    ledger = ledger_of([one.record, small.record])
    judged = [part(gate, one, small) for gate in GATES[:2]]
    (got,) = take(ledger, document(*judged, part("perf", one)))
    assert got.trust == OWN_KEY and got.passed
    assert refused(ledger, document(part("numeric", one, small), part("model", one), part("perf", one))).startswith(
        f"ingest.incomplete: full-model-eval has not judged {small.record.problem.key}: run the rest"
    )


def test_the_first_missing_point_is_named_and_the_others_are_counted(one: Made, tmp_path: Path) -> None:
    others = [make(tmp_path, tokens) for tokens in (2, 4, 8)]
    first = others[0].record.problem.key
    for number, more in ((1, ""), (2, " and 1 more"), (3, " and 2 more")):
        ledger = ledger_of([one.record, *(m.record for m in others[:number])])
        said = refused(ledger, document(*(part(gate, one) for gate in GATES)))
        assert said.startswith(f"ingest.incomplete: unit-numeric has not judged {first}{more}: run the rest of the kit")


@pytest.mark.parametrize("other", [{"column": "cold"}, {"scenario": "long"}, {"column": "cold", "scenario": "long"}])
def test_only_the_headline_column_at_typical_inputs_counts_as_a_time(
    ledger: Ledger, one: Made, other: dict[str, str]
) -> None:
    perf = part("perf", one)
    points = tuple(dataclasses.replace(p, **other) for p in perf.points)
    beside: list[Evidence] = [part("numeric", one), part("model", one)]
    said = refused(ledger, document(*beside, dataclasses.replace(perf, points=points)))
    assert said == f"ingest.incomplete: {one.record.problem.key} has no graph time at 1 tokens"
