"""Runner job `decode`: perform a list of exercises with one side in the seats of a decode model, and leave what came.

The side is stock, the candidate's artefacts, the artefacts loaded but switched off, a mutant, or float64. Records:

    {"model": label, "weights": checksum}                       at each model's first exercise
    {"exercise": name, "mode": mode, "tensors": {name: ref}, "batches": [attestation records], "words": {...}}
    {"timed": what, "seconds": wall time}                       after a model's weights, and each exercise in a mode

Not covered: comparisons and answers; this process knows none of the other sides.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kgen.gates.modeleval import exercise as kinds
from kgen.gates.modeleval import perform, perform_tasks
from kgen.gates.modeleval.exercise import EAGER, Exercise, Seeds
from kgen.gates.modeleval.loaded import seating
from kgen.gates.modeleval.perform import Done
from kgen.gates.modeleval.stage import Stage
from kgen.gates.runner.job import LoadSpec
from kgen.gates.runner.out import Out
from kgen.model.decoder.weights import checksum
from kgen.ops import REGISTRY
from kgen.records import from_json

EXACT = "float64"  # the side without roundings
Performer = Callable[[Stage, Exercise, str], Iterator[Done]]
PERFORMERS: Mapping[str, Performer] = {
    kinds.FORCED: perform.forced,
    kinds.FILLED: perform.forced,
    kinds.FREE: perform.free,
    kinds.TASKS: perform_tasks.tasks,
    kinds.LONG: perform_tasks.long,
    kinds.VERIFY: perform_tasks.verify,
    kinds.CONSTRAINED: perform_tasks.constrained,
    kinds.SAMPLING: perform_tasks.sampling,
}


def run(job: dict[str, Any], out: Out) -> dict[str, Any]:
    """`job`: exercises, seeds, loads, side, enabled, device, arch, cache, checkpoint."""
    device, exact = str(job["device"]), job["side"] == EXACT
    specs = [from_json(LoadSpec, value) for value in job["loads"]]
    out.at("load")
    seats = seating(specs, device, Path(job["cache"]), bool(job["enabled"]), REGISTRY)
    stage = Stage(
        registry=REGISTRY,
        seating=seats,
        device=device,
        arch=str(job["arch"]),
        seeds=from_json(Seeds, job["seeds"]),
        checkpoint=Path(job["checkpoint"]),
        side=str(job["side"]),
        exact=exact,
    )
    model = ""
    for exercise in (from_json(Exercise, value) for value in job["exercises"]):
        if (label := f"{exercise.way.config}/{exercise.way.depth}") != model:
            model, began = label, time.monotonic()
            out.record({"model": model, "weights": checksum(stage.weights(exercise))})
            _time(out, f"weights of {model}", began)
        for mode in (EAGER,) if exact else exercise.modes:
            began = time.monotonic()
            with out.candidate(f"{exercise.name} {mode}", device):
                for done in PERFORMERS[exercise.kind](stage, exercise, mode):
                    _leave(out, exercise, done)
            _time(out, f"{exercise.name} {mode}", began)
    return {}


def _time(out: Out, what: str, began: float) -> None:
    out.record({"timed": what, "seconds": round(time.monotonic() - began, 2)})


def _leave(out: Out, exercise: Exercise, done: Done) -> None:
    tensors = {name: out.tensor(value) for name, value in done.tensors.items()}
    batches = [batch.done(exercise.profiled) for batch in done.batches]
    record = {"exercise": exercise.name, "mode": done.mode, "tensors": tensors, "batches": batches}
    out.record({**record, "words": done.words or {}})
