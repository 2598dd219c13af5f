"""What the rules of the evaluation return: breaches by code, the most telling first."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kgen.gates.modeleval.paired import Estimate

LOGITS, AGREEMENT, DRIFT = "fullmodel.logits", "fullmodel.agreement", "fullmodel.drift"
LONG_CONTEXT, SPECULATIVE, TASKS = "fullmodel.long_context", "fullmodel.speculative", "fullmodel.tasks"
CONSTRAINED, SAMPLING = "fullmodel.constrained", "fullmodel.sampling"
ORDER = (LOGITS, LONG_CONTEXT, DRIFT, SPECULATIVE, AGREEMENT, TASKS, CONSTRAINED, SAMPLING)


@dataclass(frozen=True)
class Breach:
    code: str
    message: str


@dataclass(frozen=True)
class Finding:
    """Of one rule: breaches (none: passed), what could not be judged and why, and the numbers for the evidence."""

    breaches: tuple[Breach, ...]
    numbers: dict[str, Any]
    unjudged: tuple[str, ...] = ()


def ordered(breaches: Iterable[Breach]) -> list[Breach]:
    """What explains most comes first: a wrong logit explains wrong tokens, not the other way round."""
    return sorted(breaches, key=lambda b: ORDER.index(b.code))


def brief(value: float) -> float:
    """Four digits: what a reader of the evidence can use."""
    return float(f"{value:.4g}") if math.isfinite(value) else value


def shown(estimate: Estimate) -> list[float]:
    """[point, low, high]"""
    return [brief(x) for x in (estimate.point, estimate.low, estimate.high)]
