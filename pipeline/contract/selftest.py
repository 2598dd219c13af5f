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
from kgen.contract.tolerance import compare, relative_l2
from kgen.records import Problem

TOKENS, SEED = 8, 20260
MOVED = 10.0  # a perturbed input must move the outputs by this many times the floor


@functools.cache
def complaints(op: Op) -> tuple[str, ...]:
    """One line for each way in which the references of `op` could be fooled; empty when there is none."""
    return tuple(line for problem in _problems(op) for line in _defects(op, problem))


def _problems(op: Op) -> Iterator[Problem]:
    names = list(op.axes)
    yield op.problem(op.pack.small, TOKENS, "")
    for name in names:
        for value in op.axes[name][1:]:
            yield op.problem(op.pack.small, TOKENS, "", {name: value})


def _defects(op: Op, problem: Problem) -> Iterator[str]:
    values = op.inputs(problem, op.families[0].name, SEED, "cpu")
    true, rounded = (op.reference(problem, values, rounded=r) for r in (False, True))
    stock = op.stock(problem)(values)
    for spec in op.outputs(problem):
        if spec.role is not Role.OUT:
            continue
        name, zero = spec.name, torch.zeros_like(stock[spec.name])
        if not compare(zero, stock[name], rounded[name], true[name]).complaint(op.floor):
            yield f"{op.name}: zeros pass as {name}"
        if line := compare(stock[name], stock[name], rounded[name], true[name]).complaint(op.floor):
            yield f"{op.name}: the stock op itself does not pass as {name}: {line}"
    for spec in op.present(problem):
        if spec.role is not Role.OUT and not _moves(op, problem, values, true, spec.name):
            yield f"{op.name}: the reference ignores {spec.name}"


def _moves(op: Op, problem: Problem, values: Values, true: dict[str, torch.Tensor], name: str) -> bool:
    """Whether other values of one input change any output clearly."""
    other = op.inputs(problem, op.families[0].name, SEED + 1, "cpu")
    changed = op.reference(problem, {**values, name: other[name]}, rounded=False)
    return any(relative_l2(changed[key], true[key]) > MOVED * op.floor for key in true)
