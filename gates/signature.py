"""An op's arguments for one problem: as data for the builder, and as a call for the launch recorder."""

from collections.abc import Sequence

from kgen.contract import DTYPES, Op, Role
from kgen.gates.audit.recorder import Argument
from kgen.gates.builder.protocol import Signature
from kgen.records import Problem


def signature(op: Op, problem: Problem) -> Signature:
    """The op's arguments for one problem, as data for the builder."""
    sizes, present = op.sizes(problem), op.present(problem)
    return Signature(
        dims={**sizes, **problem.axes},
        tokens=problem.tokens,
        arch=problem.arch,
        tensors=tuple((DTYPES[t.dtype].cutlass, t.sizes(sizes)) for t in present),
        scalars=tuple((s.dtype, s.sample) for s in op.scalars),
        names=(*(t.name for t in present), *(s.name for s in op.scalars)),
        first_out=next(i for i, t in enumerate(present) if t.role is Role.OUT),
        dtypes={d.name: d.cutlass for d in DTYPES.values()},
    )


def arguments(op: Op, problem: Problem, workspaces: Sequence[tuple[str, tuple[int, ...]]]) -> list[Argument]:
    """Arguments of the exported function in call order; workspaces are named workspace0, workspace1, ..."""
    sizes = op.sizes(problem)
    out = [Argument(t.name, t.dtype, t.sizes(sizes)) for t in op.present(problem)]
    out += [Argument(s.name, s.dtype, None, s.sample) for s in op.scalars]
    return out + [Argument(f"workspace{i}", dtype, shape) for i, (dtype, shape) in enumerate(workspaces)]
