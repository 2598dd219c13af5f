"""The history of verdicts as template values: which attempt to repair or improve, and what to say about it.

A verdict that ends in *error* says nothing about its candidate and is left out. Not covered: how the values read; that
is in the templates.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kgen.diagnosis.findings import Diagnosis
from kgen.diagnosis.shown import CHARACTERS, MAX_TOKENS, of_speed, of_verdict, shown, tokens
from kgen.diagnosis.words import cell
from kgen.proposers import techniques
from kgen.proposers.base import CROSSOVER, DESIGN, OPTIMISE, REPAIR, RESTART, Ask, History, Place
from kgen.proposers.quoting import CAPS, capped, strip_terminal
from kgen.records import Candidate, GateResult, PerfPoint, RecordError, Status, Verdict, from_json, to_json

MAX_ATTEMPTS = 12  # rows of the table of attempts: the latest ones
MAX_POINTS = 40
MAX_REPAIRS = 3  # failures in a row before the best attempt, or a fresh start, is a better base than the last failure
MARGIN = 40  # tokens for the words round findings and message
NOTICE = 90  # characters: less is not worth a trimmed text
SPEED_TOKENS = 700  # of findings about speed, beside the compiler's facts
SHOWN = 12  # characters of a candidate id
SLOW = "perf.no_win"  # refused for its times alone: it is right
RATIO, TIME, COST = "mean ratio to the best baseline", "measured time", "static cost"  # measures of a rank
# Evidence keys that start so are not shown: secret, shown elsewhere, or of no use to a writer.
_NOT_FOR_PROPOSERS = ("seed", "raw", "points", "builds", "cached", "isolation")


LAUNCH_FACTS = ("kernel", "grid", "block", "cluster", "smem", "registers", "stack_bytes", "attributes")

Points = Mapping[str, tuple[PerfPoint, ...]]
Costs = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True)
class Feedback:
    """`template` names the page to render; `values` go into it beside the task's own.

    `classes`: what the findings shown there are about (kgen.proposers.techniques).
    """

    template: str
    values: Mapping[str, Any]
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Judged:
    candidate: Candidate
    verdict: Verdict
    points: tuple[PerfPoint, ...]
    cost: float = math.inf  # µs at the points that a round is ordered by
    at: tuple[int, ...] = ()  # their tokens
    rank: int = 0  # among what is right, 1 is the best; 0: it is not right, or nothing is known of its speed

    @property
    def right(self) -> bool:
        failed = self.verdict.failed
        return self.verdict.staged if failed is None else failed.code == SLOW

    @property
    def key(self) -> tuple[bool, float, float]:
        """Least is best: what a clock said of all points comes before what orders a round."""
        return not self.verdict.promotable, self.ratio, self.cost

    @property
    def ratio(self) -> float:
        """Geometric mean of candidate / best baseline; inf when nothing was timed."""
        ratios = [p.ratio for p in self.points if math.isfinite(p.ratio) and p.ratio > 0]
        return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.inf


def feedback(
    history: History,
    points: Points | None = None,
    ask: Ask | None = None,
    costs: Costs | None = None,
    measured: bool = False,
    small: str = "",
) -> Feedback:
    """What the ask says. Without one: repair the last attempt if it failed, improve the best if there is one, otherwise
    start afresh.

    `points`: timed points by candidate id; where a candidate has none there, its perf-sweep evidence is looked at.
    `costs`: µs by candidate id and tokens that the run orders its rounds by, `measured` or the static cost. `small`:
    the dims name whose builds say nothing of speed.
    """
    view = _View(_judged(history, points or {}, costs or {}), measured, small)
    best = min((j for j in view.judged if j.rank), key=lambda j: j.rank, default=None)
    values: dict[str, Any] = {
        "attempts": [_attempt(j, view) for j in view.judged[-MAX_ATTEMPTS:]],
        "best_so_far": _standing(best, view) if best else None,
        "wanted_tokens": ", ".join(map(str, ask.tokens)) if ask else "",
    }
    chosen = (_asked(ask, view) if ask is not None else None) or _unasked(view)
    return replace(chosen, values={**values, **chosen.values})


def places(
    history: History, points: Points | None = None, costs: Costs | None = None, measured: bool = False
) -> tuple[tuple[Place, ...], str]:
    """What is right, best first, and by which measure that is; arguments as those of `feedback`."""
    view = _View(_judged(history, points or {}, costs or {}), measured, "")
    found = sorted(((j, _standing(j, view)) for j in view.judged if j.rank), key=lambda pair: pair[0].rank)
    measure = str(found[0][1]["measure"]) if found else ""
    made = (
        Place(j.candidate.id, j.rank, str(said["value"]), str(j.candidate.origin.detail.get("answer", "")))
        for j, said in found
    )
    return tuple(made), measure


@dataclass(frozen=True)
class _View:
    """The history as it is told. `measured` and `small` are those of `feedback`."""

    judged: Sequence[_Judged]
    measured: bool
    small: str


def _judged(history: History, points: Points, costs: Costs) -> list[_Judged]:
    """In the order of the history, each with its rank; of equals the earlier one is the better."""
    found = []
    for candidate, verdict in history:
        if not any(r.status is Status.ERROR for r in verdict.results):
            known = costs.get(candidate.id, {})
            cost = sum(known.values()) if known else math.inf
            timed = points.get(candidate.id) or points_of(verdict)
            found.append(_Judged(candidate, verdict, timed, cost, tuple(sorted(known))))
    ranked = sorted((j for j in found if j.right and min(j.ratio, j.cost) < math.inf), key=lambda j: j.key)
    ranks = {j.candidate.id: i for i, j in enumerate(ranked, 1)}
    return [replace(j, rank=ranks.get(j.candidate.id, 0)) for j in found]


def _unasked(view: _View) -> Feedback:
    if 0 < _failures_in_a_row(view.judged) <= MAX_REPAIRS:
        return _repair(view.judged[-1])
    best = _best(view.judged)
    return _optimise(best, view) if best is not None else Feedback("propose.md", {})


def _asked(ask: Ask, view: _View) -> Feedback | None:
    """The page for an ask, None where its parents are not in the history (any more)."""
    known = {j.candidate.id: j for j in view.judged}
    parents = [known[p] for p in ask.parents if p in known]
    if len(parents) < len(ask.parents):
        return None
    if ask.kind == REPAIR and parents[0].verdict.failed is not None:
        return _repair(parents[0])
    if ask.kind == OPTIMISE:
        return _optimise(parents[0], view, ask.tokens)
    if ask.kind == CROSSOVER:
        both = {"best": _improved(parents[0], view), "other": _improved(parents[1], view)}
        return Feedback("crossover.md", {**both, "reason": ask.reason})
    if ask.kind == RESTART:
        return Feedback("restart.md", {"reason": ask.reason})
    return Feedback("propose.md", {}) if ask.kind == DESIGN else None


def _repair(entry: _Judged) -> Feedback:
    found = of_verdict(entry.verdict).findings
    return Feedback("repair.md", {"failed": _failed(entry)}, tuple(techniques.classes(found, None)))


def _optimise(entry: _Judged, view: _View, wanted: Sequence[int] = ()) -> Feedback:
    compiled = served(entry.verdict.result("compile"), view.small)
    found = of_speed(compiled, entry.points).findings
    classes = techniques.classes([f for f in found if f.fix], compiled, wanted)
    return Feedback("optimise.md", {"best": _improved(entry, view)}, tuple(classes))


def points_of(verdict: Verdict) -> tuple[PerfPoint, ...]:
    """The timed points in a verdict's perf-sweep evidence, if they are kept there; what is no point is left out."""
    result = verdict.result("perf-sweep")
    listed = result.evidence.get("points", ()) if result else ()
    points = []
    for item in listed if isinstance(listed, list | tuple) else ():
        try:
            points.append(item if isinstance(item, PerfPoint) else from_json(PerfPoint, item))
        except RecordError:
            continue  # evidence of another version: the ratio is missing, nothing else
    return tuple(points)


def _failures_in_a_row(judged: Sequence[_Judged]) -> int:
    count = 0
    for entry in reversed(judged):
        if entry.verdict.failed is None:
            break
        count += 1
    return count


def _best(judged: Sequence[_Judged]) -> _Judged | None:
    """The best of what did not fail, by the run's own order; where nothing is known of their speed, the first."""
    return min((j for j in judged if j.verdict.staged), key=lambda j: j.key, default=None)


def _attempt(entry: _Judged, view: _View) -> dict[str, str]:
    candidate, standing = entry.candidate, _standing(entry, view)
    return {
        "id": candidate.id[:SHOWN],
        "proposer": cell(candidate.origin.proposer),
        "outcome": _outcome(entry),
        "rank": f"{entry.rank} ({standing['value']})" if entry.rank else "",
    }


def _standing(entry: _Judged, view: _View) -> dict[str, Any]:
    """How it stands among what is right: by which measure, with what number."""
    guess = TIME if view.measured else COST
    timed = math.isfinite(entry.ratio)
    ranked = [j for j in view.judged if j.rank]
    mixed = len({math.isfinite(j.ratio) for j in ranked}) > 1
    value = f"{RATIO} {entry.ratio:.3f}" if timed else f"{guess} {entry.cost:.2f} µs"
    at = ", ".join(map(str, next((j.at for j in ranked if j.at), ())))
    guessed = f"{guess} (summed over {at} tokens)" if at else guess
    measure = f"{RATIO}, then {guessed} of what was not timed" if mixed else RATIO if timed else guessed
    return {"id": entry.candidate.id[:SHOWN], "rank": entry.rank, "of": len(ranked), "value": value, "measure": measure}


def _outcome(entry: _Judged) -> str:
    """One cell, from stable words and numbers only: no foreign text outside quoted blocks."""
    failed = entry.verdict.failed
    if failed is not None:
        return f"fail at {cell(failed.gate)}: {cell(failed.code)}"
    speed = f", mean ratio to the best baseline {entry.ratio:.3f}" if math.isfinite(entry.ratio) else ""
    numbers = entry.verdict.result("unit-numeric")
    staged = "right in the PTX interpreter" if numbers is not None and numbers.passed else "compiles"
    return ("promotable" if entry.verdict.promotable else f"{staged}, later gates not run here") + speed


def _failed(entry: _Judged) -> dict[str, Any]:
    result = entry.verdict.failed
    assert result is not None  # only called for failures
    return {
        "id": entry.candidate.id[:SHOWN],
        "gate": cell(result.gate),
        "code": cell(result.code),
        **_told(result, of_verdict(entry.verdict)),
        "source": entry.candidate.source,
    }


def _told(result: GateResult, found: Diagnosis) -> dict[str, str]:
    """Findings, then the gate's own words and its other evidence, trimmed: MAX_TOKENS in all."""
    facts, message = _facts(result), strip_terminal(result.message)
    findings = shown(found, MAX_TOKENS * 2 // 3)
    room = MAX_TOKENS - tokens(findings) - MARGIN
    message = _trimmed(message, room * 2 // 3 if facts else room)
    text = f"Findings, most informative first:\n{findings}\n\nThe gate's own words:\n{message}"
    return {"message": text, "facts": _trimmed(facts, room - tokens(message))}


def _with_facts(diagnosis: Diagnosis, facts: str) -> str:
    """The same for a candidate that is right: findings about speed, then what the compiler made of it."""
    findings = shown(diagnosis, SPEED_TOKENS) if diagnosis.findings else ""
    text = f"Findings, most informative first:\n{findings}\n\n{facts}" if findings else facts
    return _trimmed(text, CAPS["facts"] // CHARACTERS)


def _trimmed(text: str, limit: int) -> str:
    """Within so many tokens, start and end kept."""
    size = len(text)
    while text and tokens(text) > limit and size > NOTICE:
        size = size * 3 // 4
        text = capped(text, size)
    return text if tokens(text) <= limit else ""


def served(compiled: GateResult | None, small: str) -> GateResult | None:
    """Without the builds at the small dims, whose grids say nothing of speed, where there are others."""
    problems = compiled.evidence.get("problems") if compiled else None
    if compiled is None or not isinstance(problems, Mapping):
        return compiled
    served = {key: facts for key, facts in problems.items() if key.split("/")[1:2] != [small]}
    return replace(compiled, evidence={**compiled.evidence, "problems": served}) if served else compiled


def _improved(entry: _Judged, view: _View) -> dict[str, Any]:
    compiled = served(entry.verdict.result("compile"), view.small)
    return {
        **_standing(entry, view),
        "outcome": _outcome(entry),
        "points": [_point(p) for p in entry.points[:MAX_POINTS]],
        "facts": _with_facts(of_speed(compiled, entry.points), _facts(compiled) if compiled else ""),
        "source": entry.candidate.source,
    }


def _point(p: PerfPoint) -> dict[str, Any]:
    return {
        "problem": cell(f"{p.problem} {p.scenario}".strip()),
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
    """The evidence that helps a writer; "" when there is none. Launches as one line a problem, the rest as JSON."""
    shown = {k: v for k, v in result.evidence.items() if not k.startswith(_NOT_FOR_PROPOSERS)}
    problems = shown.pop("problems", None)
    lines = [_launches(key, facts) for key, facts in problems.items()] if isinstance(problems, Mapping) else []
    rest = json.dumps(to_json(shown), ensure_ascii=False, sort_keys=True, indent=1, default=str) if shown else ""
    return "\n".join([*(line for line in lines if line), rest]).strip()


def _launches(key: str, facts: Any) -> str:
    """`problem (design): kernel grid block smem registers stack; ...` of the compile gate's evidence, or ""."""
    listed = facts.get("launches") if isinstance(facts, Mapping) else None
    if not isinstance(listed, list | tuple):
        return ""
    each = [
        " ".join(f"{name}={launch[name]}" for name in LAUNCH_FACTS if name in launch)
        for launch in listed
        if isinstance(launch, Mapping)
    ]
    return f"{key} ({facts.get('design') or 'no design label'}): {'; '.join(each)}"
