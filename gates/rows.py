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
