"""Starting a run, and taking up one that was left: both drive the same graph over the run folder.

    begin(runs, op, settings, command) -> Run
    work_on(run, op, settings, proposer, cache, observer) -> Ended

Not covered: choosing the proposer, showing progress, promoting.
"""

import functools
import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import kgen
from kgen.contract.op import Op
from kgen.loop.events import Observer, silent
from kgen.loop.learning import teach
from kgen.loop.rounds import read_rounds
from kgen.loop.settings import Settings
from kgen.loop.standing import standings
from kgen.loop.steps import reopen, verdicts
from kgen.loop.work import Work
from kgen.pool.base import Executor
from kgen.pool.local import LocalExecutor
from kgen.proposers.base import Listener, Proposer
from kgen.records import GATES, Status, Verdict, to_json
from kgen.store.errors import IntegrityError, StoreError
from kgen.store.runs import Run, Runs

PROMOTABLE, STAGED, REFUSED, ERROR, NOTHING, INTERRUPTED = (
    "promotable",
    "staged",
    "refused",
    "error",
    "nothing",
    "interrupted",
)

# Nothing about a run leaves this machine, and a checkpoint may hold plain values only. Both are read at import.
LANGGRAPH = {"LANGSMITH_TRACING": "false", "LANGGRAPH_STRICT_MSGPACK": "true"}


@dataclass(frozen=True)
class Ended:
    """How a run came to its end: the best that a candidate reached, and why no round followed."""

    outcome: str
    why: str


def begin(runs: Runs, op: Op, settings: Settings, command: str) -> Run:
    """A new run folder with its settings. Raises StoreError."""
    return runs.create(op.name, command, kgen.__version__, to_json(settings))


def work_on(
    run: Run,
    op: Op,
    settings: Settings,
    proposer: Proposer,
    cache: Path,
    observer: Observer = silent,
    kernels: Path | None = None,
    executor: Executor | None = None,
) -> Ended:
    """Hold the run and take it to its end; `kernels`: the set whose serving kernels have to be beaten.

    `executor`: where the gates run, this machine by default; it is closed at the end.
    Raises LockBusy, Waiting, ProposerFailure, StoreError, NoSandboxError, ... Interrupted by an exception, the run says
    so and can be taken up again.
    """
    os.environ.update(LANGGRAPH)
    from kgen.loop.graph import drive  # LangGraph takes a second to import

    _settled()
    with run.lock():
        _whole(run)
        work = Work(run, op, settings, proposer, cache, observer, kernels, executor=executor or LocalExecutor())
        reopen(work)
        work.spent = sum(r.seconds for r in read_rounds(run))
        finished = False
        try:
            why = drive(work)
            finished = True
        finally:
            work.close(at_once=not finished)
            if not finished:
                run.mark(INTERRUPTED)
        ended = Ended(outcome(verdicts(run.folders())), why)
        run.finish(ended.outcome)
        _teach(work)
        if isinstance(proposer, Listener):
            proposer.ended(run.path, ended.outcome, ended.why, standings(run, op, settings, over=ended.why))
    return ended


@functools.cache
def _settled() -> None:
    """Once a process: what its imports made stays, and the collector need not walk through it again and again, which
    took a seventh of its own CPU time."""
    gc.freeze()


def _teach(work: Work) -> None:
    """A run that has come to its end stays so: that its lessons cannot be kept is said, and fails nothing."""
    try:
        kept = teach(work)
    except (StoreError, IntegrityError) as error:
        work.say(f"the lessons of this run are not kept: {error}")
        return
    for line in kept.damaged if kept else ():
        work.say(f"a lesson is left out: {line}")


def _whole(run: Run) -> None:
    """Raises IntegrityError for what is damaged or of a newer kgen, before anything of the run is written."""
    for folder in run.folders():
        folder.candidate()
        folder.builds()
        folder.verdict()
        for gate in GATES:
            folder.result(gate)


def outcome(found: Sequence[Verdict]) -> str:
    """The best of the verdicts; an error only where nothing got further."""
    if any(v.promotable for v in found):
        return PROMOTABLE
    if any(v.staged for v in found):
        return STAGED
    failures = [v.failed for v in found]
    if any(f is not None and f.status is Status.ERROR for f in failures):
        return ERROR
    return REFUSED if found else NOTHING
