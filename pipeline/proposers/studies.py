"""Models of a parameter space by optuna: the next point from what the gates said of the ones before.

    modelled(spaces, request, method, point_of) -> (space, point), endless
    next_point(space, done, waiting, method, rng) -> Point

A study lives for one question: it is rebuilt from the run's history each time, with fixed distributions, and asked
once. So nothing but the history decides, and a run that is taken up or replayed comes to the same points. optuna is
an extra (`tune`) and imported here only. Not covered: which space of a family is next (`search`).
"""

from __future__ import annotations

import math
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from kgen.proposers.base import ProposalRequest, SetupError
from kgen.proposers.families.space import Choice, Parameter, Point, Space
from kgen.records import GATES, Candidate, PerfPoint, Status, Verdict

TPE, NSGA, RANDOM = "tpe", "nsga", "random"
METHODS = (TPE, NSGA, RANDOM)
INSTALL = "pip install 'kgen[tune]' (optuna), or take --search random"
STARTUP = 8  # points of a space that are drawn at random before it is modelled
POPULATION = 8  # of an NSGA-II generation
WORST = 2.0  # a candidate without a time counts as so many times the slowest that has one
GRAPH = "graph"  # the timing column that decides


@dataclass(frozen=True)
class Outcome:
    """What the gates said of a candidate. `distance` is how many gates were still before it when it failed (0: right
    as far as it was tried); `us` is its cost by tokens, empty where none is known."""

    distance: int
    us: Mapping[int, float]


@dataclass(frozen=True)
class Trial:
    """A judged point and its objectives, lower is better."""

    point: Point
    values: tuple[float, ...]
    distance: int


def outcomes(request: ProposalRequest) -> dict[str, Outcome]:
    """By candidate id. A verdict that ends in *error* says nothing of its candidate, which is then left out."""
    times = _times(request)
    found = {}
    for candidate, verdict in request.history:
        if not any(r.status is Status.ERROR for r in verdict.results):
            found[candidate.id] = Outcome(_distance(verdict, times.get(candidate.id)), times.get(candidate.id, {}))
    return found


def _distance(verdict: Verdict, us: Mapping[int, float] | None) -> int:
    failed = verdict.failed
    if failed is None or failed.code == "perf.no_win":  # slow is not wrong
        return 0 if us else 1
    return len(GATES) - GATES.index(failed.gate)


def _times(request: ProposalRequest) -> dict[str, dict[int, float]]:
    """µs by tokens: measured in the sweep, else what ordered the candidates, brought to the measured ones' scale."""
    costs = {
        name: {t: us for t, us in by_tokens.items() if math.isfinite(us)} for name, by_tokens in request.costs.items()
    }
    swept = {
        name: {t: us for t in costs.get(name, {}) if (us := _swept(points, t, request)) is not None}
        for name, points in request.points.items()
    }
    ratios = [us / costs[name][t] for name, found in swept.items() for t, us in found.items() if costs[name][t] > 0]
    scale = median(ratios) if ratios else 1.0
    return {
        name: {t: swept.get(name, {}).get(t, us * scale) for t, us in found.items()} for name, found in costs.items()
    }


def _swept(points: Iterable[PerfPoint], tokens: int, request: ProposalRequest) -> float | None:
    dims = request.problems[0].dims if request.problems else ""
    found = [
        p.candidate_us
        for p in points
        if p.tokens == tokens and p.column == GRAPH and not p.scenario and (not dims or f"/{dims}/" in p.problem)
    ]
    return median(found) if found else None


def trials(
    spaces: int, points: Iterable[tuple[str, int, Point]], known: Mapping[str, Outcome], method: str
) -> dict[int, list[Trial]]:
    """Judged points by the index of their space. `points`: (candidate id, space, point) in the order proposed."""
    tokens = _tokens(known)
    slowest = [max(o.us[t] for o in known.values() if t in o.us) for t in tokens]
    found: dict[int, list[Trial]] = {index: [] for index in range(spaces)}
    for name, index, point in points:
        if name in known:
            found[index].append(_trial(point, known[name], tokens, slowest, method))
    return found


def _tokens(known: Mapping[str, Outcome]) -> list[int]:
    """Token counts at which costs are known, rising."""
    return sorted({t for outcome in known.values() for t in outcome.us})


def _trial(point: Point, outcome: Outcome, tokens: Sequence[int], slowest: Sequence[float], method: str) -> Trial:
    us = [outcome.us.get(t, WORST * most) for t, most in zip(tokens, slowest, strict=True)] or [WORST]
    values = (us[0], us[-1]) if method == NSGA else (sum(us),)
    return Trial(point, values, outcome.distance)


def next_point(space: Space, done: Sequence[Trial], waiting: Sequence[Point], method: str, rng: random.Random) -> Point:
    """A point within the space's limits. `waiting`: proposed, not judged yet. Raises SetupError without optuna."""
    if method == RANDOM:
        return space.draw(rng)
    optuna = _optuna()
    shapes = {p.name: _distribution(optuna, p) for p in space.parameters}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # features that optuna calls experimental
        study = optuna.create_study(sampler=_sampler(optuna, method, rng), directions=["minimize"] * _width(method))
        for index, trial in enumerate(done):
            study.add_trial(_frozen(optuna, space, trial, shapes, index // POPULATION))
        for point in waiting:
            running = optuna.trial.TrialState.RUNNING
            codes = _codes(space, point)
            study.add_trial(optuna.trial.create_trial(state=running, params=codes, distributions=shapes))
        asked = study.ask(fixed_distributions=shapes)
    point = {p.name: _decoded(p, asked.params[p.name]) for p in space.parameters}
    return space.repaired(point, rng)


def ready(method: str) -> None:
    """Raises SetupError (one line) when this method cannot run here."""
    if method in (TPE, NSGA):
        _optuna()


def _width(method: str) -> int:
    return 2 if method == NSGA else 1


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise SetupError(f"a search by tpe or nsga needs optuna: {INSTALL}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _sampler(optuna: Any, method: str, rng: random.Random) -> Any:
    seed = rng.getrandbits(32)
    if method == NSGA:
        return optuna.samplers.NSGAIISampler(population_size=POPULATION, seed=seed)
    return optuna.samplers.TPESampler(n_startup_trials=STARTUP, multivariate=True, constant_liar=True, seed=seed)


def _frozen(optuna: Any, space: Space, trial: Trial, shapes: Mapping[str, Any], generation: int) -> Any:
    """A judged trial. NSGA-II takes populations from the generations that it is told."""
    return optuna.trial.create_trial(
        params=_codes(space, trial.point),
        distributions=dict(shapes),
        values=list(trial.values),
        constraints={"gates": float(trial.distance)},
        system_attrs={"NSGAIISampler:generation": generation},
    )


# Every parameter is a whole number to optuna: ordered options by their place, so that neighbours are near.


def _distribution(optuna: Any, parameter: Parameter) -> Any:
    if not isinstance(parameter, Choice):
        step = 1 if parameter.log else parameter.step
        return optuna.distributions.IntDistribution(parameter.low, parameter.high, log=parameter.log, step=step)
    if parameter.ordered:
        return optuna.distributions.IntDistribution(0, len(parameter.options) - 1)
    return optuna.distributions.CategoricalDistribution(tuple(range(len(parameter.options))))


def _codes(space: Space, point: Point) -> dict[str, int]:
    return {
        p.name: p.options.index(point[p.name]) if isinstance(p, Choice) else point[p.name] for p in space.parameters
    }


def _decoded(parameter: Parameter, code: int) -> Any:
    return parameter.options[code] if isinstance(parameter, Choice) else code


PointOf = Callable[[Space, Candidate], Point | None]


def modelled(
    spaces: Sequence[Space], request: ProposalRequest, method: str, point_of: PointOf
) -> Iterator[tuple[int, Point]]:
    """Points with the index of their space, endless and now and then one that was proposed before.

    `point_of(space, candidate)` says which point of the space a candidate is. The same for the same seed and history.
    """
    known = outcomes(request)
    placed = [
        (candidate.id, index, point)
        for candidate, _ in request.history
        for index, space in enumerate(spaces)
        if (point := point_of(space, candidate)) is not None
    ]
    done = trials(len(spaces), placed, known, method)
    tried = Counter(index for _, index, _ in placed)
    met = {_key(index, point) for _, index, point in placed}
    waiting: dict[int, list[Point]] = {index: [] for index in range(len(spaces))}
    words = (request.op.name, request.seed, method, len(request.history), len(request.taken))
    rng = random.Random(":".join(map(str, words)))
    while True:
        index = _next_space(spaces, done, tried)
        point = next_point(spaces[index], done[index], waiting[index], method, rng)
        if _key(index, point) in met:  # a model that is sure of a point says it again: look elsewhere
            point = spaces[index].draw(rng)
        if _key(index, point) not in met:
            met.add(_key(index, point))
            waiting[index].append(point)
        tried[index] += 1
        yield index, point


def _key(index: int, point: Point) -> tuple[Any, ...]:
    return (index, *sorted(point.items()))


def _next_space(spaces: Sequence[Space], done: Mapping[int, Sequence[Trial]], tried: Mapping[int, int]) -> int:
    """Every other point is of the space of the best so far, the rest follow the shares."""
    best = [(t.distance, t.values, index) for index, found in done.items() for t in found]
    if best and sum(tried.values()) % 2:
        return min(best)[2]
    return min(range(len(spaces)), key=lambda i: ((tried.get(i, 0) + 1) / spaces[i].share, i))
