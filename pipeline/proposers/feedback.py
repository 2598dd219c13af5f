"""The history of verdicts as template values: which attempt to repair or improve, and what to say about it.

A verdict that ends in *error* says nothing about its candidate and is left out. Not covered: how the values read; that
is in the templates.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kgen.proposers.base import History
from kgen.proposers.quoting import cell
from kgen.records import Candidate, GateResult, PerfPoint, RecordError, Status, Verdict, from_json, to_json

MAX_ATTEMPTS = 12  # rows of the table of attempts: the latest ones
MAX_POINTS = 40
MAX_REPAIRS = 3  # failures in a row before the best attempt, or a fresh start, is a better base than the last failure
SHOWN = 12  # characters of a candidate id
# Evidence keys that start so are not shown: secret, shown elsewhere, or of no use to a writer.
_NOT_FOR_PROPOSERS = ("seed", "raw", "points", "builds")


@dataclass(frozen=True)
class Feedback:
    """`template` names the page to render; `values` go into it beside the task's own."""

    template: str
    values: Mapping[str, Any]


def feedback(history: History) -> Feedback:
    """Repair the last attempt if it failed, improve the best if there is one, otherwise start afresh."""
    judged = [(c, v) for c, v in history if not any(r.status is Status.ERROR for r in v.results)]
    values: dict[str, Any] = {"attempts": [_attempt(c, v) for c, v in judged[-MAX_ATTEMPTS:]]}
    best = _best(judged)
    if 0 < _failures_in_a_row(judged) <= MAX_REPAIRS:
        return Feedback("repair.md", {**values, "failed": _failed(*judged[-1])})
    if best is not None:
        return Feedback("optimise.md", {**values, "best": _improved(*best)})
    return Feedback("propose.md", values)


def points_of(verdict: Verdict) -> tuple[PerfPoint, ...]:
    """The timed points in a verdict's perf-sweep evidence; entries that are not points are left out."""
    result = verdict.result("perf-sweep")
    listed = result.evidence.get("points", ()) if result else ()
    points = []
    for item in listed if isinstance(listed, list | tuple) else ():
        try:
            points.append(item if isinstance(item, PerfPoint) else from_json(PerfPoint, item))
        except RecordError:
            continue  # evidence of another version: the ratio is missing, nothing else
    return tuple(points)


def _failures_in_a_row(judged: list[tuple[Candidate, Verdict]]) -> int:
    count = 0
    for _, verdict in reversed(judged):
        if verdict.failed is None:
            break
        count += 1
    return count


def _best(judged: list[tuple[Candidate, Verdict]]) -> tuple[Candidate, Verdict] | None:
    """The best of what did not fail: promotable first, then the smallest geometric mean ratio, then the latest."""
    alive = [(i, c, v) for i, (c, v) in enumerate(judged) if v.staged]
    if not alive:
        return None
    _, candidate, verdict = min(alive, key=lambda entry: (not entry[2].promotable, _mean_ratio(entry[2]), -entry[0]))
    return candidate, verdict


def _mean_ratio(verdict: Verdict) -> float:
    ratios = [p.ratio for p in points_of(verdict) if math.isfinite(p.ratio) and p.ratio > 0]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.inf


def _attempt(candidate: Candidate, verdict: Verdict) -> dict[str, str]:
    return {"id": candidate.id[:SHOWN], "proposer": cell(candidate.origin.proposer), "outcome": _outcome(verdict)}


def _outcome(verdict: Verdict) -> str:
    """One cell, from stable words and numbers only: no foreign text outside quoted blocks."""
    failed = verdict.failed
    if failed is not None:
        return f"fail at {cell(failed.gate)}: {cell(failed.code)}"
    ratio = _mean_ratio(verdict)
    speed = f", mean ratio to the best baseline {ratio:.3f}" if math.isfinite(ratio) else ""
    return ("promotable" if verdict.promotable else "compiles, later gates not run here") + speed


def _failed(candidate: Candidate, verdict: Verdict) -> dict[str, Any]:
    result = verdict.failed
    assert result is not None  # only called for failures
    return {
        "id": candidate.id[:SHOWN],
        "gate": cell(result.gate),
        "code": cell(result.code),
        "message": result.message,
        "facts": _facts(result),
        "source": candidate.source,
    }


def _improved(candidate: Candidate, verdict: Verdict) -> dict[str, Any]:
    compiled = verdict.result("compile")
    return {
        "id": candidate.id[:SHOWN],
        "outcome": _outcome(verdict),
        "points": [_point(p) for p in points_of(verdict)[:MAX_POINTS]],
        "facts": _facts(compiled) if compiled else "",
        "source": candidate.source,
    }


def _point(p: PerfPoint) -> dict[str, Any]:
    return {
        "problem": cell(p.problem),
        "tokens": p.tokens,
        "column": cell(p.column),
        "candidate_us": f"{p.candidate_us:.2f}",
        "baseline": cell(p.best_baseline),
        "baseline_us": f"{p.baselines_us.get(p.best_baseline, math.nan):.2f}",
        "ratio": f"{p.ratio:.3f}",
        "interval": f"{p.ratio_low:.3f}-{p.ratio_high:.3f}",
        "roofline": f"{p.roofline:.2f}",
        "label": cell(p.label),
    }


def _facts(result: GateResult) -> str:
    """The evidence that helps a writer, as JSON; "" when there is none."""
    shown = {k: v for k, v in result.evidence.items() if not k.startswith(_NOT_FOR_PROPOSERS)}
    return json.dumps(to_json(shown), ensure_ascii=False, sort_keys=True, indent=1, default=str) if shown else ""
