"""An op's arguments for one problem: as data for the builder, and as a call for the launch recorder.

Those of an op of several ranks have its symmetric buffers behind the tensors and `rank` behind the scalars.
"""

from collections.abc import Sequence

from kgen.contract import DTYPES, Op, Role, TensorSpec
from kgen.contract.ranks import RankedOp, ranks_of
from kgen.gates.audit.recorder import Argument
from kgen.gates.builder.protocol import Layout, Signature
from kgen.records import Problem, SymmetricBuffer

RANK = "rank"
A_RANK = 1  # the value of `rank` as traced and recorded


def signature(op: Op, problem: Problem) -> Signature:
    """The op's arguments for one problem, as data for the builder.

    Sizes that are known at run time only are no dims: a candidate that could read them would bake them in.
    """
    sizes, present = op.sizes(problem), op.present(problem)
    written = [i for role in (Role.OUT, Role.STATE) for i, t in enumerate(present) if t.role is role]
    real = [i for i in written if not present[i].dtype.startswith("i")]  # a scaled index may be the same index
    tiled = [i for i in real if len(present[i].shape) > 1]
    several = isinstance(op, RankedOp)
    return Signature(
        dims={**{symbol: n for symbol, n in sizes.items() if symbol not in op.runtime_dims}, **problem.axes},
        tokens=problem.tokens,
        arch=problem.arch,
        tensors=tuple((DTYPES[t.dtype].cutlass, t.sizes(sizes)) for t in present),
        scalars=(*((s.dtype, s.sample) for s in op.scalars), *([("i32", float(A_RANK))] if several else [])),
        names=(*(t.name for t in present), *(s.name for s in op.scalars), *([RANK] if several else [])),
        first_out=(tiled or real or written)[0],
        dtypes={d.name: d.cutlass for d in DTYPES.values()},
        layouts=_layouts(op, present),
        ranks=ranks_of(problem) if several else 0,
    )


def _layouts(op: Op, present: Sequence[TensorSpec]) -> dict[str, Layout]:
    """What is not static, by index of the tensor (a string, as in JSON)."""
    found: dict[str, Layout] = {}
    for index, spec in enumerate(present):
        free = {str(i): str(symbol) for i, symbol in enumerate(spec.shape) if symbol in op.runtime_dims}
        if free or spec.pitched:
            found[str(index)] = {"free": free, "pitched": spec.pitched}
    return found


def arguments(
    op: Op,
    problem: Problem,
    workspaces: Sequence[tuple[str, tuple[int, ...]]],
    symmetric: Sequence[SymmetricBuffer] = (),
) -> list[Argument]:
    """Arguments of the exported function in call order; workspaces are named workspace0, workspace1, ..."""
    sizes = op.sizes(problem)
    out = [Argument(t.name, t.dtype, t.sizes(sizes)) for t in op.present(problem)]
    for each in symmetric:
        out.append(Argument(each.name, each.dtype, (each.parities, *each.shape)))
        out.append(Argument(f"{each.name}_peers", "i64", (ranks_of(problem),)))
    out += [Argument(s.name, s.dtype, None, s.sample) for s in op.scalars]
    out += [Argument(RANK, "i32", None, A_RANK)] if isinstance(op, RankedOp) else []
    return out + [Argument(f"workspace{i}", dtype, shape) for i, (dtype, shape) in enumerate(workspaces)]
