"""A run that replays another one: what a clock said then is taken over, everything else is found anew.

    recording(work) -> Recording | None      what a `replay` run repeats, None for any other run
    difference(a, b) -> Difference           the first place where two runs are not the same, times excluded

Not covered: giving the recorded answers again (the `replay` proposer does).
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from kgen.loop.plans import Decision, Plan, read_plans
from kgen.loop.rounds import Ranked, read_rounds
from kgen.loop.settings import Settings
from kgen.loop.stopping import BY_CLOCK
from kgen.promotion.gather import EVIDENCE
from kgen.records import PerfPoint, SignedEvidence, to_json
from kgen.store.candidates import CandidateFolder
from kgen.store.documents import read_record
from kgen.store.runs import RUN, Run


@dataclass(frozen=True)
class Recording:
    """The recorded run."""

    run: Run

    def points(self, short_id: str) -> tuple[PerfPoint, ...]:
        """The timed points of a candidate then, () without any."""
        found = next((f.file(EVIDENCE) for f in self.run.folders() if f.short_id == short_id), None)
        return read_record(SignedEvidence, found).evidence.points if found and found.exists() else ()

    def order(self, number: int, names: Collection[str]) -> tuple[Ranked, ...]:
        """The order by measured times of a round's candidates then, () where it was not measured or is of others."""
        order = next((r.order for r in read_rounds(self.run) if r.number == number), ())
        same = {r.candidate for r in order} == set(names)
        return order if same and any(r.measured for r in order) else ()

    def ending(self, number: int) -> Decision | None:
        """The decision to end before this round, if it was a clock's, or an account's."""
        found = next((p.stop for p in read_plans(self.run) if p.number == number), None)
        return found if found is not None and found.rule in BY_CLOCK else None


def recording(settings: Settings) -> Recording | None:
    path = Path(settings.replay)
    return Recording(Run(path)) if settings.replay and (path / RUN).is_file() else None


@dataclass(frozen=True)
class Difference:
    """`said`: one line, "" when the runs are the same. `compared`: how much of what was looked at before it."""

    said: str
    compared: dict[str, int]


def difference(a: Run, b: Run) -> Difference:
    """Round by round: plan, candidates, codes. Decisions of a clock count as the same. Raises IntegrityError."""
    compared = {"rounds": 0, "asks": 0, "decisions": 0, "candidates": 0, "codes": 0}
    for line in _lines(a, b, compared):
        return Difference(line, compared)
    return Difference("", compared)


def _lines(a: Run, b: Run, compared: dict[str, int]) -> Iterator[str]:
    plans = [{p.number: p for p in read_plans(run)} for run in (a, b)]
    rounds = [{r.number: r for r in read_rounds(run)} for run in (a, b)]
    for number in sorted({*plans[0], *plans[1], *rounds[0], *rounds[1]}):
        if plans[0] and plans[1]:  # runs of before there were plans have none
            yield from _plan_lines(f"round {number}", plans[0].get(number), plans[1].get(number), compared)
        mine, other = ((r.candidates if (r := of.get(number)) else ()) for of in rounds)
        for place, (x, y) in enumerate(zip_longest(mine, other, fillvalue=""), 1):
            yield from _candidate_lines(f"round {number}, candidate {place}", (a, x), (b, y), compared)
        compared["rounds"] += number in rounds[0]


def _plan_lines(where: str, a: Plan | None, b: Plan | None, compared: dict[str, int]) -> Iterator[str]:
    if a is None or b is None:
        yield f"{where}: only one of the runs has a plan for it"
        return
    for part in ("asks", "decisions"):
        for place, (x, y) in enumerate(zip_longest(getattr(a, part), getattr(b, part)), 1):
            if _seen(x) != _seen(y):
                yield f"{where}, {part} {place}: {_short(x)} | {_short(y)}"
            compared[part] += 1


def _seen(value: Any) -> Any:
    """What of an ask or a decision has to be the same."""
    by_clock = isinstance(value, Decision) and value.rule in BY_CLOCK
    return (value.what, value.rule) if by_clock else to_json(value)


def _short(value: Any) -> str:
    """An ask or a decision in a few words."""
    name = getattr(value, "kind", getattr(value, "what", "none"))
    return f"{name}: {getattr(value, 'reason', '')}"[:160]


def _candidate_lines(
    where: str, one: tuple[Run, str], other: tuple[Run, str], compared: dict[str, int]
) -> Iterator[str]:
    if one[1] != other[1]:
        yield f"{where}: {one[1] or 'none'} | {other[1] or 'none'}"
        return
    codes = [_codes(CandidateFolder(run.path / name, run.info.op)) for run, name in (one, other)]
    for x, y in zip_longest(*codes, fillvalue="none"):
        if x != y:
            yield f"{where} ({one[1]}): {x} | {y}"
        compared["codes"] += 1
    compared["candidates"] += 1


def _codes(folder: CandidateFolder) -> list[str]:
    folder.candidate()  # whole, and the one that its name says
    verdict = folder.verdict()
    return [r.code for r in verdict.results] if verdict else ["no verdict"]
