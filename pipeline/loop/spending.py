"""What a run may still spend, asked before anything is begun, and what it has spent, noted when it is done.

    ledger = Ledger(run, settings)
    ledger.spent_usd                       by the rounds, failed ones included, but at least what kept answers cost
    with ledger.gpu(folder, gate, name, most) as seconds: ...      0.0 where the GPU budget has no room for it
    with ledger.stage("compile", folders): ...                     wall and CPU seconds of a stage, by candidate
    ledger.time_for("quick", left)         "" where the longest earlier one fits into `left` seconds of the run

GPU seconds are noted before a piece begins, with the most that it may take, and set right when it ends: who is killed
meanwhile has spent the most. Not covered: adding it all up (`ledger`).
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar

from kgen.loop.cpu import cpu_seconds
from kgen.loop.rounds import Cost, read_failed, read_rounds
from kgen.loop.settings import Settings
from kgen.proposers.transcript import Transcript
from kgen.records import GateResult
from kgen.store.candidates import CandidateFolder
from kgen.store.documents import json_bytes, read_record
from kgen.store.runs import Run

GPU_FILE, QUICK = "gpu.json", "quick.json"
PROPOSE = "propose"
RECENT_SECONDS = 0.2  # a busy core's CPU time meanwhile, which the stage that follows is charged with


@dataclass(frozen=True)
class Use:
    """`seconds` that a GPU was held for one piece of a gate; `done`: measured, else the most that it could be."""

    SCHEMA: ClassVar[str] = "kgen.gpu-use/1"
    gate: str
    what: str
    seconds: float
    done: bool = True


@dataclass(frozen=True)
class Uses:
    """<candidate>/gpu.json"""

    SCHEMA: ClassVar[str] = "kgen.gpu-uses/1"
    uses: tuple[Use, ...] = ()


def read_uses(folder: CandidateFolder) -> tuple[Use, ...]:
    """In order. Raises IntegrityError for a damaged file."""
    path = folder.file(GPU_FILE)
    return read_record(Uses, path).uses if path.exists() else ()


@dataclass
class Ledger:
    """The accounts of one process's work on a run; the run's lock is held. Thread-safe."""

    run: Run
    settings: Settings
    costs: list[Cost] = field(default_factory=list)  # of the round in work
    longest: dict[str, float] = field(default_factory=dict)  # seconds of the longest action of a kind
    clock: Callable[[], float] = time.monotonic
    _change: threading.Condition = field(default_factory=threading.Condition)
    _held: dict[int, float] = field(default_factory=dict)  # GPU seconds of pieces under way
    _numbers: int = 0
    _cpu: tuple[float, float] = (-math.inf, 0.0)  # when it was looked up last, and what it was

    def __post_init__(self) -> None:
        for folder in self.run.folders():
            self.took("quick", sum(_seconds([folder], [QUICK]).values()))
            for use in read_uses(folder):
                self.took(use.gate, use.seconds if use.done else 0.0)

    @property
    def spent_usd(self) -> float:
        """By the rounds, but at least what the kept answers cost: some are paid for and in no round (yet)."""
        by_rounds = sum(r.cost_usd for r in read_rounds(self.run)) + sum(f.cost_usd for f in read_failed(self.run))
        return max(by_rounds, Transcript(self.run.path).cost_usd)

    @property
    def gpu_spent(self) -> float:
        return sum(use.seconds for folder in self.run.folders() for use in read_uses(folder))

    @property
    def gpu_left(self) -> float:
        """Seconds; infinite without a limit."""
        return self.settings.max_gpu_seconds - self.gpu_spent if self.settings.max_gpu_seconds else float("inf")

    def took(self, what: str, seconds: float) -> None:
        self.longest[what] = max(self.longest.get(what, 0.0), seconds)

    def time_for(self, what: str, left: float) -> str:
        """Why an action of this kind is not begun with `left` seconds of the run, "" where it may be."""
        if left <= 0:
            return "the run's minutes were used up before its turn"
        if (need := self.longest.get(what, 0.0)) > left:
            return f"{left:.0f} s of the run are left, and the longest one of its kind took {need:.0f} s"
        return ""

    def round_refused(self, left: float, gpu: bool) -> str:
        """Why no further round is begun: it would have to stop in the middle. "" where it may be."""
        need = self.longest.get(PROPOSE, 0.0) + self.longest.get("quick", 0.0)
        if left < need:
            return f"{left:.0f} s of the run are left, and asking and compiling took up to {need:.0f} s"
        pieces = [seconds for gate, seconds in self.longest.items() if gate.startswith("unit-")]
        if gpu and self.gpu_left <= max(pieces, default=0.0):
            return f"{max(0.0, self.gpu_left):.0f} GPU-seconds are left of {self.settings.max_gpu_seconds:g}"
        return ""

    @contextmanager
    def gpu(self, folder: CandidateFolder, gate: str, what: str, most: float) -> Iterator[float]:
        """Seconds that this piece may take, at most `most`; 0.0 when the budget does not reach for one of its kind.

        Where other pieces under way may yet leave enough, it waits for them.
        """
        number, allowed = self._reserve(folder, gate, what, most)
        started = self.clock()
        try:
            yield allowed
        finally:
            if allowed:
                seconds = self.clock() - started
                with self._change:
                    del self._held[number]
                    self._note(folder, number, Use(gate, what, seconds))
                    self.took(gate, seconds)
                    self._change.notify_all()

    def _reserve(self, folder: CandidateFolder, gate: str, what: str, most: float) -> tuple[int, float]:
        with self._change:
            while True:
                left, need = self.gpu_left, self.longest.get(gate, 0.0)
                if left > need or not self._held:
                    break
                self._change.wait()
            if left <= need:
                return 0, 0.0
            self._numbers += 1
            allowed = min(most, left)
            self._held[self._numbers] = allowed
            self._note(folder, self._numbers, Use(gate, what, allowed, done=False))
            return self._numbers, allowed

    def _note(self, folder: CandidateFolder, number: int, use: Use) -> None:
        """Add a piece that begins, or set right the one that ends: the last of its name that is not done."""
        uses = list(read_uses(folder))
        open_ones = [i for i, u in enumerate(uses) if not u.done and (u.gate, u.what) == (use.gate, use.what)]
        if use.done and open_ones:
            uses[open_ones[-1]] = use
        else:
            uses.append(use)
        folder.write(GPU_FILE, json_bytes(Uses(tuple(uses))))

    @contextmanager
    def stage(self, gate: str, folders: Sequence[CandidateFolder] = (), beside: str = "") -> Iterator[None]:
        """Wall and CPU seconds of what is done meanwhile, for the round.

        `folders`: whose results it brings, in <gate>.json and in the file `beside` it.
        """
        files = tuple(filter(None, (f"{gate}.json", beside)))
        before, cpu, started = _seconds(folders, files), self._cpu_by_now(), time.monotonic()
        try:
            yield
        finally:
            wall = time.monotonic() - started
            after = _seconds(folders, files)
            own = {name: round(after[name] - before[name], 3) for name in after if after[name] > before[name]}
            self.costs.append(Cost(gate, round(wall, 2), round(self._cpu_by_now(fresh=True) - cpu, 2), own))
            if gate == PROPOSE:
                self.took(PROPOSE, wall)

    def _cpu_by_now(self, fresh: bool = False) -> float:
        """CPU seconds so far. Not `fresh`: as the stage before this one left them, where that is no time ago: looking
        through all processes of a machine takes as long as deciding what to build."""
        looked, found = self._cpu
        if fresh or self.clock() - looked > RECENT_SECONDS:
            found = cpu_seconds()
            self._cpu = (self.clock(), found)
        return found

    def settled(self, before: Sequence[Cost] = ()) -> tuple[Cost, ...]:
        """The costs of the round that ends, each kind once, added to those `before`; a new round begins."""
        merged: dict[str, Cost] = {}
        for cost in (*before, *self.costs):
            known = merged.get(cost.gate)
            merged[cost.gate] = cost if known is None else known + cost
        self.costs.clear()
        return tuple(merged.values())


def _seconds(folders: Sequence[CandidateFolder], files: Sequence[str]) -> Mapping[str, float]:
    """Seconds of the results in these files so far, by folder name."""
    there = {f.path.name: [p for name in files if (p := f.file(name)).exists()] for f in folders}
    return {name: sum(read_record(GateResult, p).seconds for p in paths) for name, paths in there.items()}


def shares(cost: Cost) -> dict[str, Cost]:
    """A stage's cost by candidate, in proportion to the seconds of their own results."""
    total = sum(cost.own.values())
    parts = {name: own / total for name, own in cost.own.items() if total}
    return {
        name: replace(cost, wall_s=cost.own[name], cpu_s=cost.cpu_s * part, own={name: cost.own[name]})
        for name, part in parts.items()
    }
