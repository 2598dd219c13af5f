"""Baselines of the perf sweep beside every op's own stock, by op and name: data only. No part of a contract."""

from collections.abc import Mapping

from kgen.ops.baseline import Baseline
from kgen.ops.experts_baselines import EXPERTS
from kgen.records import Problem

BASELINES: Mapping[str, Mapping[str, Baseline]] = {"moe_experts": EXPERTS}

# op -> axis and value without anything that is worth beating: "faster than stock" would say nothing there
LACKING: Mapping[str, tuple[str, str, str]] = {
    "moe_experts": ("acts", "mxfp8", "torch only has a stock op that decodes experts on the clock; take acts=bf16"),
}


def lacking(problem: Problem) -> str:
    """One line when there is nothing worth being timed against at this point, else ""."""
    axis, value, why = LACKING.get(problem.op, ("", "", ""))
    return f"{problem.op} has no baseline at {axis}={value}: {why}" if problem.axes.get(axis, "-") == value else ""


def fitting(problem: Problem, tokens: int) -> tuple[str, ...]:
    """Names of those that are timed at this point with so many true tokens."""
    return tuple(name for name, each in BASELINES.get(problem.op, {}).items() if each.fits(problem, tokens))
