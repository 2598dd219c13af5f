"""Baselines of the perf sweep beside every op's own stock, by op and name: data only. No part of a contract."""

from collections.abc import Mapping

from kgen.ops.baseline import Baseline
from kgen.ops.experts_baselines import EXPERTS
from kgen.records import Problem

BASELINES: Mapping[str, Mapping[str, Baseline]] = {"moe_experts": EXPERTS}


def fitting(problem: Problem, tokens: int) -> tuple[str, ...]:
    """Names of those that are timed at this point with so many true tokens."""
    return tuple(name for name, each in BASELINES.get(problem.op, {}).items() if each.fits(problem, tokens))
