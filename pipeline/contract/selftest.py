"""Can this op's reference be trusted to judge? A reference that zeros would satisfy, or that ignores an input, cannot.

    complaints(op) -> tuple[str, ...]     empty: fit to judge; else one line a defect

Runs at the pack's small dims on the CPU, first family, one narrow bin, every value of the other axes. The gates call it
before they judge anything. Not covered: whether the formulas are the right ones (that is what tests are for).
"""

import functools
from collections.abc import Iterator

import torch

from kgen.contract.op import Op, Values
from kgen.contract.tensors import Role
from kgen.contract.tolerance import relative_l2
from kgen.records import Problem

TOKENS, SEED = 8, 20260
MOVED = 10.0  # a perturbed input must move the outputs by this many times the floor
INDEX = ("i32", "i64")

Tensors = dict[str, torch.Tensor]


@functools.cache
def complaints(op: Op) -> tuple[str, ...]:
    """One line for each way in which the references of `op` could be fooled; empty when there is none."""
    return tuple(line for problem in _problems(op) for line in _defects(op, problem))


def _problems(op: Op) -> Iterator[Problem]:
    """The defaults, then every other value of one axis at a time, where such a point exists."""
    yield op.problem(op.pack.small, TOKENS, "")
    for name, values in op.axes.items():
        for value in values[1:]:
            chosen = {**{n: v[0] for n, v in op.axes.items()}, name: value}
            problem = Problem(op.name, op.pack.small, TOKENS, "", chosen)
            if not op.refuses(problem):
                yield problem


def _defects(op: Op, problem: Problem) -> Iterator[str]:
    values = op.inputs(problem, op.families[0].name, SEED, "cpu")
    true, rounded = (op.reference(problem, values, rounded=r) for r in (False, True))
    stock = op.stock(problem)(values)
    for spec in op.outputs(problem):
        name = spec.name
        if line := _complaint(op, problem, values, stock, stock, rounded, true, name):
            yield f"{op.name}: the stock op itself does not pass as {name}: {line}"
        zeros = {**stock, name: torch.zeros_like(stock[name])}
        if spec.role is Role.OUT and not _complaint(op, problem, values, zeros, stock, rounded, true, name):
            yield f"{op.name}: zeros pass as {name}"
    other = op.inputs(problem, op.families[0].name, SEED + 1, "cpu")
    for spec in op.present(problem):
        limit = 0.0 if spec.dtype in INDEX else MOVED * op.floor
        if spec.role is not Role.OUT and not _moves(op, problem, values, true, spec.name, other[spec.name], limit):
            yield f"{op.name}: the reference ignores {spec.name}"
    for scalar in op.scalars:
        if scalar.other is None or not _moves(op, problem, values, true, scalar.name, scalar.other, 0.0):
            yield f"{op.name}: the reference ignores {scalar.name}"


def _complaint(
    op: Op, problem: Problem, values: Values, got: Tensors, stock: Tensors, rounded: Tensors, true: Tensors, name: str
) -> str:
    """What the rule of one output, then the op's hard rules, say of a whole call's outputs; "" when nothing."""
    spec = next(t for t in op.outputs(problem) if t.name == name)
    judged = op.rule(spec).judge(got[name], stock[name], rounded[name], true[name], 1)
    return judged.complaint or next(iter(op.hard_rules(problem, values, got)), "")


def _moves(
    op: Op, problem: Problem, values: Values, true: Tensors, name: str, other: torch.Tensor | float, limit: float
) -> bool:
    """Whether another value of one input changes some output by more than `limit`."""
    changed = op.reference(problem, {**values, name: other}, rounded=False)
    return any(relative_l2(changed[key], true[key]) > limit for key in true)
