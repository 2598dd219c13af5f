"""The nodes of the graph. Each reads the run folder, does what is not done yet, and writes it there before it returns.

State holds folder names and counters only: losing it loses nothing. Not covered: the order of the nodes (`graph`).
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from kgen.gates.compile import GATE as COMPILE
from kgen.gates.ingest import Refusal
from kgen.loop import matrix
from kgen.loop.asking import ask_all, for_good
from kgen.loop.building import QUICK, full_tier, quick_result, quick_tier
from kgen.loop.counting import count, with_counters
from kgen.loop.history import basis, points_of, specimens
from kgen.loop.intake import judge
from kgen.loop.plan import Policy, kept, plan
from kgen.loop.plans import STOP, Decision, Plan, read_plans, write_plan
from kgen.loop.population import Specimen, population
from kgen.loop.proving import prove_all, settle
from kgen.loop.ranking import costs, ordered
from kgen.loop.replaying import recording
from kgen.loop.rounds import Round, read_rounds, write_failed, write_round
from kgen.loop.situation import situation
from kgen.loop.spending import PROPOSE
from kgen.loop.standing import standings
from kgen.loop.stopping import Standing, stop
from kgen.loop.tools import tools_of
from kgen.loop.work import Work
from kgen.proposers.base import Budget, Listener, ProposalRequest, Proposer
from kgen.records import GATES, Status, Verdict, to_json
from kgen.store.candidates import CandidateFolder


class State(TypedDict):
    round: int  # number of the round in work
    candidates: list[str]  # its folder names
    alive: list[str]  # those that no gate has stopped
    over: str  # why no further round follows; "" while one may


class Waiting(Exception):
    """A person or another agent has to answer first: the message says how. The run can be resumed."""


@dataclass(frozen=True)
class Steps:
    """`work` is this process's share of the run."""

    work: Work

    def plan(self, state: State) -> State:
        """What the next round asks for, or why there is none; recorded with its reasons before anything is asked."""
        work, number = self.work, state["round"] + 1
        if any(r.number >= number for r in read_rounds(work.run)):
            return {**state, "over": ""}  # a resumed run goes through the rounds it had
        plans, history = read_plans(work.run), specimens(work)
        known, before = next((p for p in plans if p.number == number), None), [p for p in plans if p.number < number]
        mark, ending = basis(history), self._ending(number, history)
        policy = Policy(work.settings.seed, work.settings.beam, work.settings.explore)
        if ending is not None:
            made = Plan(number, (), (*kept(population(history, policy.beam)), ending), mark)
        elif known is not None and known.asks and known.basis == mark:
            made = known
        else:
            count = min(work.settings.per_round, self.candidates_left)
            made = replace(plan(number, history, before, policy, count), basis=mark)
        if made != known:
            write_plan(work.run, made)
        return {**state, "over": ending.reason if ending else ""}

    def _ending(self, number: int, history: Sequence[Specimen]) -> Decision | None:
        """Why round `number` is not begun, None while it may be. A first round is always begun."""
        work, recorded = self.work, recording(self.work.settings)
        if number == 1:
            return None
        if recorded is not None and (by_clock := recorded.ending(number)) is not None:
            return by_clock
        left, seconds = self.candidates_left, work.seconds_left
        refused = work.ledger.round_refused(seconds, work.arch in work.settings.archs)
        standing = Standing(number - 1, history, left, seconds, work.ledger.spent_usd, reached(work), refused)
        return stop(standing, work.settings)

    def propose(self, state: State) -> State:
        """Candidates of the next round: those recorded for it, else new ones from the proposer."""
        work, number = self.work, state["round"] + 1
        known = next((r for r in read_rounds(work.run) if r.number == number), None)
        entry = known or self._asked(next(p for p in read_plans(work.run) if p.number == number))
        names = list(entry.candidates)
        return {"round": number, "candidates": names, "alive": names, "over": "" if names else entry.note}

    def _asked(self, planned: Plan) -> Round:
        work, number = self.work, planned.number
        kinds = Counter(kind for a in planned.asks for kind in [a.kind] * a.count)
        wanted = ", ".join(f"{n} × {kind}" for kind, n in kinds.items())
        work.stage(f"round {number}: {work.proposer.name} proposes ({wanted})", 1)
        with work.ledger.stage(PROPOSE):
            answers = ask_all(work.proposer, self._request(number), planned.asks, work.settings.parallel)
        note = "; ".join(dict.fromkeys([*answers.notes, *map(str, answers.failures)]))
        if not answers.candidates:
            if failure := next((f for f in answers.failures if not for_good(f)), None):
                failure.usage = answers.usage
                write_failed(work.run, number, failure)
                raise failure
            if answers.pending:
                raise Waiting("; ".join(answers.pending))
        candidates = answers.candidates[: work.settings.candidates]
        folders = {candidate.id: work.run.add(candidate) for candidate in candidates}
        confused = [c for c, f in folders.items() if f.candidate().id != c]  # a folder is called by 48 bits of an id
        names = tuple(dict.fromkeys(f.path.name for c, f in folders.items() if f.interrupted and c not in confused))
        note = note or ("" if names else "every proposed candidate has been judged before")
        if confused:
            note = f"{confused[0]} is not taken: another candidate of this run has its short id; change its text"
        work.step(f"{len(names)} new candidates{f' ({note})' if note else ''}")
        if not names:
            write_plan(work.run, Plan(number + 1, (), (Decision(STOP, note, rule="proposer"),)))
        return write_round(work.run, Round(number, names, note, to_json(answers.usage.__dict__)))

    def _request(self, number: int) -> ProposalRequest:
        """What all asks of a round share."""
        work = self.work
        settings = work.settings
        judged = [(f, v) for f in work.run.folders() if (v := f.verdict()) is not None]
        known = costs(read_rounds(work.run))
        left = settings.max_usd - work.ledger.spent_usd if settings.max_usd else None
        return ProposalRequest(
            op=work.op,
            problems=matrix.asked(work.op, settings),
            archs=settings.archs,
            run=work.run.path,
            history=tuple((f.candidate(), with_counters(f, v)) for f, v in judged),
            points={f.candidate().id: timed for f, _ in judged if (timed := points_of(work, f))},
            costs={f.candidate().id: known[f.path.name] for f, _ in judged if f.path.name in known},
            seed=settings.seed,
            deadline_s=max(1.0, work.seconds_left),
            budget=Budget(cost_usd=left),
            round=number,
            tools=tools_of(work),
            situation=situation(work, number, [v for _, v in judged]),
            standings=standings(work.run, work.op, settings, judged) if _asks_in_words(work.proposer) else None,
        )

    @property
    def candidates_left(self) -> int:
        return self.work.settings.candidates - len(self.work.run.folders())

    def compile(self, state: State) -> State:
        """Quick tier for all, the full matrix for the best; the order is recorded, so that a resume keeps to it."""
        work = self.work
        started = time.monotonic()
        with work.ledger.stage(COMPILE, work.folders(state["candidates"]), QUICK):
            passed = quick_tier(work, work.folders(state["candidates"]))
        entry = self._round(state)
        if not entry.ranked:
            recorded = recording(work.settings)
            then = recorded.order(entry.number, [f.path.name for f in passed]) if recorded else ()
            entry = write_round(work.run, replace(entry, order=then or ordered(work, passed), ranked=True))
        with work.ledger.stage(COMPILE, work.folders(r.candidate for r in entry.order)):
            survivors = full_tier(work, work.folders(r.candidate for r in entry.order))
        if "gate" in work.__dict__:
            said = f"{work.gate.built} builds made, {work.gate.cached} taken from the cache"
            work.say(f"compile: {said}, in {time.monotonic() - started:.0f} s")
        return {**state, "alive": [f.path.name for f in survivors]}

    def _round(self, state: State) -> Round:
        return next(r for r in read_rounds(self.work.run) if r.number == state["round"])

    def gate(self, gate: str, state: State) -> State:
        """One GPU gate for everything that is alive; a skip goes on, so that each gate says why it did not run."""
        folders = self.work.folders(state["alive"])
        with self.work.ledger.stage(gate, folders):
            results = prove_all(self.work, folders, gate)
        alive = [n for n, r in zip(state["alive"], results, strict=True) if r.status in (Status.PASS, Status.SKIP)]
        if gate == GATES[-1] and self.work.settings.counters:
            count(self.work, self.work.folders(alive))
        return {**state, "alive": alive}

    def judge(self, state: State) -> State:
        """A verdict for every candidate of the round."""
        work = self.work
        for folder in work.folders(state["candidates"]):
            try:
                settle(work, folder)
            except Refusal as refusal:  # our own parts do not make evidence: ours to repair, and to be seen
                work.say(f"{folder.short_id}: {refusal.code}: {refusal}")
            judge(folder)
        self._tell(work.folders(state["candidates"]), state["round"] + 1)
        entry = self._round(state)
        if not entry.judged:
            seconds = time.monotonic() - work.started - self._counted
            costs = work.ledger.settled(entry.costs)
            write_round(work.run, replace(entry, judged=True, seconds=round(entry.seconds + seconds, 1), costs=costs))
        return state

    def _tell(self, folders: Sequence[CandidateFolder], following: int) -> None:
        """A proposer that listens is told the verdicts of a round once all of them are there, and how they stand."""
        work = self.work
        if isinstance(work.proposer, Listener):
            ending = self._ending(following, specimens(work))
            now = standings(work.run, work.op, work.settings, over=ending.reason if ending else "")
            for folder in folders:
                if (verdict := folder.verdict()) is not None:
                    work.proposer.judged(work.run.path, folder.candidate(), verdict, now)

    @property
    def _counted(self) -> float:
        """Seconds of this process that earlier rounds have been charged with."""
        return sum(r.seconds for r in read_rounds(self.work.run)) - self.work.spent

    def resumed(self) -> State:
        """The state from the run folder alone: before the first round that is not judged, else before the next plan;
        over, if the last round brought no candidate."""
        rounds = read_rounds(self.work.run)
        state: State = {"round": rounds[-1].number if rounds else 0, "candidates": [], "alive": [], "over": ""}
        opened = next((r.number for r in rounds if not r.judged and r.candidates), None)
        if opened is not None:
            return {**state, "round": opened - 1}
        return {**state, "over": "" if not rounds or rounds[-1].candidates else rounds[-1].note}


def _asks_in_words(proposer: Proposer) -> bool:
    """Whether somebody reads its questions: a model, or whoever listens. A search has no use for the time it takes."""
    return bool(getattr(proposer, "concurrent", False)) or isinstance(proposer, Listener)


def verdicts(folders: Sequence[CandidateFolder]) -> list[Verdict]:
    return [v for f in folders if (v := f.verdict()) is not None]


def reached(work: Work) -> bool:
    """A candidate is promotable; or it is staged, and there is no GPU here that could say more."""
    found = verdicts(work.run.folders())
    here = work.arch in work.settings.archs
    return any(v.promotable or (v.staged and not here) for v in found)


def reopen(work: Work) -> int:
    """Rounds with results that are to be tried again are open again; returns how many."""
    count = 0
    for entry in read_rounds(work.run):
        if entry.judged and any(_again(work, f) for f in work.folders(entry.candidates)):
            ranked = all(quick_result(f) or f.result(COMPILE) for f in work.folders(entry.candidates))
            kept = entry.ranked and ranked and not any(_quick_again(work, f) for f in work.folders(entry.candidates))
            write_round(work.run, replace(entry, judged=False, ranked=kept))
            count += 1
    return count


def _again(work: Work, folder: CandidateFolder) -> bool:
    verdict = folder.verdict()
    return verdict is None or any(not work.finished(r) for r in verdict.results)


def _quick_again(work: Work, folder: CandidateFolder) -> bool:
    """Whether the candidate failed to come through the quick tier for a reason that was not its own."""
    return quick_result(folder) is None and not work.finished(folder.result(COMPILE))
