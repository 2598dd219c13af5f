"""How many candidates a minute come through compile and interpreter, and what kgen itself adds to each.

    python benchmarks/scale.py [--workers 1 2 4] [--candidates 8] [--executor local|ray] [--record FILE]

Each line is a run of the real loop over the same candidates of `search`, with an empty cache: every candidate is
screened, built with its two mutants, audited, and judged in the PTX interpreter. All figures in ms are by candidate:

    own_ms        CPU time of kgen's own process, all its threads, outside of what `starting_ms` holds
    gates_ms      that part of own_ms in which the gates themselves parse, screen, audit and judge in this process
    starting_ms   CPU time of the same process while it starts builders, recorders and interpreters and waits for them
    sync_ms       wall time inside fsync, which is the disk's
    wall_ms       wall time without anything of others and without fsync: with one worker, what is not overlapped

CPU time does not grow when other software waits for the same cores, as wall time does; it still grows somewhat with
shared caches, so the load average before each run is part of the record. Not in any of them: the first run of the
process, which imports. With `ray`, all are those of the machine that asks.
"""

import argparse
import cProfile
import json
import os
import platform
import pstats
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kgen.gates import compile as compile_gate
from kgen.gates import numeric, parsing
from kgen.gates.audit import limits, phases, ptx
from kgen.gates.audit import object as objects
from kgen.gates.audit.recorder import Recorder
from kgen.gates.builder.pool import Builder
from kgen.gates.runner import host
from kgen.loop.session import begin, work_on
from kgen.loop.settings import Settings
from kgen.ops import REGISTRY
from kgen.pool.choose import choose as executor_of
from kgen.proposers.search import SearchProposer
from kgen.records import GATES
from kgen.store import Runs

OP = "moe_shared"
PLACES: tuple[tuple[Any, str], ...] = (  # others' time
    *((Builder, "build"), (Recorder, "__init__"), (Recorder, "record"), (host, "_run")),
)
SYNC: tuple[tuple[Any, str], ...] = ((os, "fsync"),)
GATES_OWN: tuple[tuple[Any, str], ...] = (
    *((parsing, "parse"), (compile_gate, "screen"), (objects, "check"), (limits, "check")),
    *((ptx, "facts"), (phases, "facts"), (numeric, "judge_outcome")),
)


@dataclass(frozen=True)
class Span:
    """A call: start and end in seconds, and the CPU time that its own thread took for it."""

    start: float
    stop: float
    cpu: float


@contextmanager
def watched(places: Sequence[tuple[Any, str]]) -> Iterator[list[Span]]:
    """The calls of these functions; of one within another, on one thread, the outer one."""
    spans: list[Span] = []
    within = threading.local()
    before = [getattr(owner, name) for owner, name in places]

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if getattr(within, "one", False):
                return function(*args, **more)
            within.one, started, cpu = True, time.monotonic(), time.thread_time()
            try:
                return function(*args, **more)
            finally:
                within.one = False
                spans.append(Span(started, time.monotonic(), time.thread_time() - cpu))

        return call

    for (owner, name), function in zip(places, before, strict=True):
        setattr(owner, name, timed(function))
    try:
        yield spans
    finally:
        for (owner, name), function in zip(places, before, strict=True):
            setattr(owner, name, function)


@contextmanager
def profiled() -> Iterator[list[cProfile.Profile]]:
    """Profiles by CPU time, one of each thread that runs meanwhile."""
    profiles: list[cProfile.Profile] = []

    def begin_thread(*_: Any) -> None:
        profile = cProfile.Profile(time.thread_time)
        profiles.append(profile)
        profile.enable()

    threading.setprofile(begin_thread)
    begin_thread()
    try:
        yield profiles
    finally:
        profiles[0].disable()
        threading.setprofile(None)


def covered(spans: Sequence[Span]) -> float:
    """Seconds in which at least one of them lasted."""
    total, end = 0.0, 0.0
    for span in sorted(spans, key=lambda s: s.start):
        total += max(0.0, span.stop - max(span.start, end))
        end = max(end, span.stop)
    return total


def measure(workers: int, candidates: int, executor: str, folder: Path) -> dict[str, Any]:
    """One run from nothing."""
    op = REGISTRY.get(OP)
    asked = Settings(OP, "search", candidates=candidates, archs=("sm_90a",), dims=("nano",), bins=(1,))
    settings = Settings(**{**asked.checked(op).__dict__, "finalists": candidates})
    run = begin(Runs(folder / "runs"), op, settings, "benchmarks/scale.py")
    load = os.getloadavg()[0]
    place = executor_of(executor, workers=workers)
    with watched(PLACES) as others, watched(SYNC) as syncs, watched(GATES_OWN) as gates:
        started, before = time.monotonic(), time.process_time()
        ended = work_on(run, op, settings, SearchProposer(), folder / "cache", executor=place)
        seconds, cpu = time.monotonic() - started, time.process_time() - before
    came = [v for f in run.folders() if (v := f.verdict()) is not None and v.result(GATES[1]) is not None]
    row = {"executor": executor, "workers": workers, "candidates": len(came), "outcome": ended.outcome}
    row |= {"seconds": round(seconds, 2), "per_minute": round(60.0 * len(came) / seconds, 2)}
    count, waiting = max(1, len(came)), sum(span.cpu for span in others)
    parts = {
        "own_ms": cpu - waiting,
        "gates_ms": sum(span.cpu for span in gates),
        "starting_ms": waiting,
        "sync_ms": sum(span.stop - span.start for span in syncs),
        "wall_ms": seconds - covered([*others, *syncs]),
    }
    row |= {name: round(1000 * value / count, 1) for name, value in parts.items()}
    return {**row, "syncs": round(len(syncs) / count, 1), "load": round(load, 2)}


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((text.partition(":")[2].strip() for text in lines if text.startswith("model name")), "")
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--executor", default="local", choices=("local", "ray"))
    parser.add_argument("--profile", action="store_true", help="show the functions that kgen's own time goes to")
    parser.add_argument("--record", type=Path, help="JSON file to write")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as warm:  # imports, and the files of Python and of the compiler
        measure(1, 1, "local", Path(warm))
    for workers in chosen.workers:
        with tempfile.TemporaryDirectory() as folder, profiled() if chosen.profile else nullcontext() as profiles:
            rows.append(measure(workers, chosen.candidates, chosen.executor, Path(folder)))
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
        if profiles:
            pstats.Stats(*profiles, stream=sys.stdout).sort_stats("tottime").print_stats(60)
        if chosen.record:
            write(chosen.record, rows)


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """After every row, whole: a run that is cut short leaves what it had."""
    words = " ".join(["python benchmarks/scale.py", *sys.argv[1:]])
    body = {"op": OP, "command": words, "machine": machine(), "runs": rows}
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


if __name__ == "__main__":
    main()
