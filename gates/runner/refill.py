"""Fresh values between replays, the same for the runner that writes them and the judge that repeats them.

What a call may see anew (the op's `mutable_inputs`, and its states) is the drawn tensor rolled along its last
dimension by a secret amount: exact, cheap on the device, of the same family, and never twice the same row.
"""

import random

import torch

from kgen.contract import Op, Role, Values
from kgen.records import Problem


def refilled_names(op: Op, problem: Problem) -> list[str]:
    states = [t.name for t in op.present(problem) if t.role is Role.STATE]
    present = [t.name for t in op.present(problem)]
    return [n for n in present if n in op.mutable_inputs or n in states]


def shift(seed: int, repetition: int, number: int, width: int) -> int:
    return random.Random(f"{seed}/{repetition}/{number}").randrange(width)


def rolled(tensor: torch.Tensor, by: int) -> torch.Tensor:
    """Rolled along the last dimension; formats of one byte as bytes, for torch cannot roll all of them on a GPU."""
    if tensor.element_size() == 1:
        return torch.roll(tensor.view(torch.uint8), by, dims=-1).view(tensor.dtype)
    return torch.roll(tensor, by, dims=-1)


def refilled(values: Values, names: list[str], seed: int, repetition: int, number: int) -> Values:
    """The named tensors of set `number` as repetition `repetition` gets them; the rest of `values` is left out."""
    fresh: Values = {}
    for name in names:
        tensor = values[name]
        if isinstance(tensor, torch.Tensor):
            fresh[name] = rolled(tensor, shift(seed, repetition, number, tensor.shape[-1]))
    return fresh
