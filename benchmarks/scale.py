"""How many candidates a minute come through compile and interpreter, and what kgen itself adds to each.

    python benchmarks/scale.py [--workers 1 2 4] [--ray-nodes 1 2] [--candidates 8] [--record FILE]

Each line is a run of the real loop over the same candidates of `search`, with an empty cache and in a process of its
own: every candidate is screened, built with its two mutants, audited, and judged in the PTX interpreter. `--workers`:
as many local processes at a time. `--ray-nodes`: a Ray cluster on loopback, of a head without CPUs and so many nodes
with one slot and one cache each. All figures in ms are by candidate:

    own_ms        CPU time of kgen's own process, all its threads, outside of what `starting_ms` holds
    gates_ms      that part of own_ms in which the gates themselves parse, screen, audit and judge in this process
    starting_ms   CPU time of the same process while it starts builders, recorders and interpreters and waits for them
    sync_ms       wall time inside fsync, which is the disk's
    wall_ms       wall time without anything of others and without fsync: with one worker, what is not overlapped

CPU time does not grow when other software waits for the same cores, as wall time does; it still grows somewhat with
shared caches, so the load average before each run is part of the record. Not in any of them: a first run of one
candidate in the same process, which imports. With Ray, all are those of the process that asks.
"""

import argparse
import cProfile
import json
import os
import platform
import pstats
import subprocess
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
from kgen.pool.base import Executor
from kgen.pool.choose import choose as executor_of
from kgen.pool.local import LocalExecutor
from kgen.proposers.search import SearchProposer
from kgen.records import GATES
from kgen.store import Runs

OP = "moe_shared"
STORE = 80 << 20  # bytes of an object store: Ray's least
LOOPBACK = "127.0.0.2"  # Ray takes 127.0.0.1 for a name of the outer address
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


@contextmanager
def cluster(nodes: int, folder: Path) -> Iterator[str]:
    """The address of a Ray cluster on loopback; "" for none."""
    if not nodes:
        yield ""
        return
    from ray.cluster_utils import Cluster

    common = {"object_store_memory": STORE, "node_ip_address": LOOPBACK}
    made = Cluster(initialize_head=True, head_node_args={**common, "num_cpus": 0, "include_dashboard": False})
    try:
        for number in range(nodes):
            made.add_node(num_cpus=1, num_gpus=0, env_vars={"KGEN_CACHE": str(folder / f"node{number}")}, **common)
        yield made.address
    finally:
        made.shutdown()


def measure(place: Executor, workers: int, candidates: int, folder: Path) -> dict[str, Any]:
    """One run from nothing. `workers`: that the place has, for the record."""
    op = REGISTRY.get(OP)
    asked = Settings(OP, "search", candidates=candidates, archs=("sm_90a",), dims=("nano",), bins=(1,))
    settings = Settings(**{**asked.checked(op).__dict__, "finalists": candidates})
    run = begin(Runs(folder / "runs"), op, settings, "benchmarks/scale.py")
    load = os.getloadavg()[0]
    with watched(PLACES) as others, watched(SYNC) as syncs, watched(GATES_OWN) as gates:
        started, before = time.monotonic(), time.process_time()
        ended = work_on(run, op, settings, SearchProposer(), folder / "cache", executor=place)
        seconds, cpu = time.monotonic() - started, time.process_time() - before
    came = [v for f in run.folders() if (v := f.verdict()) is not None and v.result(GATES[1]) is not None]
    executor = "local" if isinstance(place, LocalExecutor) else "ray"
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


def one(executor: str, workers: int, candidates: int, profile: bool) -> None:
    """A row, as the first line on stdout, and the profile after it. Imports and first files come before it."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, cluster(workers * (executor == "ray"), Path(folder)) as address:
        measure(executor_of("local", workers=1), 1, 1, Path(folder) / "first")
        place = executor_of(executor, address, workers)
        with profiled() if profile else nullcontext() as profiles:
            row = measure(place, workers, candidates, Path(folder) / "run")
    sys.stdout.write(json.dumps(row) + "\n")
    if profiles:
        pstats.Stats(*profiles, stream=sys.stdout).sort_stats("tottime").print_stats(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", nargs="*", type=int, default=[1, 2, 4])
    parser.add_argument("--ray-nodes", nargs="*", type=int, default=[])
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--profile", action="store_true", help="show the functions that kgen's own time goes to")
    parser.add_argument("--record", type=Path, help="JSON file to write")
    parser.add_argument("--row", nargs=2, metavar=("EXECUTOR", "WORKERS"), help="only this one, in this process")
    chosen = parser.parse_args()
    if chosen.row:
        one(chosen.row[0], int(chosen.row[1]), chosen.candidates, chosen.profile)
        return
    rows = []
    for executor, workers in [*(("local", n) for n in chosen.workers), *(("ray", n) for n in chosen.ray_nodes)]:
        words = [sys.executable, __file__, "--row", executor, str(workers), "--candidates", str(chosen.candidates)]
        words += ["--profile"] if chosen.profile else []
        said = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
        sys.stdout.write(said)
        sys.stdout.flush()
        rows.append(json.loads(next(line for line in said.splitlines() if line.startswith("{"))))
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
