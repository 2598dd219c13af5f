"""Writes one file for a GPU host without a registry: a table, kgen's modules, objects, the runtime pieces of a kit.

    write(out, Carried("ptx_truth_host", ...), table, pieces) -> bytes written

There `python3 FILE ARGUMENTS` checks the machine, unpacks and calls `main` of the host module (carried_boot.py). For
sm_90a hosts with torch for CUDA 13, Python 3.12 and a C compiler; nothing else is needed there, no network either.
"""

import io
import json
import lzma
import platform
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kgen.gates
from kgen.gates.kit import BIG, EPOCH, FILTERS, TORCH
from kgen.gates.kit_wheels import Piece
from kgen.records import sha256_bytes

PYTHONS, FLAVOURS = ("3.12",), ("cu13",)
TABLE = "carried.json"
SMALL = 1024  # smaller files are not worth compressing by themselves


def packed(piece: Piece) -> bytes:
    """xz, of larger files with the filter for machine code."""
    if len(piece.data) < BIG:
        return lzma.compress(piece.data, preset=1)
    return lzma.compress(piece.data, format=lzma.FORMAT_XZ, filters=FILTERS)


@dataclass(frozen=True)
class Carried:
    """`host`: the module whose main(arguments, root, table, command) runs there.

    `most`: bytes that the file may have; `pack`: how pieces of SMALL bytes and more are compressed, in xz.
    """

    host: str
    arch: str
    most: int
    pythons: Sequence[str] = PYTHONS
    flavours: Sequence[str] = FLAVOURS
    pack: Callable[[Piece], bytes] = packed


def write(out: Path, carried: Carried, table: Mapping[str, Any], pieces: Sequence[Piece]) -> int:
    """Raises ValueError if the file would be too large."""
    whole = {
        **table,
        "host": carried.host,
        "machine": platform.machine(),
        "torch": TORCH,
        "archs": [carried.arch],
        "pythons": list(carried.pythons),
        "flavours": list(carried.flavours),
        "files": [_line(piece) for piece in pieces],
    }
    data = _archive(whole, pieces, carried.pack)
    if len(data) > carried.most:
        raise ValueError(f"the file would have {len(data) >> 20} MiB, allowed are {carried.most >> 20}")
    out.write_bytes(data)
    return len(data)


def _line(piece: Piece) -> dict[str, Any]:
    sha256 = sha256_bytes(piece.data)
    found = {"path": piece.path, "sha256": sha256, "blob": sha256, "xz": len(piece.data) >= SMALL}
    return {**found, "python": piece.python, "flavour": piece.flavour}


def _archive(table: Mapping[str, Any], pieces: Sequence[Piece], pack: Callable[[Piece], bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in (
            ("__main__.py", Path(__file__).with_name("carried_boot.py").read_bytes()),
            ("kit_boot.py", Path(kgen.gates.__file__).with_name("kit_boot.py").read_bytes()),
            (TABLE, json.dumps(table, sort_keys=True).encode()),
        ):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), data, zipfile.ZIP_DEFLATED)
        for sha256, piece in sorted({sha256_bytes(p.data): p for p in pieces}.items()):
            data = pack(piece) if len(piece.data) >= SMALL else piece.data
            archive.writestr(zipfile.ZipInfo(f"blobs/{sha256}", EPOCH), data, zipfile.ZIP_STORED)
    return buffer.getvalue()
