"""Writes the one file that a GPU host runs: objects of kernels and variants, the runtime pieces of a kit, host.py."""

import functools
import lzma
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bounding import host
from bounding.build import Made, built, complaints, grouped
from bounding.compiled import noted
from bounding.table import ARCH, Row
from ptx_truth import host as talking
from support.carried import FLAVOURS, PYTHONS, Carried, packed, write

from kgen.gates.kit_modules import module_files
from kgen.gates.kit_wheels import Piece, runtime_pieces, tvm_ffi_pieces
from kgen.gates.runner.job import spec
from kgen.records import sha256_bytes, to_json
from kgen.store.paths import cache_path

ENTRIES = (
    "kgen.gates.counters",
    "kgen.gates.environment",
    "kgen.gates.runner.__main__",
    "kgen.gates.runner.contestants",
    "kgen.gates.timing",
)
UNUSED = ".safetensors"  # the small model's weights: nothing is generated here
MAX_BYTES = 20 << 20


def pack(out: Path, made: Sequence[Made], cache: Path) -> int:
    """Writes `out`, returns its size. Raises KitError where a runtime piece cannot be had, ValueError if too large."""
    modules = {path: data for path, data in module_files(ENTRIES).items() if not path.endswith(UNUSED)}
    pieces = [Piece(f"lib/{path}", data) for path, data in modules.items()]
    pieces += [Piece("lib/bounding/host.py", Path(host.__file__).read_bytes())]
    pieces += [Piece("lib/ptx_truth/host.py", Path(talking.__file__).read_bytes())]
    objects = {m.artefact.record.object_sha256: m.artefact.object for m in made}
    pieces += [Piece(f"objects/{sha256}.o", path.read_bytes()) for sha256, path in sorted(objects.items())]
    pieces += [*tvm_ffi_pieces(PYTHONS, cache), *runtime_pieces(FLAVOURS, cache)]
    carried = Carried("bounding.host", ARCH, MAX_BYTES, pack=functools.partial(as_kit_has_it, cache / "kit"))
    return write(out, carried, {"points": points(made)}, pieces)


def as_kit_has_it(cache: Path, piece: Piece) -> bytes:
    """xz of a piece; a library's takes a while, and a kit that was made here has left it in its cache."""
    sha256 = sha256_bytes(piece.data)
    kept = cache / f"{sha256}.xz"
    if kept.is_file() and sha256_bytes(lzma.decompress(data := kept.read_bytes())) == sha256:
        return data
    return packed(piece)


def points(made: Iterable[Made]) -> list[dict[str, Any]]:
    """The table of contents: the first point of each kernel, then the second ones, as time may end before the list."""
    groups = grouped(made)
    groups.sort(key=lambda g: g[0].row.tokens.index(g[0].tokens))
    return [_point(group) for group in groups]


def _point(group: Sequence[Made]) -> dict[str, Any]:
    row, problem = group[0].row, group[0].artefact.record.problem
    return {
        "key": f"{row.op} {row.candidate} t{problem.tokens}",
        "op": row.op,
        "candidate": row.candidate,
        "problem": problem.key,
        "tokens": problem.tokens,
        "variants": [_variant(made) for made in group],
    }


def _variant(made: Made) -> dict[str, Any]:
    v, record = made.variant, made.artefact.record
    said = {"name": v.name, "left": v.left, "loads": v.loads, "alone": v.alone}
    return {**said, "object_sha256": record.object_sha256, "spec": {**to_json(spec(made.artefact)), "object": ""}}


def carry(out: Path, rows: Sequence[Row]) -> str:
    """Builds and packs rows of the table, and notes what was compiled; a line about the file.

    Raises ValueError for a variant that is not as the table says, BuildError for one that does not compile.
    """
    made = list(built(rows, cache_path()))
    groups = grouped(made)
    if wrong := [line for group in groups for line in complaints(group)]:
        raise ValueError("; ".join(wrong))
    noted(groups)
    size = pack(out, made, cache_path())
    return f"{out}: {len(groups)} points, {len(made)} objects, {size / (1 << 20):.1f} MiB"
