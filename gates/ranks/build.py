"""Builds a candidate of a ranked op: the same sandbox, compiler and audit as the compile gate, with peers' addresses.

Not covered: the build cache, mutants. Symmetric buffers come from the candidate's symmetric(), run in the sandbox.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from kgen.contract.ranks import RankedOp, ranks_of
from kgen.gates.audit.recorder import Argument, Recorder
from kgen.gates.builder.outcome import BuildFailure
from kgen.gates.builder.pool import Builder
from kgen.gates.builder.protocol import Signature
from kgen.gates.compile import audited, compiler
from kgen.gates.ranks.job import Carried, Declared
from kgen.gates.signature import arguments, signature
from kgen.records import Candidate, Problem

RANK = ("i32", 1.0)  # the scalar `rank`, as traced


class NotBuilt(ValueError):
    """The candidate cannot be built for a problem; one line, with the code of the compile gate."""


def ranked_signature(op: RankedOp, problem: Problem) -> Signature:
    """The op's arguments and `rank`; the builder adds the symmetric buffers between tensors and scalars."""
    plain = signature(op, problem)
    scalars, names = (*plain.scalars, RANK), (*plain.names, "rank")
    return replace(plain, scalars=scalars, names=names, ranks=ranks_of(problem))


def ranked_arguments(
    op: RankedOp, problem: Problem, symmetric: tuple[Declared, ...], workspaces: tuple[tuple[str, tuple[int, ...]], ...]
) -> list[Argument]:
    """Arguments of the exported function in call order."""
    plain = arguments(op, problem, workspaces)
    count = len(op.present(problem))
    scalars = len(op.scalars)
    buffers = []
    for each in symmetric:
        buffers.append(Argument(each.name, each.dtype, (each.parities, *each.shape)))
        buffers.append(Argument(f"{each.name}_peers", "i64", (ranks_of(problem),)))
    rank = Argument("rank", "i32", None, 1)
    return [*plain[:count], *buffers, *plain[count : count + scalars], rank, *plain[count + scalars :]]


def build(
    op: RankedOp, candidate: Candidate, problem: Problem, builder: Builder, recorder: Recorder
) -> tuple[Carried, bytes]:
    """The audited record of one build, and the object.

    Raises NotBuilt, BuilderError, AuditError, RecorderError, and ValueError for a symmetric buffer that cannot be.
    """
    made = builder.build(candidate.source, ranked_signature(op, problem))
    if isinstance(made, BuildFailure):
        raise NotBuilt(f"{problem.key}: {made.code}: {made.message}")
    symmetric = tuple(Declared(*entry) for entry in made.symmetric)
    for each in symmetric:
        each.buffer()
    called = partial(ranked_arguments, op, problem, symmetric, made.workspaces)
    record, _ = audited(candidate, problem, made, called, recorder, by=compiler(), isolation=builder.level.label)
    return Carried(record, symmetric), made.object


def build_all(
    op: RankedOp, candidate: Candidate, problems: list[Problem], builder: Builder, cache: Path
) -> list[tuple[Carried, bytes]]:
    """Builds and audits for every problem. Raises as `build` does."""
    recorder = Recorder(builder.level, cache.resolve() / "recorder")
    return [build(op, candidate, problem, builder, recorder) for problem in problems]
