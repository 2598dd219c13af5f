"""The processes of the evaluation and what they leave: started side by side, read back whole, checked for gaps."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from kgen.gates.modeleval.exercise import EAGER, FREE, OTHER, Exercise, Seeds
from kgen.gates.modeleval.questions import seed_of
from kgen.gates.runner.host import Outcome
from kgen.gates.runner.job import Built, LoadSpec
from kgen.records import to_json

Running = Callable[..., AbstractContextManager[Outcome]]
STALL = 240.0  # seconds without a word from a process: thousands of steps, while others take turns on the GPU
LEAST = 5.0  # seconds that must be left for a process to be started
ROOM = 6 << 30  # bytes of output that a process may leave
LATE = "late"  # beside the runner host's statuses: the gate's time was up before the process had ended
FLOAT64, STOCK, CANDIDATE, OFF, MUTANT = "float64", "stock", "candidate", "off", "mutant"


@dataclass(frozen=True)
class Part:
    """One process: which side, of which model, with which builds, on which exercises. `kind`: a constant above."""

    kind: str
    model: str
    exercises: tuple[Exercise, ...]
    builds: tuple[Built, ...] = ()
    label: str = ""  # of a mutant: its op and defect

    @property
    def name(self) -> str:
        return " ".join(p for p in (self.kind, self.label, self.model) if p)

    def modes(self, exercise: Exercise) -> list[str]:
        """The modes in which this part has to leave a record."""
        if self.kind == FLOAT64:
            return [EAGER]
        others = [f"{OTHER} {m}" for m in exercise.modes] if self.kind == STOCK and exercise.kind == FREE else []
        return [*exercise.modes, *(others if exercise.other else [])]


@dataclass(frozen=True)
class Record:
    exercise: str
    mode: str
    tensors: Mapping[str, torch.Tensor]  # on the CPU
    batches: tuple[Mapping[str, Any], ...]
    words: Mapping[str, str]


@dataclass(frozen=True)
class Left:
    """What one process left: the runner host's status (or LATE) and message, and its records.

    Records of a process that was ended hold no tensors: what it wrote last may be cut.
    """

    status: str
    message: str
    weights: Mapping[str, int]
    records: Mapping[tuple[str, str], Record]  # by exercise and mode
    seconds: float = 0.0  # of wall time, from start to end
    timed: Mapping[str, float] = field(default_factory=dict)  # parts of them: a model's weights, an exercise in a mode

    def of(self, exercise: Exercise, mode: str) -> Record:
        return self.records[exercise.name, mode]


def exercises_of(kind: str, exercises: Iterable[Exercise]) -> tuple[Exercise, ...]:
    """Those that a side performs: float64 what it can be compared with, switched off and mutants the brief ones."""
    if kind == FLOAT64:
        return tuple(e for e in exercises if e.exact)
    if kind in (OFF, MUTANT):
        return tuple(e for e in exercises if e.brief)
    return tuple(exercises)


@dataclass(frozen=True)
class Starter:
    """How processes are started. `deadline` is a time.monotonic() value."""

    running: Running
    to_spec: Callable[[Built], LoadSpec]
    seeds: Seeds
    device: str
    arch: str
    cache: Path
    checkpoint: Path
    deadline: float

    def start(self, pool: ThreadPoolExecutor, part: Part) -> "Future[Left]":
        side = CANDIDATE if part.kind in (OFF, MUTANT) else part.kind
        draws = seed_of(self.seeds.draws, side)  # other tokens are drawn on each side of a comparison
        job = {
            "exercises": [to_json(e) for e in _unprofiled(part)],
            "seeds": to_json(Seeds(self.seeds.weights, self.seeds.tokens, draws)),
            "loads": [to_json(self.to_spec(b)) for b in part.builds],
            "side": part.kind,
            "enabled": part.kind != OFF,
            "device": self.device,
            "arch": self.arch,
            "cache": str(self.cache),
            "checkpoint": str(self.checkpoint),
        }
        return pool.submit(self._run, job)

    def _run(self, job: Mapping[str, Any]) -> Left:
        if (left := self.deadline - time.monotonic()) < LEAST:
            return Left(LATE, "not started", {}, {})
        room = ROOM if self.device != "cpu" else 0
        with self.running("decode", job, deadline=left, stall=STALL, need_bytes=room) as outcome:
            weights: dict[str, int] = {}
            records: dict[tuple[str, str], Record] = {}
            timed: dict[str, float] = {}
            for found in outcome.records:
                if "timed" in found:
                    timed[str(found["timed"])] = float(found["seconds"])
                    continue
                if "model" in found:
                    weights[str(found["model"])] = int(found["weights"])
                    continue
                kept = found["tensors"].items() if outcome.status == "done" else ()
                tensors = {name: outcome.tensor(ref) for name, ref in kept}
                record = Record(found["exercise"], found["mode"], tensors, tuple(found["batches"]), found["words"])
                records[record.exercise, record.mode] = record
            late = outcome.status in ("hung", "error") and outcome.seconds >= left
            status = LATE if late else outcome.status
            return Left(status, outcome.message, weights, records, outcome.seconds, timed)


def seconds(left: Left) -> dict[str, float]:
    """Where a process's time went; what is left of the whole is starting, and loading objects."""
    return {"process": round(left.seconds, 1), **{name: round(s, 1) for name, s in left.timed.items()}}


def _unprofiled(part: Part) -> tuple[Exercise, ...]:
    """A mutant's numbers are judged, not its launches: its process need not wait for a profiler."""
    return tuple(replace(e, profiled=e.profiled and part.kind != MUTANT) for e in part.exercises)


def gaps(part: Part, left: Left) -> list[str]:
    """Records that a part should have left and did not: nobody would judge those exercises."""
    missing = [(e.name, mode) for e in part.exercises for mode in part.modes(e) if (e.name, mode) not in left.records]
    return [f"{part.name}: {name} left no record of {mode}" for name, mode in missing]


def unreached(part: Part, left: Left) -> list[str]:
    """What a part had not done when the gate's time was up, in one line; nothing if it came to its end."""
    if left.status != LATE:
        return []
    names = [f"{e.name} {mode}" for e in part.exercises for mode in part.modes(e) if (e.name, mode) not in left.records]
    what = f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else "".join(names) or "its end"
    return [f"{part.name} did not reach {what} ({left.message})"]


def strangers(parts: Sequence[Part], left: Mapping[str, Left]) -> list[str]:
    """Parts that drew other weights than another part of the same model from the same seed."""
    found: dict[str, tuple[int, str]] = {}
    lines = []
    for part in parts:
        for model, checksum in left[part.name].weights.items():
            first = found.setdefault(model, (checksum, part.name))
            if first[0] != checksum:
                lines.append(f"{part.name} has other weights of {model} than {first[1]} from the same seed")
    return lines
