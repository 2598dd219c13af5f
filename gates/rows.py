"""The rows of a call that count: a batch may fill its token bin only in part."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from kgen.contract import Op
from kgen.records import Problem


def with_tokens(problem: Problem, tokens: int) -> Problem:
    """The same point at a true token count, which need not be a bin."""
    return replace(problem, tokens=tokens)


def rows_of(op: Op, problem: Problem, values: Mapping[str, Any], count: int) -> dict[str, Any]:
    """What belongs to the first `count` tokens, of every tensor that has a dimension for tokens or requests."""
    sizes = op.sizes(with_tokens(problem, count))
    cut = dict(values)
    for spec in op.present(problem):
        if spec.token_dim is not None and isinstance(value := values.get(spec.name), torch.Tensor):
            cut[spec.name] = value.narrow(spec.token_dim, 0, sizes[str(spec.shape[spec.token_dim])])
    return cut


def pad(op: Op, problem: Problem, values: Mapping[str, Any], count: int, garbage: bool = False) -> None:
    """Make padding, in place, of all rows behind those of the first `count` tokens.

    Integer arguments that have a value for padding rows hold it there; with `garbage`, floats hold NaN.
    """
    used = rows_of(op, problem, values, count)
    for spec in op.present(problem):
        value = values.get(spec.name)
        if spec.token_dim is None or not isinstance(value, torch.Tensor):
            continue
        start = used[spec.name].shape[spec.token_dim]
        tail = value.narrow(spec.token_dim, start, value.shape[spec.token_dim] - start)
        if spec.padding is not None:
            tail.fill_(spec.padding)
        elif garbage and value.is_floating_point():
            tail.copy_(torch.full(tail.shape, float("nan"), device=tail.device))
