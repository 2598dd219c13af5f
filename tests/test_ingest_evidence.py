"""`kgen ingest`: whole, own, unaltered evidence is taken; everything else is refused with one line and a code."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kits import CANDIDATE, KEY, MACHINE, RUN, SERVED, Made, document, ledger_of, make, part

from kgen.gates.ingest import Ingested, Ledger, Refusal, ingest
from kgen.gates.kit_results import MergeError, merge, pack_raw
from kgen.records import Evidence, SignedEvidence, Status, canonical_json, sha256_bytes, to_json
from kgen.records.envelope import envelope
from kgen.records.manifest import OWN_KEY, SELF_REPORTED
from kgen.store.signing import check


@pytest.fixture
def made(tmp_path: Path) -> tuple[Made, Made]:
    return make(tmp_path, 1), make(tmp_path, 8)


@pytest.fixture
def ledger(made: tuple[Made, Made], tmp_path: Path) -> Ledger:
    others = [make(tmp_path, 1, arch="sm_103a"), make(tmp_path, 8, defect="tile_scale")]
    return ledger_of([m.record for m in (*made, *others)])


def whole(made: tuple[Made, Made]) -> list[Evidence]:
    return [part(gate, *made) for gate in ("numeric", "model", "perf")]


def take(ledger: Ledger, *documents: bytes, raw: bytes = b"", trust: bool = False) -> tuple[Ingested, ...]:
    raws = {"raw.json.xz": raw} if raw else {}
    return ingest({f"e{i}.json": d for i, d in enumerate(documents)}, raws, ledger, trust)


def refused(ledger: Ledger, *documents: bytes, **options: Any) -> str:
    with pytest.raises(Refusal) as caught:
        take(ledger, *documents, **options)
    assert "\n" not in str(caught.value)
    return caught.value.code


def test_whole_evidence_is_taken_and_signed_as_one(ledger: Ledger, made: tuple[Made, Made]) -> None:
    (got,) = take(ledger, document(*whole(made)))
    assert got.passed and got.trust == OWN_KEY and got.candidate == CANDIDATE
    assert check(got.evidence, KEY)
    assert [r.gate for r in got.results] == ["unit-numeric", "full-model-eval", "perf-sweep"]
    assert len(got.evidence.evidence.points) == 2


def test_parts_from_several_files_make_one(ledger: Ledger, made: tuple[Made, Made]) -> None:
    one, eight = made
    files = [document(part("numeric", one), part("perf", eight)), document(part("numeric", eight))]
    assert refused(ledger, *files) == "ingest.incomplete"
    (got,) = take(ledger, *files, document(part("model", one, eight), part("perf", one)))
    assert got.passed and len(got.evidence.evidence.objects) == 2


def test_a_sweep_needs_one_win_and_not_one_in_every_part(ledger: Ledger, made: tuple[Made, Made]) -> None:
    one, eight = made
    lost = part("perf", eight, status=Status.FAIL, code="perf.no_win")
    (got,) = take(ledger, document(*whole(made)[:2], part("perf", one), lost))
    assert got.passed
    none = part("perf", one, status=Status.FAIL, code="perf.no_win")
    (got,) = take(ledger, document(*whole(made)[:2], none, lost))
    assert not got.passed and got.results[2].code == "perf.no_win"


def test_a_failure_needs_no_further_parts(ledger: Ledger, made: tuple[Made, Made]) -> None:
    (got,) = take(ledger, document(part("numeric", made[0], status=Status.FAIL)))
    assert not got.passed


def test_of_two_runs_of_one_part_the_failed_one_counts(ledger: Ledger, made: tuple[Made, Made]) -> None:
    failed = part("numeric", *made, status=Status.FAIL)
    for order in ([failed, *whole(made)], [*whole(made), failed]):
        (got,) = take(ledger, document(*order))
        assert not got.passed


def test_an_error_is_made_up_by_a_later_run(ledger: Ledger, made: tuple[Made, Made]) -> None:
    error = part("numeric", *made, status=Status.ERROR)
    (got,) = take(ledger, document(error, *whole(made)))
    assert got.passed


def edited(change: Callable[[Any], None]) -> Callable[[bytes], bytes]:
    def edit(data: bytes) -> bytes:
        value = json.loads(data)
        change(value["parts"][0])
        return canonical_json(value)

    return edit


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p["evidence"]["results"][0].update(status="skip"),
        lambda p: p["evidence"]["environment"].update(gpu="another"),
        lambda p: p["evidence"].update(finished="2027-01-01T00:00:00Z"),
        lambda p: p.update(hmac="0" * 64),
        lambda p: p["evidence"]["facts"].update(extra=1),
    ],
)
def test_edited_evidence_is_refused(ledger: Ledger, made: tuple[Made, Made], change: Callable[[Any], None]) -> None:
    data = edited(change)(document(*whole(made)))
    assert refused(ledger, data) == "ingest.altered"
    assert refused(ledger, data, trust=True) == "ingest.altered"


def test_evidence_signed_with_another_key_is_refused(ledger: Ledger, made: tuple[Made, Made]) -> None:
    assert refused(ledger, document(*whole(made), key=b"x" * 32)) == "ingest.altered"


def test_evidence_of_another_run_is_foreign_and_taken_only_with_trust(ledger: Ledger, made: tuple[Made, Made]) -> None:
    theirs = [dataclasses.replace(p, run="another-run") for p in whole(made)]
    data = document(*theirs, key=b"x" * 32)
    assert refused(ledger, data) == "ingest.foreign"
    (got,) = take(ledger, data, trust=True)
    assert got.trust == SELF_REPORTED and got.evidence.hmac == "" and got.passed


def test_unsigned_evidence_is_taken_only_with_trust(ledger: Ledger, made: tuple[Made, Made]) -> None:
    bare = canonical_json(to_json(SignedEvidence(merge(whole(made), ""), RUN, "")))
    assert refused(ledger, bare) == "ingest.foreign"
    (got,) = take(ledger, bare, trust=True)
    assert got.trust == SELF_REPORTED


def test_one_untrusted_part_makes_the_whole_self_reported(ledger: Ledger, made: tuple[Made, Made]) -> None:
    numeric, model, perf = whole(made)
    unsigned = canonical_json(to_json(SignedEvidence(perf, RUN, "")))
    (got,) = take(ledger, document(numeric, model), unsigned, trust=True)
    assert got.trust == SELF_REPORTED and not check(got.evidence, KEY)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"op_contract": "0" * 64}, "ingest.stale"),
        ({"gate_contract": 99}, "ingest.stale"),
        ({"candidate": "d" * 64}, "ingest.other_candidate"),
        ({"op": "attn_res"}, "ingest.other_op"),
        ({"arch": "sm_103a"}, "ingest.inconsistent"),
        ({"objects": {f"moe_shared/{SERVED}/t1/sm_90a": "0" * 64}}, "ingest.objects"),
        ({"objects": {f"moe_shared/{SERVED}/t2/sm_90a": "0" * 64}}, "ingest.objects"),
    ],
)
def test_evidence_about_something_else_is_refused(
    ledger: Ledger, made: tuple[Made, Made], changed: dict[str, Any], code: str
) -> None:
    assert refused(ledger, document(dataclasses.replace(part("numeric", *made), **changed))) == code


def test_a_mutants_object_is_not_the_candidates(ledger: Ledger, made: tuple[Made, Made], tmp_path: Path) -> None:
    broken = make(tmp_path, 8, defect="tile_scale")
    assert refused(ledger, document(part("numeric", broken))) == "ingest.objects"


def test_points_that_do_not_fit_the_evidence_are_refused(ledger: Ledger, made: tuple[Made, Made]) -> None:
    one, eight = made
    perf = part("perf", one, eight)
    flattered = dataclasses.replace(perf.points[0], ratio_high=1.2)
    for points in ((flattered,), part("perf", eight).points):
        objects = {one.record.problem.key: one.record.object_sha256}
        assert (
            refused(ledger, document(dataclasses.replace(perf, objects=objects, points=points)))
            == "ingest.inconsistent"
        )


@pytest.mark.parametrize("gate", ["numeric", "model", "perf"])
def test_a_gate_that_did_not_judge_every_point_is_incomplete(
    ledger: Ledger, made: tuple[Made, Made], gate: str
) -> None:
    parts = [part(g, *(made if g != gate else made[:1])) for g in ("numeric", "model", "perf")]
    assert refused(ledger, document(*parts)) == "ingest.incomplete"


def test_an_object_without_a_headline_time_is_incomplete(ledger: Ledger, made: tuple[Made, Made]) -> None:
    untimed = dataclasses.replace(part("perf", *made), points=part("perf", made[0]).points)
    assert refused(ledger, document(*whole(made)[:2], untimed)) == "ingest.incomplete"


def test_a_bin_without_the_padded_counts_that_it_serves_is_incomplete(tmp_path: Path) -> None:
    wide = make(tmp_path, 16)
    parts = [part(gate, wide) for gate in ("numeric", "model", "perf")]
    full = parts[2].points[0]
    assert refused(ledger_of([wide.record]), document(*parts)) == "ingest.incomplete"
    slower = dataclasses.replace(full, tokens=12, ratio_high=1.2, label="left")
    (got,) = take(ledger_of([wide.record]), document(*parts[:2], dataclasses.replace(parts[2], points=(full, slower))))
    assert envelope(got.evidence.evidence.points) == {}


def test_evidence_for_an_arch_that_the_run_did_not_build_for_is_refused(tmp_path: Path) -> None:
    elsewhere = make(tmp_path, 1, arch="sm_103a")
    nothing = [part(gate) for gate in ("numeric", "model", "perf")]
    assert refused(ledger_of([elsewhere.record]), document(*nothing)) == "ingest.incomplete"


def test_parts_from_different_machines_are_not_mixed(ledger: Ledger, made: tuple[Made, Made]) -> None:
    numeric, model, perf = whole(made)
    elsewhere = dataclasses.replace(perf, environment=dataclasses.replace(MACHINE, gpu="another GPU"))
    assert refused(ledger, document(numeric, model, elsewhere)) == "ingest.inconsistent"
    with pytest.raises(MergeError, match="different machines: gpu"):
        merge([numeric, elsewhere], "")


def test_raw_samples_come_along_and_must_be_the_ones_that_were_signed(ledger: Ledger, made: tuple[Made, Made]) -> None:
    samples = {"moe_shared/x/graph": {"samples": {"candidate": [1.5, 2.0]}}}
    perf = part("perf", *made, raw=samples)
    data, name = document(*whole(made)[:2], perf), f"{CANDIDATE} {perf.facts['unit']}"
    assert refused(ledger, data) == "ingest.raw"
    assert refused(ledger, data, raw=pack_raw({name: {**samples, "more": 1}})) == "ingest.raw"
    assert refused(ledger, data, raw=b"not xz") == "ingest.format"
    (got,) = take(ledger, data, raw=pack_raw({name: samples}))
    assert sha256_bytes(got.raw) == got.evidence.evidence.raw_sha256
    again = canonical_json(to_json(got.evidence))
    assert refused(ledger, again) == "ingest.raw"
    (second,) = take(ledger, again, raw=got.raw)
    assert second.evidence == got.evidence and second.raw == got.raw


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b"\xff", b'{"schema": "kgen.evidence-set/9"}', b"[" * 99999]
)
def test_what_is_no_evidence_is_refused_with_one_line(ledger: Ledger, data: bytes) -> None:
    assert refused(ledger, data) == "ingest.format"


def test_an_empty_file_of_evidence_is_refused(ledger: Ledger) -> None:
    assert refused(ledger, document()) == "ingest.empty"


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_no_single_byte_can_be_changed(tmp_path_factory: pytest.TempPathFactory, position: int, byte: int) -> None:
    one = make(tmp_path_factory.mktemp("m"), 1)
    ledger = ledger_of([one.record])
    data = bytearray(document(*(part(gate, one) for gate in ("numeric", "model", "perf"))))
    start = data.index(b'"parts"')
    position = start + position % (len(data) - start)
    same = data[position] == byte
    data[position] = byte
    if not same:
        with pytest.raises(Refusal):
            take(ledger, bytes(data))
