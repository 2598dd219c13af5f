"""Builds the table's kernels and variants as candidates are built: sandbox, audited object, counted PTX.

built(rows, cache) -> one Made a kernel or variant and point, in the table's order; raises BuildError
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bounding.table import Row, points, source
from bounding.variants import BASE, SAME, Variant, left_out

from kgen.gates.artefacts import Artefact
from kgen.gates.builder.pool import Builder
from kgen.gates.compile import CompileGate
from kgen.ops import REGISTRY
from kgen.records import Candidate, Origin

WORKERS = 1
WALL_SECONDS = 300.0  # a busy machine is no reason to leave a variant out
AS_IT_IS = Variant(BASE, "nothing", ())
# facts of PTX: instructions that load 16 bytes a lane and more, or copy to shared memory
WIDE_LOADS = ("global_loads_16b", "global_loads_32b", "cp_async", "bulk_copies")


class BuildError(RuntimeError):
    """A variant that does not compile; one line."""


@dataclass(frozen=True)
class Made:
    """One object. `tokens`: of its point."""

    row: Row
    tokens: int
    variant: Variant
    artefact: Artefact


def built(rows: Iterable[Row], cache: Path) -> Iterator[Made]:
    """Each kernel before its variants."""
    with Builder(wall_seconds=WALL_SECONDS) as builder:
        for row in rows:
            with CompileGate(REGISTRY.get(row.op), cache, builder, WORKERS) as gate:
                yield from _of_row(row, gate)


def _of_row(row: Row, gate: CompileGate) -> Iterator[Made]:
    text = source(row)
    for tokens, problem in zip(row.tokens, points(row), strict=True):
        for variant in (AS_IT_IS, *row.at(tokens)):
            report = gate.run(Candidate(row.op, left_out(text, variant), Origin("file")), [problem])
            if not report.artefacts:
                raise BuildError(f"{row.op} {row.candidate} {variant.name}: {report.result.message}")
            yield Made(row, tokens, variant, report.artefacts[0])


def grouped(made: Iterable[Made]) -> list[list[Made]]:
    """By kernel and point: the kernel, then its variants."""
    return [list(group) for _, group in itertools.groupby(made, key=lambda m: (m.row, m.tokens))]


def wide_loads(made: Made) -> dict[str, int]:
    """How many instructions of each kind load much."""
    return {name: made.artefact.record.ptx.get(name, 0) for name in WIDE_LOADS}


def complaints(group: Iterable[Made]) -> list[str]:
    """Of a kernel and its variants at one point: whose wide loads are not as promised, and what is equal."""
    base, *variants = group
    found = []
    for made in variants:
        name = f"{made.row.op} {made.row.candidate} t{made.tokens} {made.variant.name}"
        if made.variant.loads == SAME and wide_loads(made) != wide_loads(base):
            found.append(f"{name}: {wide_loads(made)} where the kernel has {wide_loads(base)}")
        if made.artefact.record.object_sha256 == base.artefact.record.object_sha256:
            found.append(f"{name}: the same object as the kernel's: nothing is left out")
    return found
