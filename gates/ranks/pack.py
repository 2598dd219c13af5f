"""One file that runs a ranked candidate on a host with several GPUs: kgen's modules, objects, runtime libraries.

    pack(built, out, cache) -> PackFile           built: what build.build_all gives; raises KitError (one line)
    python -m kgen.gates.ranks.pack --source FILE --op OP --out FILE.pyz [--ranks 2] [--tokens 1,64]

The same boot, table of contents and pieces as `kgen kit`, so the host needs Python, torch with CUDA, cc, no network.
Not in it: a run's key. What comes back is a record to read, not evidence that promotes.
"""

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kgen.contract.ranks import AXIS
from kgen.gates.builder.pool import Builder
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.kit import FLAVOURS, PYTHONS, TORCH, stored, write_archive
from kgen.gates.kit_modules import module_files
from kgen.gates.kit_wheels import Piece, runtime_pieces, tvm_ffi_pieces
from kgen.gates.ranks.__main__ import JOB, parser
from kgen.gates.ranks.build import build_all
from kgen.gates.ranks.job import OPS, Carried
from kgen.records import Candidate, Origin, canonical_json, sha256_bytes, to_json
from kgen.store.paths import cache_path

ENTRY = "kgen.gates.ranks.__main__"
ENTRIES = (ENTRY, "kgen.gates.ranks.worker")


@dataclass(frozen=True)
class PackFile:
    path: Path
    bytes: int
    sha256: str  # of the table of contents
    problems: int


def pack(
    built: Sequence[tuple[Carried, bytes]],
    out: Path,
    cache: Path,
    *,
    pythons: Sequence[str] = PYTHONS,
    flavours: Sequence[str] = FLAVOURS,
) -> PackFile:
    """Write the file (mode 0600). Raises KitError, StoreError."""
    records = [to_json(carried) for carried, _ in built]
    pieces = [Piece(f"lib/{path}", data) for path, data in module_files(ENTRIES).items()]
    objects = {carried.record.object_sha256: data for carried, data in built}
    pieces += [Piece(f"objects/{sha256}.o", data) for sha256, data in objects.items()]
    pieces.append(Piece(JOB, canonical_json(records)))
    pieces += tvm_ffi_pieces(pythons, cache) + runtime_pieces(flavours, cache)
    blobs: dict[str, tuple[bytes, bool]] = {}
    files = [stored(piece, blobs, cache / "kit") for piece in pieces]
    table = {
        "schema": "kgen.ranks-pack/1",
        "entry": ENTRY,
        "gate_contract": GATE_CONTRACT,
        "torch": TORCH,
        "machine": platform.machine(),
        "help": parser().format_help(),
        "archs": sorted({carried.record.problem.arch for carried, _ in built}),
        "pythons": list(pythons),
        "flavours": list(flavours),
        "files": files,
    }
    data = canonical_json(table)
    return PackFile(out, write_archive(out, data, blobs), sha256_bytes(data), len(built))


def _candidate(op: str, path: str) -> Candidate:
    return Candidate(op, Path(path).read_text(encoding="utf-8"), Origin("file", {}))


def main(argv: Sequence[str]) -> int:
    """Build a candidate's source, and variants of it, for every token bin and pack them."""
    made = argparse.ArgumentParser(prog="kgen.gates.ranks.pack")
    made.add_argument("--source", required=True)
    made.add_argument("--variant", action="append", default=[], metavar="NAME=FILE", help="measured beside it")
    made.add_argument("--op", default="ranked_allreduce_residual", choices=sorted(OPS))
    made.add_argument("--dims", default="", help="whose sizes (default: the first that a promotion claims)")
    made.add_argument("--tokens", default="1,2,4,8,16,32,64")
    made.add_argument("--ranks", default="2")
    made.add_argument("--arch", default="sm_90a")
    made.add_argument("--python", default=",".join(PYTHONS))
    made.add_argument("--flavour", default=",".join(FLAVOURS))
    made.add_argument("--cache", default=str(cache_path()), help="of what is packed (default: the user's, KGEN_CACHE)")
    made.add_argument("--out", required=True)
    args = made.parse_args(argv)
    op, cache = OPS[args.op], Path(args.cache).resolve()
    sources = {"": args.source, **dict(each.split("=", 1) for each in args.variant)}
    problems = [
        op.problem(args.dims or op.served[0], int(t), args.arch, {AXIS: args.ranks}) for t in args.tokens.split(",")
    ]
    with Builder() as builder:
        built = [
            (replace(carried, variant=name), data)
            for name, path in sources.items()
            for carried, data in build_all(op, _candidate(op.name, path), problems, builder, cache)
        ]
    pythons, flavours = args.python.split(","), args.flavour.split(",")
    file = pack(built, Path(args.out).resolve(), cache, pythons=pythons, flavours=flavours)
    sys.stdout.write(json.dumps({"path": str(file.path), "bytes": file.bytes, "problems": file.problems}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
