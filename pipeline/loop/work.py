"""What the stages of a run share: the run folder, the op, the proposer, the compile gate, the clock, the watcher."""

import functools
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kgen.contract.op import Op
from kgen.gates import kinds
from kgen.gates.compile import BuildGate
from kgen.loop.events import Event, Observer, silent
from kgen.loop.settings import Settings
from kgen.loop.spending import Ledger
from kgen.pool.base import Executor
from kgen.pool.local import LocalExecutor
from kgen.proposers.base import Proposer
from kgen.records import GateResult, Status
from kgen.store.candidates import CandidateFolder
from kgen.store.runs import Run

OUT_OF_TIME = "out_of_time"  # the last word of a skip's code when the run's minutes were used up
OUT_OF_BUDGET = "out_of_budget"  # the same for its GPU-seconds
NO_GPU, OTHER_GPU = "no_gpu", "other_gpu"


@dataclass
class Work:
    """One process's work on one run; the run's lock is held. `spent` are seconds of rounds finished earlier."""

    run: Run
    op: Op
    settings: Settings
    proposer: Proposer
    cache: Path
    observer: Observer = silent
    kernels: Path | None = None  # the set whose serving kernels are baselines
    spent: float = 0.0
    started: float = field(default_factory=time.monotonic)
    stopping: threading.Event = field(default_factory=threading.Event)
    executor: Executor = field(default_factory=LocalExecutor)

    @functools.cached_property
    def arch(self) -> str:
        """The GPU that the executor has, "" without one for this op: a claimed one where it can choose."""
        if not kinds.of(self.op).here:
            return ""
        found = self.executor.archs()
        return next((arch for arch in self.settings.archs if arch in found), found[0] if found else "")

    @functools.cached_property
    def gate(self) -> BuildGate:
        """Made on first use: a run that only waits for GPU gates needs no compiler. Raises NoSandboxError, ..."""
        return self.executor.gate(self.op, self.cache, self.settings.unsafe)

    @functools.cached_property
    def ledger(self) -> Ledger:
        """What the run has spent, and may still spend."""
        return Ledger(self.run, self.settings)

    def close(self, at_once: bool = False) -> None:
        """End the executor's work; `at_once`: without waiting for builds, whose results are then dropped."""
        self.stopping.set()
        if at_once:
            self.executor.close(at_once)
        if "gate" in self.__dict__:
            self.gate.close()
        self.executor.close(at_once)

    @property
    def seconds_left(self) -> float:
        return self.settings.minutes * 60.0 - self.spent - (time.monotonic() - self.started)

    def folder(self, name: str) -> CandidateFolder:
        return CandidateFolder(self.run.path / name, self.op.name, self.run.durable)

    def folders(self, names: Iterable[str]) -> list[CandidateFolder]:
        return [self.folder(name) for name in names]

    def say(self, text: str) -> None:
        self.observer(Event("say", text))

    def stage(self, text: str, total: int) -> None:
        self.observer(Event("stage", text, total))

    def step(self, text: str, candidate: str = "", result: GateResult | None = None) -> None:
        self.observer(Event("step", text, candidate=candidate, result=result))

    def finished(self, result: GateResult | None) -> bool:
        """Whether a stored result stands: errors are tried again, and so are skips whose reason has gone."""
        if result is None or result.status is Status.ERROR:
            return False
        reason = result.code.rpartition(".")[2]
        if result.interpreted or (result.status is Status.SKIP and reason in (NO_GPU, OTHER_GPU)):
            return self.arch not in self.settings.archs
        return reason not in (OUT_OF_TIME, OUT_OF_BUDGET)
