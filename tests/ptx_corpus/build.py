"""Builds the corpus with the real compiler, as candidates are built: sandbox, object, recorded launches.

    cd tests && python -m ptx_corpus.build           # builds what is not in built.json.xz as its source now is
    cd tests && python -m ptx_corpus.build FOLDER    # writes the PTX texts that are kept there

What is kept: for every kernel the hash of its source, its PTX and its launches, and the compiler that made them.
"""

import json
import lzma
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptx_corpus.cases import CASES
from ptx_corpus.entries import CUTLASS, Change, right, sha256
from ptx_corpus.faults import FAULTS
from ptx_corpus.variants import VARIANTS

from kgen.gates.audit import object as objects
from kgen.gates.audit.recorder import Argument, Recorder
from kgen.gates.builder.outcome import Built
from kgen.gates.builder.pool import Builder
from kgen.gates.builder.protocol import Signature
from kgen.gates.compile import compiler
from kgen.records import Launch, from_json, to_json

KEPT = Path(__file__).with_name("built.json.xz")
ARCH = "sm_90a"


@dataclass(frozen=True)
class Kept:
    source_sha256: str
    compiler: str
    ptx: str
    launches: tuple[Launch, ...]


def entries() -> tuple[Change, ...]:
    """All kernels: right, right variants, broken."""
    return (*(right(name) for name in CASES), *VARIANTS, *FAULTS)


def installed() -> str:
    found = compiler()
    return f"{found.version} {found.flavour}"


def build(changes: Sequence[Change], cache: Path, workers: int = 2) -> tuple[dict[str, Kept], list[str]]:
    """Builds and records: what was built, and the compiler's message for each that does not compile."""
    found: dict[str, Kept] = {}
    failed: list[str] = []
    with Builder() as builder:
        recorder = Recorder(builder.level, cache)
        version, lock = installed(), threading.Lock()

        def one(change: Change) -> None:
            case, source = CASES[change.kernel], change.source()
            shapes = {n: (case.dtype(n), array.shape) for n, (_, array) in case.tensors.items()}
            tensors = tuple((CUTLASS[dtype], shape) for dtype, shape in shapes.values())
            made = builder.build(source, Signature({}, 1, ARCH, tensors, (), tuple(shapes), 0))
            if not isinstance(made, Built):
                failed.append(f"{change.key}: {made.message}")
                return
            arguments = [Argument(n, dtype, shape) for n, (dtype, shape) in shapes.items()]
            launches = recorder.record(made.object, objects.check(made.object, ARCH), arguments)
            with lock:
                found[change.key] = Kept(sha256(source), version, made.ptx, launches)

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(one, changes))
    return found, failed


def load() -> dict[str, Kept]:
    raw: dict[str, Any] = json.loads(lzma.decompress(KEPT.read_bytes())) if KEPT.exists() else {}
    return {
        key: Kept(k["source_sha256"], k["compiler"], k["ptx"], tuple(from_json(Launch, one) for one in k["launches"]))
        for key, k in raw.items()
    }


def save(kept: dict[str, Kept]) -> None:
    raw = {
        key: {
            "source_sha256": k.source_sha256,
            "compiler": k.compiler,
            "ptx": k.ptx,
            "launches": [to_json(one) for one in k.launches],
        }
        for key, k in sorted(kept.items())
    }
    KEPT.write_bytes(lzma.compress(json.dumps(raw, sort_keys=True).encode(), preset=9 | lzma.PRESET_EXTREME))


def main(arguments: Sequence[str]) -> str:
    if arguments:
        for key, k in load().items():
            (Path(arguments[0]) / f"{key}.ptx").write_text(k.ptx, encoding="utf-8")
        return ""
    before, wanted, version = load(), {c.key: c for c in entries()}, installed()
    current = {
        key: before[key]
        for key, c in wanted.items()
        if key in before and (before[key].source_sha256, before[key].compiler) == (sha256(c.source()), version)
    }
    with tempfile.TemporaryDirectory() as cache:
        made, failed = build([c for key, c in wanted.items() if key not in current], Path(cache))
    save(current | made)
    return "\n".join(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or 0)
