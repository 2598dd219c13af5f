"""How many candidates a minute come through compile and interpreter, and what kgen itself adds to each.

    python benchmarks/scale.py [--workers 1 2 4] [--candidates 8] [--executor local|ray] [--record FILE]

Each line is a run of the real loop over the same candidates of `search`, with an empty cache: every candidate is
screened, built with its two mutants, audited, and judged in the PTX interpreter. `own_ms` is the wall time by candidate
in which no build, no recorder and no interpreter was running: with one worker, what kgen itself adds. `own_cpu_ms` is
the CPU time of kgen's own process, which other software on the machine does not change much; the load average before
each run is part of the record. With `ray`, both are those of the machine that asks.
"""

import argparse
import cProfile
import json
import os
import platform
import pstats
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

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
Spans = list[tuple[float, float]]


@contextmanager
def watched() -> Iterator[Spans]:
    """When a process that was started for a candidate was running; start and end, in seconds."""
    spans: Spans = []
    before = [getattr(owner, name) for owner, name in PLACES]

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            started = time.monotonic()
            try:
                return function(*args, **more)
            finally:
                spans.append((started, time.monotonic()))

        return call

    for (owner, name), function in zip(PLACES, before, strict=True):
        setattr(owner, name, timed(function))
    try:
        yield spans
    finally:
        for (owner, name), function in zip(PLACES, before, strict=True):
            setattr(owner, name, function)


def covered(spans: Spans) -> float:
    """Seconds in which at least one of them lasted."""
    total, end = 0.0, 0.0
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def measure(workers: int, candidates: int, executor: str, folder: Path) -> dict[str, Any]:
    """One run from nothing."""
    op = REGISTRY.get(OP)
    asked = Settings(OP, "search", candidates=candidates, archs=("sm_90a",), dims=("nano",), bins=(1,))
    settings = Settings(**{**asked.checked(op).__dict__, "finalists": candidates})
    run = begin(Runs(folder / "runs"), op, settings, "benchmarks/scale.py")
    load = os.getloadavg()[0]
    place = executor_of(executor, workers=workers)
    with watched() as spans:
        started, before = time.monotonic(), time.process_time()
        ended = work_on(run, op, settings, SearchProposer(), folder / "cache", executor=place)
        seconds, cpu = time.monotonic() - started, time.process_time() - before
    came = [v for f in run.folders() if (v := f.verdict()) is not None and v.result(GATES[1]) is not None]
    row = {"executor": executor, "workers": workers, "candidates": len(came), "outcome": ended.outcome}
    row |= {"seconds": round(seconds, 2), "per_minute": round(60.0 * len(came) / seconds, 2)}
    own = (seconds - covered(spans)) / max(1, len(came))
    row |= {"own_ms": round(1000 * own, 1), "own_cpu_ms": round(1000 * cpu / max(1, len(came)), 1)}
    return {**row, "load": round(load, 2)}


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
        with tempfile.TemporaryDirectory() as folder:
            profile = cProfile.Profile()
            if chosen.profile:
                profile.enable()
            rows.append(measure(workers, chosen.candidates, chosen.executor, Path(folder)))
            profile.disable()
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
        if chosen.profile:
            pstats.Stats(profile, stream=sys.stdout).sort_stats("cumulative").print_stats(45)
    if chosen.record:
        words = " ".join(["python benchmarks/scale.py", *sys.argv[1:]])
        body = {"op": OP, "command": words, "machine": machine(), "runs": rows}
        chosen.record.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
