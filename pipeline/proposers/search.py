"""`search`: candidates from built-in kernel families, offline and deterministic by seed.

Known good points come first, then seeded samples; what changes a single choice of a parent, or mixes two, where the
loop asks for that (or, without an ask, every other one once candidates have been timed). With a method (tpe, nsga,
random) new points come from `studies` instead, which learns from what the gates said of all before.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from kgen.proposers.base import CROSSOVER, OPTIMISE, RESTART, Proposal, ProposalRequest, ProposerExhausted, SetupError
from kgen.proposers.families import FAMILIES, FIXED, Family, Space, Variant, render
from kgen.proposers.families.space import Point as SpacePoint
from kgen.proposers.studies import modelled
from kgen.records import Candidate, Origin

TRIES = 200  # samples in a row that give nothing new before the space counts as searched


class SearchProposer:
    """Raises SetupError for an op without a family, ProposerExhausted when nothing new is left."""

    name = "search"

    def __init__(self, method: str = "") -> None:
        self.method = method  # of kgen.proposers.studies, "": seeded samples and their neighbours

    def propose(self, request: ProposalRequest) -> Proposal:
        if reason := lacking(request.op.name):
            raise SetupError(f"{reason}; use another proposer")
        family = FAMILIES[request.op.name]
        seen = {candidate.id for candidate, _ in request.history} | request.taken
        found: list[Candidate] = []
        misses = 0
        for variant, parents in _points(family, request, self.method):
            candidate = _candidate(request, variant, parents, self.method)
            misses = misses + 1 if candidate.id in seen else 0
            if candidate.id not in seen:
                seen.add(candidate.id)
                found.append(candidate)
            if len(found) >= request.count or misses >= 2 * TRIES:
                break
        if not found:
            raise ProposerExhausted(f"search has proposed every point it can find for {request.op.name}")
        note = "" if len(found) >= request.count else f"only {len(found)} new points left in this family"
        return Proposal(tuple(found), note=note)


def lacking(op: str) -> str:
    """Why `search` can propose nothing for this op (one line), "" where it can."""
    return "" if op in FAMILIES else f"search has no kernel family for {op} (it has {', '.join(sorted(FAMILIES))})"


Point = tuple[Variant, tuple[str, ...]]  # with the ids of its parents


def _candidate(request: ProposalRequest, variant: Variant, parents: tuple[str, ...], method: str) -> Candidate:
    detail = {"seed": request.seed, "template": variant.template, "values": dict(variant.values)}
    if method:
        detail["method"] = method
    descent = {"parents": list(parents)} if parents or request.ask is not None else {}
    return Candidate(request.op.name, render(variant), Origin("search", {**detail, **descent}))


def _point_of(space: Space, candidate: Candidate) -> SpacePoint | None:
    return space.point(_variant(candidate)) if "values" in candidate.origin.detail else None


def _points(family: Family, request: ProposalRequest, method: str) -> Iterator[Point]:
    """Endless; the same for the same seed, history and ask."""
    ask = request.ask
    if method:
        yield from ((variant, ()) for variant in family.known)
        for index, point in modelled(family.spaces, request, method, _point_of):
            yield family.spaces[index].variant(point), ()
    if ask is not None and ask.kind in (OPTIMISE, CROSSOVER, RESTART):
        rng = random.Random(f"{request.op.name}:{request.seed}:{request.round}:{ask.number}")
        yield from itertools.islice(_descended(family, request, ask.parents, rng), TRIES)
        while True:
            yield family.sample(rng), ()
    rng = random.Random(f"{request.op.name}:{request.seed}")
    best = _best(request) if ask is None else None
    for variant in family.known:
        yield variant, ()
    while True:
        yield family.sample(rng), ()
        if best is not None:
            yield _mutate(family, best[1], rng), (best[0],)


def _descended(
    family: Family, request: ProposalRequest, parents: tuple[str, ...], rng: random.Random
) -> Iterator[Point]:
    """Neighbours of one parent, mixtures of two of the same template; nothing where they are not ours."""
    known = {c.id: _variant(c) for c, _ in request.history if c.id in parents and "values" in c.origin.detail}
    ours = [(name, known[name]) for name in parents if name in known]
    while ours:
        if len(ours) == 2 and ours[0][1].template == ours[1][1].template:
            yield _mixed(ours[0][1], ours[1][1], rng), parents
        else:
            name, variant = ours[rng.randrange(len(ours))]
            yield _mutate(family, variant, rng), (name,)


def _variant(candidate: Candidate) -> Variant:
    return Variant(str(candidate.origin.detail["template"]), candidate.origin.detail["values"])


def _mixed(a: Variant, b: Variant, rng: random.Random) -> Variant:
    """Each choice from either parent; of tuning tables that have the same rows, each row."""
    values: dict[str, Any] = {}
    for name in a.values:
        mine, other = a.values[name], b.values.get(name, a.values[name])
        if name == "tuning" and [row[:2] for row in mine] == [row[:2] for row in other]:
            values[name] = [list(rng.choice(rows)) for rows in zip(mine, other, strict=True)]
        else:
            values[name] = rng.choice((mine, other))
    return Variant(a.template, values)


def _best(request: ProposalRequest) -> tuple[str, Variant] | None:
    """Id and point of the timed candidate with the lowest mean ratio to its best baseline; ties go to the earlier."""
    timed = [
        (sum(p.ratio for p in points) / len(points), index, candidate)
        for index, (candidate, _) in enumerate(request.history)
        if (points := request.points.get(candidate.id, ())) and "values" in candidate.origin.detail
    ]
    if not timed:
        return None
    best = min(timed, key=lambda t: t[:2])[2]
    return best.id, _variant(best)


def _mutate(family: Family, parent: Variant, rng: random.Random) -> Variant:
    """The parent with one choice taken from a fresh sample of the same template."""
    donor = family.sample(rng)
    while donor.template != parent.template:
        donor = family.sample(rng)
    values: dict[str, Any] = dict(parent.values)
    name = rng.choice(sorted(set(values) & set(donor.values) - set(FIXED)))
    if name == "tuning" and len(values[name]) == len(donor.values[name]):
        rows = [list(entry) for entry in values[name]]
        index = rng.randrange(len(rows))
        rows[index] = list(donor.values[name][index])
        values[name] = rows
    else:
        values[name] = donor.values[name]
    return Variant(parent.template, values)
