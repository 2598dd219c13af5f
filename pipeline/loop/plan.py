"""What the next round asks for, from what is known: correctness first, then the best of each range and family.

    plan(number, history, before, policy, count) -> Plan      pure: the same arguments give the same plan

The slots of a round, in this order: restarts where the run is stuck; from the second round on every 1/explore-th slot
is a fresh design; failures that deserve a repair; a crossover of two leaders that were not crossed yet; the beam in
turn. Not covered: when a run ends (`stopping`), and how an ask becomes a question (`asking`, the proposers).
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from kgen.loop.plans import Decision, Plan
from kgen.loop.population import BROKEN, TIMED, Member, Population, Specimen, last_gain, pairs, population
from kgen.proposers.base import CROSSOVER, DESIGN, OPTIMISE, REPAIR, RESTART, Ask
from kgen.records import GATES

STUCK = 2  # rounds without gain, and without a restart, after which a run starts afresh
MAX_REPAIRS = 3  # of one line, one after the other
SHOWN = 12  # characters of an id


@dataclass(frozen=True)
class Policy:
    """`beam`: how many members are built on. `explore`: share of asks, from the second round on, for a new design."""

    seed: int
    beam: int
    explore: float


@dataclass
class _Round:
    """A plan while it is made."""

    number: int
    history: Sequence[Specimen]
    before: Sequence[Plan]
    policy: Policy
    found: Population
    repairable: list[Specimen] = field(default_factory=list)
    drafts: list[Ask] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def add(self, kind: str, reason: str, parents: Sequence[str] = (), tokens: Sequence[int] = ()) -> None:
        draft = Ask(0, kind, tuple(parents), tuple(tokens), reason)
        last = self.drafts[-1] if self.drafts else None
        if last is not None and replace(last, count=1) == draft:
            self.drafts[-1] = replace(last, count=last.count + 1)
        else:
            self.drafts.append(draft)

    @property
    def anything_right(self) -> bool:
        return any(s.right for s in self.history)


def plan(number: int, history: Sequence[Specimen], before: Sequence[Plan], policy: Policy, count: int) -> Plan:
    """`count` >= 1 candidates are to be asked for in round `number`; `before`: the plans of the rounds before it."""
    made = _Round(number, history, before, policy, population(history, policy.beam))
    made.decisions += kept(made.found)
    made.repairable = _repairable(made)
    if not history:
        for _ in range(count):
            made.add(DESIGN, "nothing has come to a verdict yet" if number > 1 else "nothing has been tried yet")
    else:
        left = count - _restarts(made, count)
        exploit = _exploits(made, left)
        for _ in range(left):
            if not _explored(made):
                made.add(*next(exploit))
    asks = tuple(replace(draft, number=i) for i, draft in enumerate(made.drafts, 1))
    made.decisions += [Decision(a.kind, a.reason, a.parents, {"ask": a.number, "count": a.count}) for a in asks]
    return Plan(number, asks, tuple(made.decisions))


def kept(found: Population) -> list[Decision]:
    """Why each member is one."""
    return [_kept(member, member in found.beam) for member in found.members]


def _kept(member: Member, in_beam: bool) -> Decision:
    s, turn = member.specimen, "" if in_beam else "; not in the beam"
    if not member.ranges:
        said = f"no best, but unlike everything kept: structural distance {member.distance:.2f}{turn}"
        return Decision("novel", said, (s.id,), {"distance": round(member.distance, 4)})
    where = ", ".join(f"{w} ({s.designs.get(w, s.family)}, {s.scores[w].words})" for w in member.ranges)
    leads = f"; leads {', '.join(member.leads)}" if member.leads else ""
    scores = {w: round(s.scores[w].value, 4) for w in member.ranges}
    return Decision("keep", f"best of its design at {where}{leads}{turn}", (s.id,), scores)


def _restarts(made: _Round, count: int) -> int:
    """Half the slots start afresh where nothing was gained for a while; returns how many.

    As long as nothing is right, what can be repaired is repaired first.
    """
    if made.repairable and not made.anything_right:
        return 0
    gain = last_gain(made.history)
    again = max((p.number for p in made.before if any(a.kind == RESTART for a in p.asks)), default=0)
    idle = made.number - 1 - max(gain, again)
    if idle < STUCK:
        return 0
    since = f"the last gain was in round {gain}" if gain else "there was none yet"
    restarted = f", the last restart in round {again}" if again else ""
    for _ in range(-(-count // 2)):
        made.add(RESTART, f"stuck: {idle} rounds without gain ({since}{restarted}; from {STUCK} on)")
    return -(-count // 2)


def _explored(made: _Round) -> bool:
    """Take the slot for a fresh design if the share of those is due."""
    asks = [a for p in made.before if p.number > 1 for a in p.asks] + made.drafts
    total = sum(a.count for a in asks) + 1
    fresh = sum(a.count for a in asks if a.kind in (DESIGN, RESTART)) + 1
    if fresh > made.policy.explore * total:
        return False
    made.add(DESIGN, f"exploration: a share of {made.policy.explore:g} of all asks is for new designs")
    return True


Draft = tuple[str, str, Sequence[str], Sequence[int]]  # kind, reason, parents, tokens


def _exploits(made: _Round, slots: int) -> Iterator[Draft]:
    """Endless: repairs, crossovers, then the beam in turn; designs where there is nothing to build on."""
    most = -(-slots // 2) if made.anything_right else slots
    for s in made.repairable[:most]:
        yield REPAIR, _why_repair(made, s), (s.id,), ()
    done = {frozenset(a.parents) for p in made.before for a in p.asks if a.kind == CROSSOVER}
    for a, b in pairs(made.found, done):
        yield CROSSOVER, _why_cross(a, b), (a.specimen.id, b.specimen.id), ()
    yield from _turns(made)
    while True:
        wrong = sum(s.state == BROKEN for s in made.history)
        yield DESIGN, f"nothing right to build on yet ({wrong} refused, each repaired or in repair)", (), ()


def _repairable(made: _Round) -> list[Specimen]:
    """Failures worth a repair: those that came furthest first, then the latest. What is given up is said."""
    known = {s.id: s for s in made.history}
    asked = {p for plan in made.before for a in plan.asks if a.kind == REPAIR for p in a.parents}
    families = {s.family for s in made.history if s.right}
    found = []
    for s in made.history:
        if s.state != BROKEN or s.id in asked:
            continue
        depth = _repairs_behind(s, known)
        if depth >= MAX_REPAIRS:
            said = f"given up: {depth} repairs of its line failed, the last at {_stopped(s)}"
            made.decisions.append(Decision("give-up", said, (s.id,), {"repairs": depth}))
        elif s.family not in families or (s.round == made.number - 1 and depth == 0):
            found.append(s)
    return sorted(found, key=lambda s: (-s.stage, -s.number))


def _repairs_behind(s: Specimen, known: dict[str, Specimen]) -> int:
    depth = 0
    while s.kind == REPAIR and s.parents and s.parents[0] in known:
        depth, s = depth + 1, known[s.parents[0]]
    return depth


def _stopped(s: Specimen) -> str:
    return f"{GATES[min(s.stage, len(GATES) - 1)]} with {s.code}"


def _why_repair(made: _Round, s: Specimen) -> str:
    rights = sum(x.right for x in made.history)
    first = f"{rights} right candidates, but this one failed" if rights else "correctness first: nothing is right yet"
    return f"{first}; {s.id[:SHOWN]} ({s.family}) was stopped at {_stopped(s)}"


def _why_cross(a: Member, b: Member) -> str:
    return " and ".join(f"{m.specimen.id[:SHOWN]} leads {', '.join(m.leads)}" for m in (a, b)) + ": the best of both"


def _turns(made: _Round) -> Iterator[Draft]:
    """The beam, those least built on first; endless unless it is empty."""
    rng = random.Random(f"{made.policy.seed}:{made.number}")
    used = Counter(p for plan in made.before for a in plan.asks if a.kind in (OPTIMISE, CROSSOVER) for p in a.parents)
    beam = made.found.beam
    while beam:
        member = min(beam, key=lambda m: (used[m.specimen.id], beam.index(m)))
        s = member.specimen
        where = _target(member, rng)
        turn = f"built on {used[s.id]} times so far" if used[s.id] else "not built on yet"
        state = f"{s.scores[where].words} at {where}" if where else "kept for its novelty"
        yield OPTIMISE, f"{s.id[:SHOWN]} is right ({state}), {turn}", (s.id,), s.bins.get(where, ())
        used[s.id] += 1


def _target(member: Member, rng: random.Random) -> str:
    """The range to be improved: the worst ratio where there are times, else one of its own by lot."""
    s = member.specimen
    where = list(member.ranges) or sorted(s.scores)
    if not where:
        return ""
    timed = [w for w in where if s.scores[w].tier == TIMED]
    return max(timed, key=lambda w: s.scores[w].value) if timed else rng.choice(where)
