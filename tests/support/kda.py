"""Drawn calls of kda_core for its tests, at nano widths."""

from kgen.contract import Values
from kgen.ops.kda_core import KdaCore
from kgen.records import Problem

OP = KdaCore()
ALL_Q = [1, 4, 8]


def problem(tokens: int, q: int = 1, dims: str = "nano") -> Problem:
    return OP.problem(dims, tokens, "sm_90a", {"q": str(q)})


def drawn(tokens: int, q: int = 1, family: str = "normal", seed: int = 3) -> tuple[Problem, Values]:
    point = problem(tokens, q)
    return point, OP.inputs(point, family, seed, "cpu")
