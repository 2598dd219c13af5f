"""What a stage can be told to do without torch: promote, roll back, read on and on, fill a run folder.

A job gets the watched folder and arguments. `note` writes into the layer's log what the job has been told is done.
"""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.sets import CURRENT, KEY, OP, WIN, make_case

from kgen.promotion import Case, promote, rollback
from kgen.records import Candidate, GateResult, Origin, Status, Verdict
from kgen.store import KernelSet, Runs, SetPath

SET, RUNS, STOP = "set", "runs", "stop"
READS = 20_000  # of one reader at most: it ends when it finds the file `stop`, which a writer leaves at its end


@functools.cache
def case(text: str) -> Case:
    return make_case(text, {1: WIN})


def place(root: Path) -> SetPath:
    return SetPath(root / SET)


def note(text: str) -> None:
    ctypes.CDLL(None).layer_note(text.encode())


def promote_one(root: Path, args: dict[str, Any]) -> int:
    seq = promote(place(root), case(args["text"]), CURRENT, KEY).seq
    note(f"promoted {args['text']}")
    return seq


def roll_back(root: Path, args: dict[str, Any]) -> int:
    done = rollback(place(root), OP)
    note("rolled back")
    return done.seq


def promote_many(root: Path, args: dict[str, Any]) -> list[int]:
    numbers = []
    try:
        for n in range(args["count"]):
            numbers.append(promote(place(root), case(f"{args['name']} {n}"), CURRENT, KEY).seq)
    finally:
        (root.parent / STOP).touch()
    return numbers


def turn(root: Path, args: dict[str, Any]) -> list[int]:
    """Rolls back and promotes again, on and on."""
    numbers = []
    try:
        for _ in range(args["count"]):
            numbers.append(rollback(place(root), OP).seq)
            numbers.append(promote(place(root), case(args["text"]), CURRENT, KEY).seq)
    finally:
        (root.parent / STOP).touch()
    return numbers


def read(root: Path, args: dict[str, Any]) -> dict[str, Any]:
    """Loads every champion until the file `stop` is there: what was wrong first, and how often all was right."""
    kernels, good, last = KernelSet(root / SET), 0, 0
    for _ in range(READS):
        if (root.parent / STOP).exists():
            break
        try:
            manifest = kernels.manifest()
            for key in manifest.champions:
                champion = manifest.champion(key)
                assert champion is not None
                kernels.object(champion.objects[key])
                kernels.source(champion), kernels.evidence(champion), kernels.builds(champion)
        except Exception as error:  # noqa: BLE001  # whatever a reader runs into is the finding
            return {"wrong": f"{type(error).__name__}: {error}", "good": good}
        if manifest.seq < last:
            return {"wrong": f"seq went back from {last} to {manifest.seq}", "good": good}
        good, last = good + 1, manifest.seq
    return {"wrong": "", "good": good}


SOURCES = ("# one\n", "# two\n")


def fill_run(root: Path, args: dict[str, Any]) -> None:
    """What a loop stores of a run, told step by step; goes on where an earlier one stopped."""
    runs = Runs(root / RUNS)
    run = runs.list()[-1] if runs.list() else runs.create(OP, "propose", "0.1.0", {"rounds": 1})
    with run.lock():
        note(f"run {run.id}")
        for text in SOURCES:
            folder = run.add(Candidate(OP, text, Origin("search", {"seed": 1})))
            note(f"candidate {folder.path.name}")
            if not folder.interrupted:
                continue
            result = GateResult("compile", Status.PASS, "compile.pass", "built")
            folder.write_result(result)
            note(f"result {folder.path.name}")
            folder.write_verdict(Verdict(folder.candidate().id, (result,)))
            note(f"verdict {folder.path.name}")
        run.finish("refused")
        note("finished")


def end_run(root: Path, args: dict[str, Any]) -> None:
    """A run that has nothing left to do is ended, or is found ended."""
    runs = Runs(root / RUNS)
    run = runs.list()[-1] if runs.list() else runs.create(OP, "propose", "0.1.0")
    with run.lock():
        note(f"run {run.id}")
        run.finish("refused")
        note("finished")


JOBS: dict[str, Callable[[Path, dict[str, Any]], Any]] = {
    "promote": promote_one,
    "rollback": roll_back,
    "promote many": promote_many,
    "turn": turn,
    "read": read,
    "fill run": fill_run,
    "end run": end_run,
}
