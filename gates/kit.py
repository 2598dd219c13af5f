"""`kgen kit`: one self-contained file that runs the GPU gates of runs on any GPU host with Python, torch and cc.

    build(runs, out, cache) -> KitFile      raises KitError (one line)

Inside: the modules of kgen that the gates need, the artefacts of the candidates and of their mutants, the CuTe DSL
runtime library for each CUDA major, tvm-ffi for each Python, llguidance, the small model's weights, and each run's key.
Whoever holds the kit can sign evidence of its runs: hand it to nobody whose evidence you would not take as your own.
Not covered: the compiler (objects are carried), other platforms than this one, torch.
"""

import io
import lzma
import platform
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgen.contract import Op
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.kit_modules import module_files
from kgen.gates.kit_units import TRACE, CarriedCandidate
from kgen.gates.kit_wheels import KitError, Piece, llguidance_pieces, runtime_pieces, tvm_ffi_pieces
from kgen.gates.routing import Recorded, facts, ids_in, unfit
from kgen.gates.runner.job import Built
from kgen.records import BuildRecord, canonical_json, sha256_bytes, to_json
from kgen.store.durable import DURABLE

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
FLAVOURS = ("cu12", "cu13")
TORCH = "2.11"  # the oldest that the gates run with
MAX_BYTES = 60 << 20
BIG = 64 << 10  # files from this size on are stored with xz
# preset 0 and a small dictionary: two fifths of the time of preset 1 with 64 MiB, for 8 % more bytes of a library
FILTERS = ({"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 20})
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same contents make the same file


@dataclass(frozen=True)
class KitCandidate:
    """One candidate's artefacts, and its mutants for the model gate."""

    id: str
    artefacts: tuple[Built, ...]
    mutants: tuple[Built, ...] = ()
    champions: tuple[Built, ...] = ()


@dataclass(frozen=True)
class Contents:
    """What a kit carries of one run. `key` is the run's one-time key."""

    op: Op
    run: str
    key: bytes
    candidates: tuple[KitCandidate, ...]


@dataclass(frozen=True)
class KitFile:
    path: Path
    bytes: int
    sha256: str  # of the table of contents: evidence names it
    archs: tuple[str, ...]
    problems: int


def build(
    runs: Sequence[Contents],
    out: Path,
    cache: Path,
    *,
    trace: Recorded | None = None,
    pythons: Sequence[str] = PYTHONS,
    flavours: Sequence[str] = FLAVOURS,
) -> KitFile:
    """Write the kit to `out` (mode 0600); `cache` keeps wheels and packed libraries; `trace`: of routing, for the runs
    of ops that are told which experts tokens go to. Raises KitError, StoreError."""
    records = [record for contents in runs for record in _sound(contents)]
    if len({contents.run for contents in runs}) < len(runs):
        raise KitError("the same run is named twice")
    pieces = [Piece(f"lib/{path}", data) for path, data in module_files().items()]
    pieces += _objects(c for contents in runs for c in contents.candidates)
    pieces += [_traced(trace, runs)] if trace else []
    pieces += tvm_ffi_pieces(pythons, cache) + llguidance_pieces(cache) + runtime_pieces(flavours, cache)
    blobs: dict[str, tuple[bytes, bool]] = {}
    files = [stored(piece, blobs, cache / "kit") for piece in pieces]
    archs = tuple(dict.fromkeys(r.problem.arch for r in records))
    info = {**_table(runs, files), "archs": archs, "pythons": list(pythons), "flavours": list(flavours)}
    info |= {"routing": facts(trace)} if trace else {}
    data = canonical_json(info)
    size = write_archive(out, data, blobs)
    return KitFile(out, size, sha256_bytes(data), archs, len(records))


def _traced(trace: Recorded, runs: Sequence[Contents]) -> Piece:
    """The trace as a file of the kit. Raises KitError where no run has a use for it, or one's points do not fit."""
    told = [contents for contents in runs if ids_in(contents.op)]
    if not told:
        raise KitError(unfit(runs[0].op, (), trace))
    for contents in told:
        problems = [a.record.problem for c in contents.candidates for a in c.artefacts]
        if why := unfit(contents.op, [p for p in problems if p.dims in contents.op.served], trace):
            raise KitError(why)
    data = trace.path.read_bytes()
    if sha256_bytes(data) != trace.sha256:
        raise KitError(f"{trace.path} is being written: stop the recording, or take a copy of the file")
    return Piece(TRACE, data)


def _sound(contents: Contents) -> list[BuildRecord]:
    """What a run's candidates were built for. Raises KitError."""
    records = [a.record for c in contents.candidates for a in c.artefacts]
    if not records:
        text = f"no candidate of run {contents.run} was built; kgen propose --op {contents.op.name} first"
        raise KitError(f"there is nothing to carry: {text}")
    if strange := [r for r in records if r.problem.op != contents.op.name or r.defect]:
        raise KitError(f"{strange[0].problem.key} is no sound build of {contents.op.name}")
    return records


def _table(runs: Sequence[Contents], files: list[dict[str, Any]]) -> dict[str, Any]:
    from kgen.gates.kit_args import USAGE

    return {
        "schema": "kgen.kit/2",
        "gate_contract": GATE_CONTRACT,
        "torch": TORCH,
        "machine": platform.machine(),
        "help": USAGE,
        "runs": [_line(contents) for contents in runs],
        "files": files,
    }


def _line(contents: Contents) -> dict[str, Any]:
    return {
        "run": contents.run,
        "key": contents.key.hex(),
        "op": contents.op.name,
        "op_contract": contents.op.contract_sha256(),
        "candidates": [
            to_json(CarriedCandidate(c.id, *(_records(b) for b in (c.artefacts, c.mutants, c.champions))))
            for c in contents.candidates
        ],
    }


def _records(builds: Iterable[Built]) -> tuple[Any, ...]:
    return tuple(b.record for b in builds)


def _objects(candidates: Iterable[KitCandidate]) -> list[Piece]:
    """Each object once, checked against its record."""
    pieces: dict[str, Piece] = {}
    for built in (b for c in candidates for b in (*c.artefacts, *c.mutants, *c.champions)):
        sha256 = built.record.object_sha256
        if sha256 not in pieces:
            data = built.object.read_bytes()
            if sha256_bytes(data) != sha256:
                raise KitError(f"{built.object} is damaged: build it again with kgen propose")
            pieces[sha256] = Piece(f"objects/{sha256}.o", data)
    return list(pieces.values())


def stored(piece: Piece, blobs: dict[str, tuple[bytes, bool]], cache: Path) -> dict[str, Any]:
    """The file's line in the table; its bytes go into `blobs` once."""
    sha256, big = sha256_bytes(piece.data), len(piece.data) >= BIG
    if sha256 not in blobs:
        blobs[sha256] = (_compressed(piece.data, sha256, cache) if big else piece.data, big)
    line = {"path": piece.path, "sha256": sha256, "blob": sha256, "xz": big}
    return {**line, "python": piece.python, "flavour": piece.flavour}


def _compressed(data: bytes, sha256: str, cache: Path) -> bytes:
    """xz of a large file; many seconds for a runtime library, so it is kept, by the filters too."""
    path = cache / f"{sha256}.{sha256_bytes(canonical_json(FILTERS))[:8]}.xz"
    if path.is_file():
        kept = path.read_bytes()
        try:
            if sha256_bytes(lzma.decompress(kept)) == sha256:
                return kept
        except lzma.LZMAError:
            pass  # a damaged entry is made again
    made = lzma.compress(data, format=lzma.FORMAT_XZ, filters=FILTERS)
    DURABLE.write(path, made)
    return made


def write_archive(out: Path, table: bytes, blobs: dict[str, tuple[bytes, bool]]) -> int:
    """The file itself: boot, table of contents, blobs; returns its bytes. Raises KitError, StoreError."""
    buffer = io.BytesIO(b"#!/usr/bin/env python3\n")
    buffer.seek(0, io.SEEK_END)
    with zipfile.ZipFile(buffer, "a") as archive:
        _add(archive, "__main__.py", (Path(__file__).parent / "kit_boot.py").read_bytes(), stored=False)
        _add(archive, "kit.json", table, stored=False)
        for sha256, (data, big) in sorted(blobs.items()):
            _add(archive, f"blobs/{sha256}", data, stored=big)
    data = buffer.getvalue()
    if len(data) > MAX_BYTES:
        raise KitError(f"the kit would be {len(data) >> 20} MiB, allowed {MAX_BYTES >> 20}: choose fewer candidates")
    DURABLE.write(out, data, mode=0o600)  # it carries the run's key
    return len(data)


def _add(archive: zipfile.ZipFile, name: str, data: bytes, stored: bool) -> None:
    info = zipfile.ZipInfo(name, EPOCH)
    info.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    archive.writestr(info, data)
