"""Hardware counters of a candidate under Nsight Compute: what a diagnosis may quote, and no verdict.

    take(artefact, cache=...) -> Counters      `skipped` says why there are none; it raises for no fault of theirs

A runner process with ncu as its parent calls the candidate on the op's real inputs, off the clock. Without ncu, without
a GPU, or where counters are for administrators only, it is a skip with the reason. Not covered: what a design should
do about a number (kgen.diagnosis).
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeVar

from kgen.contract import Op
from kgen.gates.environment import device_arch, environment
from kgen.gates.gpu.quarantine import DeviceLost
from kgen.gates.runner import ncu
from kgen.gates.runner.host import running
from kgen.gates.runner.job import Built, LoadSpec, spec
from kgen.records import one_line, to_json

FILE = "counters.json"  # in a candidate's folder
SECONDS = 300.0
STALL_SECONDS = 120.0
CALLS, SEED = 2, 1
B = TypeVar("B", bound=Built)


@dataclass(frozen=True)
class Counters:
    """Kernel -> metric (ncu.METRICS) -> value of its last launch, at one problem."""

    SCHEMA: ClassVar[str] = "kgen.counters/1"
    candidate: str
    problem: str
    object_sha256: str
    kernels: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    skipped: str = ""
    gpu: str = ""
    driver: str = ""


@dataclass(frozen=True)
class CounterSet:
    """Those of one candidate, or of several where a kit wrote them."""

    SCHEMA: ClassVar[str] = "kgen.counter-set/1"
    counters: tuple[Counters, ...] = ()


def chosen(op: Op, builds: Sequence[B], arch: str) -> list[B]:
    """The fewest and the most tokens of what is served on this arch: a profiled run of each takes seconds."""
    served = [b for b in builds if b.record.problem.arch == arch and b.record.problem.dims in op.served]
    ordered = sorted((b for b in served if not b.record.defect), key=lambda b: b.record.problem.tokens)
    return ordered[:1] + ordered[-1:] if len(ordered) > 1 else ordered


def why_not(arch: str, device: str = "cuda") -> str:
    """Why counters of a kernel for this arch cannot be read here, "" where it can be tried."""
    if shutil.which("ncu") is None:
        return "ncu is not installed"
    return f"no GPU of {arch} here" if device != "cpu" and device_arch() != arch else ""


def take(artefact: Built, *, cache: Path, seconds: float = SECONDS) -> Counters:
    """Raises NoDevice and Busy: the machine's."""
    return take_spec(spec(artefact), cache=cache, seconds=seconds)


def take_spec(load: LoadSpec, *, cache: Path, device: str = "cuda", seconds: float = SECONDS) -> Counters:
    here = environment()

    def made(profile: ncu.Profile) -> Counters:
        about = load.candidate, load.problem.key, load.object_sha256
        return Counters(*about, profile.kernels, profile.skipped, here.gpu, here.driver)

    tool = shutil.which("ncu") or ""
    if why := why_not(load.problem.arch, device):
        return made(ncu.Profile(skipped=why))
    job = {"spec": to_json(load), "cache": str(cache), "device": device, "seed": SEED, "calls": CALLS}
    with tempfile.TemporaryDirectory(prefix="kgen-ncu-") as folder:
        log = Path(folder) / "ncu.csv"
        try:
            with running("counted", job, deadline=seconds, stall=STALL_SECONDS, wrap=ncu.wrap(tool, log)) as outcome:
                said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
                profile = ncu.judged(said, outcome.log, outcome.status)
                if outcome.status != "done" and not profile.kernels and ncu.PERMISSION not in said + outcome.log:
                    profile = ncu.Profile(skipped=f"the profiled calls did not end well: {one_line(outcome.message)}")
        except DeviceLost as lost:
            profile = ncu.Profile(skipped=str(lost))
    return made(profile)
