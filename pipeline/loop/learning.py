"""What a finished run shows, for the lessons: which codes were repaired, which designs came through, which one led.

    observed(run, history) -> Observed, ...    a pure function of the judged candidates
    teach(work)                                what a run showed, into the lessons beside it

Only candidates that came through the numbers count as having led at a range. A replay shows nothing new and teaches
nothing. Not covered: keeping lessons, and what contradicts what (`lessons`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from kgen.loop.history import specimens
from kgen.loop.lessons import (
    AT,
    CHEAPEST,
    FASTEST,
    FOLDER,
    LINKS,
    REFUSED,
    REPAIRED,
    THROUGH,
    UNREPAIRED,
    Kept,
    Link,
    Observed,
    learn,
)
from kgen.loop.population import BROKEN, TIMED, Score, Specimen, span_order
from kgen.loop.work import Work
from kgen.records import GATES, one_line

NUMBERS = GATES.index("unit-numeric")  # the gates before it
REPLAYS = "replay"


def teach(work: Work) -> Kept | None:
    """None for a replay. Call with the run's lock held. Raises StoreError, IntegrityError."""
    if work.settings.replay or work.settings.proposer == REPLAYS:
        return None
    found = observed(work.run.id, specimens(work))
    folder, run = work.run.path.parent / FOLDER, work.run
    return learn(folder, work.op.name, run.id, run.info.created, found, work.settings.archs)


def observed(run: str, history: Sequence[Specimen]) -> tuple[Observed, ...]:
    """`history` in the order of the run."""
    return (*_repairs(run, history), *_numbers(run, history), *_leaders(run, history))


def _links(run: str, shown: Sequence[Specimen]) -> tuple[Link, ...]:
    return tuple(Link(run, s.id[:12], s.code) for s in shown[-LINKS:])


def _repairs(run: str, history: Sequence[Specimen]) -> Iterator[Observed]:
    """A child of a refused candidate is a try; one that comes through the gate that stopped its parent is a repair."""
    known = {s.id: s for s in history}
    tries: dict[tuple[str, str], list[Specimen]] = {}
    for s in history:
        for parent in (known[p] for p in s.parents if p in known):
            if parent.state == BROKEN:
                kind = REPAIRED if s.stage > parent.stage else UNREPAIRED
                tries.setdefault((kind, f"{parent.code}{AT}{GATES[parent.stage]}"), []).append(s)
    for (kind, subject), children in sorted(tries.items()):
        yield Observed(kind, subject, len(children), _links(run, children))


def _numbers(run: str, history: Sequence[Specimen]) -> Iterator[Observed]:
    """Designs whose candidates the numeric gate let through or refused. One that it did not judge says nothing."""
    judged: dict[tuple[str, str], list[Specimen]] = {}
    for s in history:
        if s.stage > NUMBERS and s.family:
            judged.setdefault((THROUGH, one_line(s.family)), []).append(s)
        elif s.stage == NUMBERS and s.state == BROKEN and s.family:
            judged.setdefault((REFUSED, one_line(s.family)), []).append(s)
    for (kind, family), found in sorted(judged.items()):
        codes = Counter(s.code for s in found)
        words = ", ".join(f"{code} {n} times" if n > 1 else code for code, n in sorted(codes.items()))
        yield Observed(kind, family, len(found), _links(run, found), words if kind == REFUSED else "")


def _leaders(run: str, history: Sequence[Specimen]) -> Iterator[Observed]:
    """At each range the design with the best score, timed before static; the first of equals."""
    best: dict[str, dict[str, tuple[Score, Specimen]]] = {}
    for s in history:
        for where, score in s.scores.items() if s.right and s.stage > NUMBERS else ():
            designs = best.setdefault(where, {})
            family = one_line(s.designs.get(where, s.family))
            if family and (family not in designs or score < designs[family][0]):
                designs[family] = (score, s)
    for where in sorted(best, key=span_order):
        ordered = sorted(best[where].items(), key=lambda item: (item[1][0], item[1][1].number))
        family, (score, winner) = ordered[0]
        kind = FASTEST if score.tier == TIMED else CHEAPEST
        second = f", next {ordered[1][0]} with {ordered[1][1][0].words}" if len(ordered) > 1 else ", the only design"
        yield Observed(kind, f"{family}{AT}{where}", 1, _links(run, [winner]), f"{score.words}{second}")
