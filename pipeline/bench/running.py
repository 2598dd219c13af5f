"""One proposer at one problem, through the real loop: how far it came, how soon, and for how much.

Without a GPU the goal is a staged candidate, and its cost is the static one; times are those of this machine.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from kgen.bench.problems import BenchProblem, recorded
from kgen.loop.building import quick_result
from kgen.loop.events import Event
from kgen.loop.rounds import read_rounds
from kgen.loop.session import begin, work_on
from kgen.loop.settings import Settings
from kgen.ops import REGISTRY
from kgen.pool.local import LocalExecutor
from kgen.proposers.base import Proposer, ProposerFailure
from kgen.proposers.transcript import Transcript
from kgen.records import GATES, Candidate, Origin, Status
from kgen.store.candidates import CandidateFolder
from kgen.store.runs import Run, Runs

NEAR = 1.25  # of the best known cost
ARCH = "sm_90a"
MakeProposer = Callable[[Path], Proposer]  # given the run folder with the recorded answers


@dataclass(frozen=True)
class Result:
    """`gates`: passed and judged, by gate. Seconds and USD up to the first staged candidate, and to the first one
    within NEAR of the best known; None where there was none. `ratio`: of the best one. `breaches`: of what is expected.
    """

    SCHEMA: ClassVar[str] = "kgen.bench-result/1"
    problem: str
    candidates: int
    gates: Mapping[str, tuple[int, int]]
    staged_s: float | None
    staged_usd: float | None
    near_s: float | None
    near_usd: float | None
    ratio: float | None
    seconds: float
    usd: float
    tokens: int
    ended: str
    breaches: tuple[str, ...] = ()


class KeptExecutor(LocalExecutor):
    """Stays warm from one run to the next."""

    def close(self, at_once: bool = False) -> None:
        if at_once:
            super().close(at_once)

    def end(self) -> None:
        super().close()


@dataclass
class Clock:
    """Sees the gates' results as they come. `staged`: candidate -> seconds and USD so far."""

    run: Run
    started: float = field(default_factory=time.monotonic)
    staged: dict[str, tuple[float, float]] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        if event.result is not None and event.result.gate == GATES[1] and event.result.passed:
            seconds = round(time.monotonic() - self.started, 2)
            self.staged.setdefault(event.candidate, (seconds, Transcript(self.run.path).cost_usd))


def attempt(
    problem: BenchProblem,
    make: MakeProposer,
    folder: Path,
    executor: LocalExecutor,
    max_usd: float = 0.0,
    seed: int = 0,
) -> Result:
    """`folder`: for runs and builds, which problems share."""
    op = REGISTRY.get(problem.op)
    answers = recording(problem, folder / "recorded")
    proposer = make(answers)
    at_once = proposer.name == "search"  # it learns nothing from a static verdict: all in one round
    asked = Settings(
        op=op.name,
        proposer=proposer.name,
        seed=seed,
        rounds=1 if at_once else problem.rounds,
        candidates=problem.candidates,
        minutes=problem.minutes,
        max_usd=max_usd,
        archs=(ARCH,),
        dims=(problem.dims,),
        bins=problem.bins,
        finalists=1,
        replay=str(answers) if proposer.name == "replay" else "",
    )
    settings = asked.checked(op)
    run = begin(Runs(folder / "runs"), op, settings, "kgen bench-agent")
    clock = Clock(run)
    try:
        ended = work_on(run, op, settings, proposer, folder / "cache", clock, executor=executor).outcome
    except ProposerFailure as failure:
        ended = f"no answer: {failure}"
    return _result(problem, run, clock, ended, proposer.name)


def recording(problem: BenchProblem, runs: Path) -> Path:
    """A run folder whose candidates are the recorded answers, for `replay`."""
    op = REGISTRY.get(problem.op)
    settings = Settings(op.name, "mailbox", archs=(ARCH,), dims=(problem.dims,), bins=problem.bins).checked(op)
    settings = replace(settings, rounds=problem.rounds, candidates=problem.candidates)
    run = begin(Runs(runs), op, settings, "kgen bench-agent")
    with run.lock():
        for source in recorded(problem):
            run.add(Candidate(op.name, source, Origin("mailbox")))
    return run.path


def _result(problem: BenchProblem, run: Run, clock: Clock, ended: str, proposer: str) -> Result:
    folders = run.folders()
    costs = {f.short_id: _cost(f) for f in folders}
    staged = [(*clock.staged[f.short_id], costs[f.short_id]) for f in folders if f.short_id in clock.staged]
    staged = sorted((seconds, usd, cost) for seconds, usd, cost in staged)
    near = [entry for entry in staged if entry[2] <= NEAR * problem.hidden.best_us]
    never: tuple[None, None, None] = (None, None, None)
    first, close = staged[0] if staged else never, near[0] if near else never
    usages = [entry.usage for entry in read_rounds(run)]
    return Result(
        problem=problem.name,
        candidates=len(folders),
        gates=_gates(folders),
        staged_s=first[0],
        staged_usd=first[1],
        near_s=close[0],
        near_usd=close[1],
        ratio=round(min(cost for _, _, cost in staged) / problem.hidden.best_us, 3) if staged else None,
        seconds=round(time.monotonic() - clock.started, 1),
        usd=Transcript(run.path).cost_usd,
        tokens=sum(int(u.get("prompt_tokens", 0)) + int(u.get("completion_tokens", 0)) for u in usages),
        ended=ended,
        breaches=tuple(_breaches(problem, folders, proposer)),
    )


def _cost(folder: CandidateFolder) -> float:
    result = quick_result(folder)
    return float(result.evidence["cost"]["us"]) if result is not None and result.passed else float("inf")


def _gates(folders: Sequence[CandidateFolder]) -> dict[str, tuple[int, int]]:
    """Passed and judged of each gate; what was only skipped was not judged."""
    passed, judged = Counter[str](), Counter[str]()
    for folder in folders:
        for gate in GATES:
            result = folder.result(gate)
            if result is not None and result.status in (Status.PASS, Status.FAIL):
                judged[gate] += 1
                passed[gate] += result.passed
    return {gate: (passed[gate], judged[gate]) for gate in GATES if judged[gate]}


def _breaches(problem: BenchProblem, folders: Sequence[CandidateFolder], proposer: str) -> list[str]:
    """What came out otherwise than the problem's author knows it must."""
    if proposer != "replay":
        return []
    wrong, right = recorded(problem)
    found = {f.candidate().source: f.verdict() for f in folders}
    said = []
    failed = verdict.failed if (verdict := found.get(wrong)) is not None else None
    if failed is None or failed.code != problem.hidden.plant_code:
        said.append(f"the planted fault is {failed.code if failed else 'not refused'}, not {problem.hidden.plant_code}")
    if (verdict := found.get(right)) is None or not verdict.staged:
        said.append("the right answer was not staged")
    return said
