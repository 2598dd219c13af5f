"""Builds a candidate of a ranked op: the same sandbox, compiler and audit as the compile gate, with peers' addresses.

Not covered: the build cache, mutants. Symmetric buffers come from the candidate's symmetric(), run in the sandbox.
"""

from dataclasses import replace
from pathlib import Path

from kgen.contract import DTYPES
from kgen.contract.ranks import RankedOp, ranks_of
from kgen.gates.audit import limits, ptx
from kgen.gates.audit import object as objects
from kgen.gates.audit.recorder import Argument, Recorder
from kgen.gates.builder.outcome import BuildFailure, Built
from kgen.gates.builder.pool import Builder
from kgen.gates.builder.protocol import FUNCTION, Signature
from kgen.gates.compile import compiler
from kgen.gates.ranks.job import Carried, Declared
from kgen.gates.signature import arguments, signature
from kgen.records import BuildRecord, Candidate, Problem, sha256_bytes

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


def build(op: RankedOp, candidate: Candidate, problem: Problem, builder: Builder, recorder: Recorder) -> Built:
    """The files of one build, not yet audited. Raises NotBuilt, BuilderError."""
    made = builder.build(candidate.source, ranked_signature(op, problem))
    if isinstance(made, BuildFailure):
        raise NotBuilt(f"{problem.key}: {made.code}: {made.message}")
    return made


def audited(op: RankedOp, candidate: Candidate, problem: Problem, made: Built, recorder: Recorder, by: str) -> Carried:
    """The record of a build that passes the audit. `by`: the sandbox's label.

    Raises AuditError, RecorderError, and ValueError for a symmetric buffer that cannot be.
    """
    symmetric = tuple(Declared(*entry) for entry in made.symmetric)
    for each in symmetric:
        if each.buffer().dtype not in DTYPES:
            raise NotBuilt(f"{problem.key}: {each.name} has an unknown dtype")
    cubin = objects.check(made.object, problem.arch)
    launches = recorder.record(made.object, cubin, ranked_arguments(op, problem, symmetric, made.workspaces))
    limits.check(cubin, launches)
    record = BuildRecord(
        candidate=candidate.id,
        problem=problem,
        function=FUNCTION,
        object_sha256=sha256_bytes(made.object),
        object_bytes=len(made.object),
        cubin_sha256=cubin.sha256,
        kernels=cubin.kernels,
        launches=launches,
        workspaces=made.workspaces,
        compiler=compiler(),
        isolation=by,
        compile_seconds=made.seconds,
        ptx=ptx.facts(made.ptx),
        design=made.design,
    )
    return Carried(record, symmetric)


def build_all(
    op: RankedOp, candidate: Candidate, problems: list[Problem], builder: Builder, cache: Path
) -> list[tuple[Carried, bytes]]:
    """Builds and audits for every problem: the record and the object's bytes. Raises as `build` and `audited` do."""
    recorder = Recorder(builder.level, cache.resolve() / "recorder")
    found = []
    for problem in problems:
        made = build(op, candidate, problem, builder, recorder)
        carried = audited(op, candidate, problem, made, recorder, builder.level.label)
        found.append((carried, made.object))
    return found
