"""Writes the one file that a GPU host runs: objects, kgen's judge and runner, the runtime pieces of a kit, host.py.

cd tests && python -m runner_faults.pack OUT.pyz            # then, there: python3 OUT.pyz RESULT.json
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner_faults import host
from runner_faults.build import ARCH, build, facts
from runner_faults.kernels import RIGHT
from support.carried import FLAVOURS, PYTHONS, Carried, write

from kgen.gates.artefacts import Artefact
from kgen.gates.kit_modules import module_files
from kgen.gates.kit_wheels import Piece, runtime_pieces, tvm_ffi_pieces
from kgen.records import to_json
from kgen.store.paths import cache_path

ENTRIES = ("kgen.gates.numeric", "kgen.gates.kit_units", "kgen.gates.runner.__main__")
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
    kernels = [{"key": key, **facts(key, a), "build": to_json(a.record)} for key, a in made.items()]
    carried = Carried("runner_faults_host", ARCH, MAX_BYTES, pythons, flavours)
    return write(out, carried, {"right": RIGHT, "kernels": kernels}, pieces)


def carry(out: Path, pythons: Sequence[str] = PYTHONS, flavours: Sequence[str] = FLAVOURS) -> str:
    """Builds and packs every kernel; a line about the file."""
    made = build(cache_path())
    size = pack(out, made, cache_path(), pythons, flavours)
    return f"{out}: {len(made)} kernels, {size / (1 << 20):.1f} MiB"


def main(arguments: Sequence[str]) -> str:
    if len(arguments) != 1:
        return "usage: python -m runner_faults.pack OUT.pyz"
    sys.stdout.write(carry(Path(arguments[0])) + "\n")
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or None)
