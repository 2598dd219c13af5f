"""Points one after the other, each in a fresh process, into a record that is taken up where it was left.

    run(jobs, out, seconds, say, trace) -> Ended  what was refused or broke off is in the record, with its reason

A point that is in the record with the very same job is not measured again. The GPU is held while a point is measured.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kgen.gates.gpu.lease import GRACE_SECONDS, Held, leased
from kgen.gates.layer import record as records
from kgen.gates.layer.points import Job
from kgen.gates.layer.record import LayerRecord, Measured
from kgen.gates.runner.child import child_environment, command, end
from kgen.records import from_json, one_line, to_json
from kgen.store.kernelset import KernelSet
from kgen.store.paths import serving_sets

POINT_SECONDS = 420.0  # one point: a minute of compiling for each side that is compiled, seconds for the rest
CHILD = "kgen.gates.layer.point"
KEPT = ("KGEN_CACHE", "KGEN_SET")  # of the environment, beside what every process of a GPU keeps
Say = Callable[[str], None]


@dataclass(frozen=True)
class Ended:
    """`left`: points that no time was left for; `broken`: points whose process did not come to its end."""

    record: LayerRecord
    left: tuple[str, ...]
    broken: tuple[str, ...]


def run(jobs: Sequence[Job], out: Path, seconds: float, say: Say, trace: Path | None = None) -> Ended:
    """Measure what is not in `out` yet; no new point is begun after `seconds`. `trace`: the file that jobs name by
    its hash.

    Raises what `leased` does, and IntegrityError for a damaged kernel set.
    """
    record, started = records.read(out), time.monotonic()
    states = {kernels: state_of(kernels) for kernels in {job.kernels for job in jobs}}
    left, broken = [], []
    for number, job in enumerate((replace(job, state=states[job.kernels]) for job in jobs), 1):
        where = f"[{number}/{len(jobs)}] {job.point.key}"
        known = record.measured(job.point)
        if known is not None and known.job == job:
            say(f"{where}: done before")
            continue
        if time.monotonic() - started > seconds:
            left.append(job.point.key)
            continue
        say(f"{where} ...")
        found = _one(job, trace)
        if isinstance(found, Measured):
            record = record.with_point(found)
            say(f"{where}: {summary(found)}")
        else:
            why, its_own = found
            record = record.without(job.point, why)
            broken += [] if its_own else [job.point.key]
            say(f"{where}: {'refused' if its_own else 'error'}: {why}")
        records.write(out, record)
    return Ended(record, tuple(left), tuple(broken))


def state_of(kernels: str) -> str:
    """What a set's manifests are now; "" chooses the sets that serving looks into."""
    sums = [KernelSet(place.path).manifest().checksum[:12] for place in serving_sets(kernels or None)]
    return " ".join(s for s in sums if s)


def summary(found: Measured) -> str:
    """One line."""
    times = ", ".join(f"{s.name} {s.us:.1f}" for s in found.sides)
    floor = f"; floor {found.floor_us:.1f}" if found.floor_us else ""
    return f"{times} us{floor} ({found.seconds:.0f} s)"


def _one(job: Job, trace: Path | None) -> Measured | tuple[str, bool]:
    """The point; or why there is none, and whether that is a finding of its own, not an accident."""
    with (
        leased(job.device, f"layer {job.point.key}", POINT_SECONDS + GRACE_SECONDS) as held,
        tempfile.TemporaryDirectory(prefix="kgen-layer-") as folder,
    ):
        ask, answer, log = (Path(folder) / name for name in ("job.json", "result.json", "log"))
        ask.write_text(json.dumps(to_json(job)))
        given = [str(trace.absolute())] if trace else []
        code = _process(command(CHILD, str(ask), str(answer), *given), log, held)
        if not answer.exists():
            words = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            return one_line(f"its process ended with {code}: {words[-1] if words else 'no word'}"), False
        found: dict[str, Any] = json.loads(answer.read_bytes())
        return from_json(Measured, found["measured"]) if "measured" in found else (str(found["refused"]), True)


def _process(words: Sequence[str], log: Path, held: Held | None) -> str:
    """How the process ended."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment = {**child_environment(), **kept, **(held.environment if held else {})}
    with log.open("wb") as said:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip
        if held is not None:
            held.run(process.pid, POINT_SECONDS + GRACE_SECONDS)
        try:
            process.wait(POINT_SECONDS)
        except subprocess.TimeoutExpired:
            return f"no result within {POINT_SECONDS:.0f} s"
        finally:
            end(process)
            if held is not None:
                held.end(process.pid)
    return f"status {process.returncode}"
