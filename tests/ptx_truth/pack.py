"""Writes the one file that a GPU host runs: objects, inputs, the runtime pieces of a kit, host.py.

cd tests && python -m ptx_truth.pack OUT.pyz            # then, there: python3 OUT.pyz RESULT.json.xz
"""

import lzma
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptx_truth import host
from ptx_truth.build import Made, build
from ptx_truth.cases import MAKERS, make
from ptx_truth.entries import ARCH, Case
from support.carried import FLAVOURS, PYTHONS, Carried, write

from kgen.gates.builder.protocol import FUNCTION
from kgen.gates.kit import BIG, FILTERS
from kgen.gates.kit_modules import module_files
from kgen.gates.kit_wheels import Piece, runtime_pieces, tvm_ffi_pieces
from kgen.records import sha256_bytes
from kgen.store.paths import cache_path

ENTRIES = ("kgen.serve.launcher", "kgen.serve.link", "kgen.gates.environment")
REPEATING = ({"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 64 << 20},)
MAX_BYTES = 30 << 20


def pack(
    out: Path,
    cases: Mapping[str, Case],
    made: Mapping[str, Made],
    cache: Path,
    pythons: Sequence[str] = PYTHONS,
    flavours: Sequence[str] = FLAVOURS,
) -> int:
    """Writes `out`, returns its size. Raises KitError where a runtime piece cannot be had, ValueError if too large."""
    pieces = [Piece(f"lib/{path}", data) for path, data in module_files(ENTRIES).items()]
    pieces.append(Piece("lib/ptx_truth_host.py", Path(host.__file__).read_bytes()))
    pieces += [Piece(f"objects/{m.object_sha256}.o", m.object) for m in made.values()]
    arrays = [t.array for case in cases.values() for t in case.tensors.values()]
    pieces += {p.path: p for p in (Piece(f"inputs/{sha256_bytes(a.tobytes())}", a.tobytes()) for a in arrays)}.values()
    pieces += [*tvm_ffi_pieces(pythons, cache), *runtime_pieces(flavours, cache)]
    table = {"cases": [_line(cases[key], m) for key, m in made.items()]}
    carried = Carried("ptx_truth_host", ARCH, MAX_BYTES, pythons, flavours, _packed)
    return write(out, carried, table, pieces)


def _line(case: Case, made: Made) -> dict[str, Any]:
    """A case in the table of contents."""
    tensors = [
        [name, t.dtype, list(t.array.shape), sha256_bytes(t.array.tobytes())] for name, t in case.tensors.items()
    ]
    return {
        "key": case.key,
        "function": FUNCTION,
        "object_sha256": made.object_sha256,
        "ptx_sha256": made.ptx_sha256,
        "code": made.code,
        "source_sha256": case.source_sha256,
        "inputs_sha256": case.inputs_sha256,
        "tensors": tensors,
        "workspaces": [[dtype, list(shape)] for dtype, shape in made.workspaces],
        "calls": [[[s.dtype, s.value] for s in call] for call in case.calls],
        "outputs": list(case.outputs),
    }


def _packed(piece: Piece) -> bytes:
    """xz. The filter for machine code would break what repeats in large inputs; a large dictionary takes its time."""
    if len(piece.data) < BIG:
        return lzma.compress(piece.data, preset=1)
    filters = REPEATING if piece.path.startswith("inputs/") else FILTERS
    return lzma.compress(piece.data, format=lzma.FORMAT_XZ, filters=filters)


def carry(out: Path, pythons: Sequence[str] = PYTHONS, flavours: Sequence[str] = FLAVOURS) -> str:
    """Builds and packs every case; a line about the file."""
    cases = {key: make(key) for key in MAKERS}
    made = build(cases.values())
    size = pack(out, cases, {key: made[key] for key in cases}, cache_path(), pythons, flavours)
    return f"{out}: {len(cases)} cases, {size / (1 << 20):.1f} MiB"


def main(arguments: Sequence[str]) -> str:
    if len(arguments) != 1:
        return "usage: python -m ptx_truth.pack OUT.pyz"
    sys.stdout.write(carry(Path(arguments[0])) + "\n")
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or None)
