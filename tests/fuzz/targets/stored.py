"""JSON that comes back: records, manifests, evidence of kits, raw samples, results of builds."""

import functools
import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.checkout import ROOT
from support.kits import CANDIDATE, Made, document, ledger_of, make, part

from fuzz.guard import own_files, scratch
from fuzz.target import Target, one_line
from kgen.gates.builder.outcome import BuildFailure, Built, collect
from kgen.gates.builder.protocol import CUBIN, OBJECT, PTX, RESULT, JobEnd
from kgen.gates.ingest import Ledger, Refusal, ingest
from kgen.gates.kit_results import EvidenceSet, pack_raw
from kgen.gates.sandbox import Limits
from kgen.proposers.transcript import AnswerRecord
from kgen.records import (
    BuildRecord,
    Evidence,
    GateResult,
    Manifest,
    Origin,
    SignedEvidence,
    Status,
    Verdict,
    canonical_json,
    to_json,
)
from kgen.store import IntegrityError, KernelSet
from kgen.store.documents import json_bytes, parse_record
from kgen.store.kernelset import decompress, manifest_bytes
from kgen.store.runs import RunInfo

SET = ROOT / "generated_kernels"
RECORDS = (AnswerRecord, BuildRecord, EvidenceSet, GateResult, Manifest, Origin, RunInfo, SignedEvidence, Verdict)
JSON = (
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b'"',
    b"\\ud800",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"null",
    b"\\u0000",
    b"[" * 900,
)
LIMIT = 1 << 20
RAW = {f"{CANDIDATE} unit-numeric 1+8": {"us": [1.5, 2.5]}}


@functools.cache
def _made() -> tuple[Made, Made]:
    with own_files():
        return make(scratch(), 1), make(scratch(), 8)


@functools.cache
def _ledger() -> Ledger:
    return ledger_of([m.record for m in _made()])


def _parts() -> list[Evidence]:
    (raw,) = RAW.values()
    numeric = part("numeric", *_made(), raw=raw, facts={"unit": "unit-numeric 1+8", "noise": [1, 0.5, {"a": None}]})
    return [numeric, part("model", *_made()), part("perf", *_made())]


@functools.cache
def _genuine() -> Mapping[str, Any]:
    (taken,) = ingest({"e": document(*_parts())}, {"r": pack_raw(RAW)}, _ledger())
    return {"evidence": to_json(taken.evidence), "raw": taken.raw}


def _small_records() -> list[bytes]:
    builds = json.loads(next(SET.glob("*/*.builds.json")).read_bytes())
    manifest = json.loads((SET / "manifest.json").read_bytes())
    manifest["promotions"] = manifest["promotions"][:1]
    run = RunInfo("20260101T000000Z-x-abcdef", "moe_shared", "kgen propose", "2026-01-01T00:00:00Z", "1", {"a": [1]})
    signed = json.loads(document(*_parts()))
    values = [builds[0], manifest, signed, signed["parts"][0], signed["parts"][0]["evidence"]["results"][0]]
    verdict = {"schema": Verdict.SCHEMA, "candidate": CANDIDATE, "results": [values[-1]]}
    return [canonical_json(value) for value in (*values, verdict, to_json(run), to_json(Origin("search", {"seed": 1})))]


def _record(data: bytes) -> None:
    """The schema's name says which record is tried; without a known one, each of them."""
    named = [cls for cls in RECORDS if cls.SCHEMA.encode() in data[:4000]]
    for cls in named or RECORDS:
        try:
            record = parse_record(cls, data, "file.json")
        except IntegrityError as error:
            one_line(str(error))
            continue
        again = json_bytes(record)
        assert json_bytes(parse_record(cls, again, "again")) == again, "a record does not come back as it was written"


def _manifest(data: bytes) -> None:
    path = scratch() / "manifest.json"
    with own_files():
        path.write_bytes(data)
    try:
        found = KernelSet(path.parent).manifest()
    except IntegrityError as error:
        one_line(str(error))
        return
    assert manifest_bytes(found) == (SET / "manifest.json").read_bytes(), "a changed manifest was taken"


def _refused(error: Refusal) -> None:
    one_line(str(error))
    assert error.code.startswith("ingest.")


def _evidence(data: bytes) -> None:
    raws = {"r": pack_raw(RAW)}
    for trust in (False, True):
        try:
            taken = ingest({"e": data}, raws, _ledger(), trust)
        except Refusal as error:
            _refused(error)
            continue
        for one in taken:
            one_line(json.dumps(to_json(one.evidence)), 1 << 20)
            if one.trust == "own-key":
                assert not one.passed or to_json(one.evidence) == _genuine()["evidence"], "changed evidence was taken"
            assert isinstance(one.raw, bytes)


def _raw(data: bytes) -> None:
    """The samples are signed by their hash: anything else is refused. JSON goes in compressed, bytes as they are."""
    raw = data if data[:1] in (b"\xfd", b"]", b"\x00") else lzma.compress(data, preset=0)
    try:
        (taken,) = ingest({"e": document(*_parts())}, {"r": raw}, _ledger())
        assert taken.raw == _genuine()["raw"], "other raw samples were taken"
    except Refusal as error:
        _refused(error)
    claimed = document(part("numeric", *_made(), status=Status.FAIL, facts={}, raw_sha256="ab" * 32))
    try:
        assert not ingest({"e": claimed}, {"r": raw}, _ledger(), trust=True), "samples of another hash were taken"
    except Refusal as error:
        _refused(error)
    try:
        assert len(decompress(raw, LIMIT, Path("x.xz"))) <= LIMIT
    except IntegrityError as error:
        one_line(str(error))


def _raw_seeds() -> list[bytes]:
    names = {"ab" * 32: "x", "ab" * 32 + "0": 1}
    bomb = lzma.compress(bytes(4 << 20), preset=0)
    return [
        canonical_json(RAW),
        pack_raw(RAW),
        canonical_json(names),
        bomb,
        lzma.compress(b"[" * 5000, format=lzma.FORMAT_ALONE),
    ]


def _built(data: bytes) -> None:
    """First line: exit status and what was printed; the rest: the result that the job left."""
    first, _, result = data.partition(b"\n")
    status, _, output = first.partition(b" ")
    folder = scratch() / "job"
    with own_files():
        folder.mkdir(exist_ok=True)
        (folder / RESULT).write_bytes(result)
        for name in (OBJECT, CUBIN, PTX):
            (folder / name).write_bytes(result[:64])
    code = int(status) if status.removeprefix(b"-").isdigit() and len(status) < 5 else 0
    said = output.decode("utf-8", "replace").replace("\\n", "\n")
    end = JobEnd(max(-64, min(255, code)), code == 999, code == 998, 1.0, True, said)
    got = collect(folder, end, Limits())
    if isinstance(got, BuildFailure):
        one_line(got.code, 60)
        got.message.encode("utf-8")
        assert len(got.message) < 20_000, f"a message of {len(got.message)} characters"
    else:
        assert isinstance(got, Built) and len(got.design) < 300
        canonical_json([got.design, to_json(got.workspaces), got.ptx])
        assert all(dtype and len(dtype) < 60 and all(n > 0 for n in shape) for dtype, shape in got.workspaces)


def _results() -> list[bytes]:
    good = {"ok": True, "design": "split-k", "workspaces": [["f32", [2, 64]], ["u8", [128]]]}
    bad = {"ok": False, "code": "compile.error", "message": "line 3: no such name"}
    return [b"0 \n" + canonical_json(v) for v in (good, bad)] + [
        b"-9 out of memory\n",
        b"-40 \n{}",
        b"1 Traceback\\nx\n",
    ]


def targets() -> list[Target]:
    promise = "a record that is written and read again alike, or an `IntegrityError` of one line"
    return [
        Target(
            "records",
            "records.codec.from_json, store.documents",
            "one of every stored record",
            promise,
            "json",
            _small_records,
            _record,
            JSON,
        ),
        Target(
            "manifest",
            "store.kernelset.KernelSet.manifest",
            "the committed manifest",
            "exactly the committed manifest, or an `IntegrityError` of one line",
            "json",
            lambda: [(SET / "manifest.json").read_bytes()],
            _manifest,
            JSON,
        ),
        Target(
            "evidence",
            "gates.ingest.ingest, kit_results, store.signing",
            "signed evidence of a kit",
            "what passes under the run's key is what was signed; else a `Refusal` of one line",
            "json",
            lambda: [document(*_parts()), document(_parts()[0])],
            _evidence,
            JSON,
        ),
        Target(
            "raw-samples",
            "gates.ingest (xz), store.kernelset.decompress",
            "raw samples, a decompression bomb",
            "exactly the signed samples, or a `Refusal` of one line; no more than the limit is unpacked",
            "json",
            _raw_seeds,
            _raw,
            (*JSON, b"\xfd7zXZ\0", b"YZ"),
        ),
        Target(
            "build-results",
            "gates.builder.outcome.collect",
            "results of good and failed builds",
            "`Built` whose every part can be stored, or a `BuildFailure` with a code of one line",
            "text",
            _results,
            _built,
            JSON,
        ),
    ]
