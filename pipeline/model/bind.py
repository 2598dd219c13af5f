"""What runs in an op's seat: the stock op, a built artefact, or the float64 reference (served kernels: decoder/swap).

A binder is asked once per seat (a layer's use of an op) and returns the callable that sits there; workspaces and output
buffers belong to the seat. Nothing here decides whether a kernel is good: that is the gates' work.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from kgen.contract import DTYPES, Op, Role, Values
from kgen.records import Problem

OpCall = Callable[[Values], dict[str, torch.Tensor]]
Launches = Callable[..., object]  # a loaded object: called with tensors, scalars, workspaces on the current stream


class Binder(Protocol):
    """`seat` names the use of the op in the model, e.g. `layer3.shared`."""

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall: ...


class StockBinder:
    """Every op as an engine runs it without kgen: states in place, element-wise parts one kernel each."""

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        return op.stock(problem, uncompiled)


def uncompiled(part: Callable[..., object], dynamic: bool) -> Callable[..., object]:
    """In the place of torch.compile: a model is run too briefly for minutes of compilation."""
    return part


class ReferenceBinder:
    """Every op in float64 without roundings."""

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        return lambda values: op.reference(problem, values, rounded=False)


def seat_call(
    op: Op, problem: Problem, launch: Launches, workspaces: Sequence[tuple[str, Sequence[int]]], device: str
) -> OpCall:
    """A loaded object in one seat: own output buffers and workspaces (zeroed once); states are updated in place."""
    sizes, specs = op.sizes(problem), op.present(problem)
    outputs = {s.name: _buffer(s.dtype, s.sizes(sizes), device) for s in specs if s.role is Role.OUT}
    work = [_buffer(dtype, shape, device) for dtype, shape in workspaces]
    written = [s.name for s in op.outputs(problem)]

    def call(values: Values) -> dict[str, torch.Tensor]:
        tensors = {s.name: outputs[s.name] if s.role is Role.OUT else _tensor(values, s.name) for s in specs}
        scalars = [int(values[s.name]) if s.dtype == "i32" else float(values[s.name]) for s in op.scalars]
        launch(*tensors.values(), *scalars, *work)
        return {name: tensors[name] for name in written}

    return call


def _tensor(values: Values, name: str) -> torch.Tensor:
    value = values[name]
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    return value


def _buffer(dtype: str, shape: Sequence[int], device: str) -> torch.Tensor:
    return torch.zeros(tuple(shape), dtype=getattr(torch, DTYPES[dtype].torch), device=device)
