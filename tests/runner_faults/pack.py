"""Writes the one file that a GPU host runs: objects, kgen's judge and runner, the runtime pieces of a kit, host.py.

    cd tests && python -m runner_faults.pack OUT.pyz            # then, there: python3 OUT.pyz RESULT.json

For sm_90a hosts with torch for CUDA 13, Python 3.12 and a C compiler; nothing else is needed there, no network either.
"""

import io
import json
import lzma
import platform
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner_faults import host
from runner_faults.build import ARCH, build, facts
from runner_faults.kernels import RIGHT

import kgen.gates
from kgen.gates.artefacts import Artefact
from kgen.gates.kit import BIG, EPOCH, FILTERS, TORCH
from kgen.gates.kit_modules import module_files
from kgen.gates.kit_wheels import Piece, runtime_pieces, tvm_ffi_pieces
from kgen.records import sha256_bytes, to_json
from kgen.store.paths import cache_path

ENTRIES = ("kgen.gates.numeric", "kgen.gates.kit_units", "kgen.gates.runner.__main__")
PYTHONS, FLAVOURS = ("3.12",), ("cu13",)
MAX_BYTES = 30 << 20


def pack(
    out: Path,
    made: Mapping[str, Artefact],
    cache: Path,
    pythons: Sequence[str] = PYTHONS,
    flavours: Sequence[str] = FLAVOURS,
) -> int:
    """Writes `out`, returns its size. Raises KitError where a runtime piece cannot be had, ValueError if too large."""
    pieces = [Piece(f"lib/{path}", data) for path, data in module_files(ENTRIES).items()]
    pieces.append(Piece("lib/runner_faults_host.py", Path(host.__file__).read_bytes()))
    pieces += [Piece(f"objects/{a.record.object_sha256}.o", a.object.read_bytes()) for a in made.values()]
    pieces += [*tvm_ffi_pieces(pythons, cache), *runtime_pieces(flavours, cache)]
    table = {
        "machine": platform.machine(),
        "torch": TORCH,
        "archs": [ARCH],
        "pythons": list(pythons),
        "flavours": list(flavours),
        "right": RIGHT,
        "kernels": [{"key": key, **facts(key, a), "build": to_json(a.record)} for key, a in made.items()],
        "files": [_file(piece) for piece in pieces],
    }
    data = _archive(table, pieces)
    if len(data) > MAX_BYTES:
        raise ValueError(f"the file would have {len(data) >> 20} MiB, allowed are {MAX_BYTES >> 20}")
    out.write_bytes(data)
    return len(data)


def _file(piece: Piece) -> dict[str, Any]:
    sha256 = sha256_bytes(piece.data)
    line = {"path": piece.path, "sha256": sha256, "blob": sha256, "xz": len(piece.data) >= BIG}
    return {**line, "python": piece.python, "flavour": piece.flavour}


def _archive(table: Mapping[str, Any], pieces: Sequence[Piece]) -> bytes:
    buffer = io.BytesIO()
    boot = Path(kgen.gates.__file__).with_name("kit_boot.py").read_bytes()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in (
            ("__main__.py", Path(__file__).with_name("boot.py").read_bytes()),
            ("kit_boot.py", boot),
            ("faults.json", json.dumps(table, sort_keys=True).encode()),
        ):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), data, zipfile.ZIP_DEFLATED)
        for sha256, piece in sorted({sha256_bytes(p.data): p for p in pieces}.items()):
            big = len(piece.data) >= BIG
            packed = lzma.compress(piece.data, format=lzma.FORMAT_XZ, filters=FILTERS) if big else piece.data
            how = zipfile.ZIP_STORED if big else zipfile.ZIP_DEFLATED
            archive.writestr(zipfile.ZipInfo(f"blobs/{sha256}", EPOCH), packed, how)
    return buffer.getvalue()


def main(arguments: Sequence[str]) -> str:
    if len(arguments) != 1:
        return "usage: python -m runner_faults.pack OUT.pyz"
    made = build(cache_path())
    size = pack(Path(arguments[0]), made, cache_path())
    sys.stdout.write(f"{arguments[0]}: {len(made)} kernels, {size / (1 << 20):.1f} MiB\n")
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or None)
