"""Builds a candidate of a ranked op for a pack: through the compile gate, as every candidate is built.

Not covered: mutants.
"""

from pathlib import Path

from kgen.contract.ranks import RankedOp
from kgen.gates.builder.pool import Builder
from kgen.gates.compile import CompileGate
from kgen.gates.ranks.job import Carried
from kgen.records import Candidate, Problem


class NotBuilt(ValueError):
    """The candidate cannot be built for a problem; one line, with the code of the compile gate."""


def build_all(
    op: RankedOp, candidate: Candidate, problems: list[Problem], builder: Builder, cache: Path
) -> list[tuple[Carried, bytes]]:
    """Screened, built, audited for every problem: records, and objects. Raises NotBuilt, and what the gate raises."""
    with CompileGate(op, cache, builder) as gate:
        report = gate.run(candidate, problems)
    if not report.result.passed:
        raise NotBuilt(f"{report.result.code}: {report.result.message}")
    return [(Carried(a.record), a.object.read_bytes()) for a in report.artefacts]
