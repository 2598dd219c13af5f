"""`search`: candidates from built-in kernel families, offline and deterministic by seed.

Known good points come first, then seeded samples; once candidates have been timed, every other new one changes a single
choice of the best so far. Not covered: models of the search space (the static cost of the loop does the ranking).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from kgen.proposers.base import Proposal, ProposalRequest, ProposerExhausted, SetupError
from kgen.proposers.families import FAMILIES, FIXED, Family, Variant, render
from kgen.records import Candidate, Origin

TRIES = 200  # samples in a row that give nothing new before the space counts as searched


class SearchProposer:
    """Raises SetupError for an op without a family, ProposerExhausted when nothing new is left."""

    name = "search"

    def propose(self, request: ProposalRequest) -> Proposal:
        if reason := lacking(request.op.name):
            raise SetupError(f"{reason}; use another proposer")
        family = FAMILIES[request.op.name]
        seen = {candidate.id for candidate, _ in request.history}
        found: list[Candidate] = []
        misses = 0
        for variant in _points(family, request):
            candidate = _candidate(request, variant)
            misses = misses + 1 if candidate.id in seen else 0
            if candidate.id not in seen:
                seen.add(candidate.id)
                found.append(candidate)
            if len(found) >= request.count or misses >= TRIES:
                break
        if not found:
            raise ProposerExhausted(f"search has proposed every point it can find for {request.op.name}")
        note = "" if len(found) >= request.count else f"only {len(found)} new points left in this family"
        return Proposal(tuple(found), note=note)


def lacking(op: str) -> str:
    """Why `search` can propose nothing for this op (one line), "" where it can."""
    return "" if op in FAMILIES else f"search has no kernel family for {op} (it has {', '.join(sorted(FAMILIES))})"


def _candidate(request: ProposalRequest, variant: Variant) -> Candidate:
    detail = {"seed": request.seed, "template": variant.template, "values": dict(variant.values)}
    return Candidate(request.op.name, render(variant), Origin("search", detail))


def _points(family: Family, request: ProposalRequest) -> Iterator[Variant]:
    """Endless; the same for the same seed and history."""
    rng = random.Random(f"{request.op.name}:{request.seed}")
    best = _best(request)
    yield from family.known
    while True:
        yield family.sample(rng)
        if best is not None:
            yield _mutate(family, best, rng)


def _best(request: ProposalRequest) -> Variant | None:
    """The timed candidate with the lowest mean ratio to its best baseline; ties go to the earlier one."""
    timed = [
        (sum(p.ratio for p in points) / len(points), index, candidate)
        for index, (candidate, _) in enumerate(request.history)
        if (points := request.points.get(candidate.id, ())) and "values" in candidate.origin.detail
    ]
    if not timed:
        return None
    detail = min(timed, key=lambda t: t[:2])[2].origin.detail
    return Variant(str(detail["template"]), detail["values"])


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
