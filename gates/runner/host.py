"""Starts one runner process for one job, watches it, and reads what it left. Used by the judge.

    with running(kind, job, deadline=120, stall=30, need_bytes=...) as outcome: ...

Statuses: `done`; `fault` (the candidate's call raised, e.g. an illegal address); `crashed` (the process died while the
candidate ran); `hung` (no progress within `stall` seconds, or `deadline` passed, while the candidate ran); `error`
(anything that is not the candidate's doing, and whatever left an answer that cannot be read). The job folder is
private, in memory where there is room, and is deleted when the block ends. The child gets an isolated interpreter, none
of the caller's secrets, and dies with its parent. Without a GPU it is a fork of one that has imported all (warm.py).

A job on a GPU holds its lease while the block lasts. Where the process died, was ended, or an error of CUDA is
reported, a fresh process looks after the device (gpu/health.py) before anybody goes on: a device that is not well goes
into quarantine, and DeviceLost is raised instead of an outcome, which would blame the candidate.
"""

import contextlib
import json
import math
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from kgen.gates import leftovers
from kgen.gates.gpu import health
from kgen.gates.gpu.lease import GRACE_SECONDS, Held, leased
from kgen.gates.runner.child import Process, child_environment, command, end
from kgen.gates.runner.warm import start
from kgen.records import RecordError, one_line, strict_json

FOLDERS = "kgen-run"
LOG_CAP = 20_000  # characters of the child's own words that are kept
MESSAGE_CAP = 2000  # characters of what a runner says went wrong; it says 600 itself
POLL_SECONDS = 0.02
REFERENCE = {"offset", "nbytes", "dtype", "shape"}  # what out.py writes for a tensor
WITHOUT_GPU = ("cpu", "ptx")  # devices whose jobs are forks of a warm process
CUDA_SAYS = "cuda"  # in the text of a fault that may have touched the device


@dataclass(frozen=True)
class Outcome:
    status: str
    message: str
    where: str  # what the runner was doing last
    folder: Path
    records: tuple[Mapping[str, Any], ...] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    log: str = ""
    died: bool = False  # it did not end by itself, with status 0

    def tensor(self, ref: Mapping[str, Any]) -> torch.Tensor:
        """The CPU tensor behind a reference that a record holds."""
        data = bytearray(int(ref["nbytes"]))
        with (self.folder / "tensors.bin").open("rb") as file:
            file.seek(int(ref["offset"]))
            held = file.readinto(data)
        if held != len(data):
            raise ValueError(f"the runner left {held} of {ref['nbytes']} bytes of a tensor")
        shape = tuple(int(n) for n in ref["shape"])
        dtype = getattr(torch, str(ref["dtype"]))
        return (
            torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)
            if data
            else torch.empty(shape, dtype=dtype)
        )


def private_folder(need_bytes: int = 0) -> Path:
    """A fresh folder of mode 0700, in memory where `need_bytes` fit. Those of killed judges are removed first."""
    for base in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        if not base.is_dir() or not os.access(base, os.W_OK):
            continue
        leftovers.sweep(FOLDERS, base)
        if shutil.disk_usage(base).free > need_bytes + (64 << 20):
            return leftovers.fresh(FOLDERS, base)
    raise OSError(f"no room for {need_bytes >> 20} MiB of runner output in /dev/shm or {tempfile.gettempdir()}")


def child_command(job: Path, folder: Path) -> list[str]:
    """The runner's command line."""
    return command("kgen.gates.runner.__main__", str(job), str(folder))


@contextlib.contextmanager
def running(
    kind: str,
    job: Mapping[str, Any],
    *,
    deadline: float,
    stall: float = 0.0,
    need_bytes: int = 0,
    wrap: Sequence[str] = (),
    extra_environment: Mapping[str, str] | None = None,
) -> Iterator[Outcome]:
    """Run a job to its end. `deadline` and `stall` in seconds (stall 0: no limit); `wrap` goes before the command.

    Raises what `leased` does, and DeviceLost.
    """
    with leased(str(job.get("device", "cpu")), f"a {kind} job", deadline + GRACE_SECONDS) as held:
        environment = {**child_environment(), **(extra_environment or {}), **(held.environment if held else {})}
        folder = private_folder(need_bytes)
        try:
            parent = {} if wrap else {"parent": os.getpid()}
            (folder / "job.json").write_text(json.dumps({"kind": kind, **job, **parent}))
            words = [*wrap, *child_command(folder / "job.json", folder)]
            warm = str(job.get("device", "cpu")) in WITHOUT_GPU
            outcome = _run(folder, words, environment, deadline, stall, held, warm)
            yield _settled(held, f"{kind} job at {outcome.where}", outcome)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _settled(held: Held | None, what: str, outcome: Outcome) -> Outcome:
    """The outcome, when the device is well."""
    if held is None:
        return outcome
    held.check()
    machine = outcome.status in ("fault", "error") and health.of_the_machine(outcome.message)
    if outcome.died or machine or (outcome.status == "fault" and CUDA_SAYS in outcome.message.lower()):
        health.examine(held, what, outcome.message)
    return replace(outcome, status="error") if machine else outcome


def _run(
    folder: Path,
    command: list[str],
    environment: Mapping[str, str],
    deadline: float,
    stall: float,
    held: Held | None = None,
    warm: bool = False,
) -> Outcome:
    started = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = start(command, environment, folder, log, warm)
        if held is not None:
            held.run(process.pid, deadline + GRACE_SECONDS)
        try:
            limit = _watch(process, folder, started, deadline, stall)
        finally:
            gone = end(process)
            if held is not None:
                held.end(process.pid)
    if not gone:
        if held is None:
            raise ChildProcessError(f"process {process.pid} cannot be killed")
        health.lose(held, str(json_of(folder / "at").get("where", "start")), f"process {process.pid} cannot be killed")
    return read(folder, process.returncode or 0, limit, time.monotonic() - started)


def _watch(process: Process, folder: Path, started: float, deadline: float, stall: float) -> str:
    """ "" when the process ended by itself, else which limit it ran into."""
    at, last = folder / "at", started
    mark = 0
    while process.poll() is None:
        now = time.monotonic()
        with contextlib.suppress(FileNotFoundError):
            if (changed := at.stat().st_mtime_ns) != mark:
                mark, last = changed, now
        if now - started > deadline:
            return f"not finished within {deadline:.0f} s"
        if stall and mark and now - last > stall:
            return f"no progress for {stall:.0f} s"
        time.sleep(POLL_SECONDS)
    return ""


def _object(data: bytes) -> dict[str, Any]:
    """One JSON object. Raises RecordError."""
    value = strict_json(data)
    if not isinstance(value, dict):
        raise RecordError(f"{type(value).__name__} where an object belongs")
    return value


def json_of(path: Path) -> dict[str, Any]:
    """Empty for a file that is not there, or was cut by a death in the middle of writing it."""
    try:
        return _object(path.read_bytes())
    except (OSError, RecordError):
        return {}


def _records(path: Path) -> tuple[dict[str, Any], ...]:
    """Raises RecordError."""
    if not path.exists():
        return ()
    lines = path.read_bytes().split(b"\n")[:-1]  # the last piece is empty, or cut by a death in the middle of a line
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(_object(line))
        except RecordError as error:
            raise RecordError(f"line {number} of {path.name}: {error}") from None
    return tuple(records)


def _answer(folder: Path) -> tuple[dict[str, Any], tuple[dict[str, Any], ...], str]:
    """Result and records, or nothing of them and why they cannot be read. A result is whole or not there at all."""
    path, tensors = folder / "result.json", folder / "tensors.bin"
    try:
        result = _object(path.read_bytes()) if path.exists() else {}
        records = _records(folder / "records.jsonl")
        held = tensors.stat().st_size if tensors.exists() else 0
        for ref in _references(records):
            _check(ref, held)
    except (OSError, RecordError) as error:
        return {}, (), f"the runner left an answer that cannot be read: {one_line(str(error))}"
    return result, records, ""


def _references(records: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    """Every reference to a tensor, however deep it lies."""
    level = list(records)
    while level:
        objects = [value for value in level if isinstance(value, dict)]
        yield from (value for value in objects if value.keys() >= REFERENCE)
        lists = [value for value in level if isinstance(value, list)]
        level = [value for values in (*lists, *(o.values() for o in objects)) for value in values]


def _check(ref: Mapping[str, Any], held: int) -> None:
    """Raises RecordError for a reference to what is no tensor within the `held` bytes of tensors.bin."""
    dtype, shape, offset, nbytes = (ref[name] for name in ("dtype", "shape", "offset", "nbytes"))
    kind = vars(torch).get(dtype) if isinstance(dtype, str) else None
    sizes = [*shape, offset, nbytes] if isinstance(shape, list) else [None]
    if not isinstance(kind, torch.dtype) or not all(type(n) is int and 0 <= n < 1 << 48 for n in sizes):
        raise RecordError("a reference to a tensor of no known dtype and sizes")
    if nbytes != math.prod(shape) * kind.itemsize or offset + nbytes > held:
        raise RecordError(f"{nbytes} bytes at {offset} for {dtype}{shape}, and tensors.bin holds {held} bytes")


def _ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal: most of them have no name
        return f"signal {-code}"


def read(folder: Path, code: int, limit: str, seconds: float) -> Outcome:
    """What a runner left in its folder. `code`: its exit status; `limit`: the one that it ran into, or ""."""
    at = json_of(folder / "at")
    result, records, unreadable = _answer(folder)
    log = (folder / "log").read_text(errors="replace")[-LOG_CAP:]
    where, candidate = one_line(str(at.get("where", "start"))), bool(at.get("candidate", False))
    if unreadable:
        status, message = "error", f"{unreadable}; last at: {where}"
    elif limit:
        status, message = ("hung" if candidate else "error"), f"{limit}, last at: {where}"
    elif "fault" in result:
        status, message = "fault", one_line(str(result["fault"]), MESSAGE_CAP)
    elif "error" in result:
        status, message = "error", one_line(str(result["error"]), MESSAGE_CAP)
    elif result and code == 0:
        status, message = "done", ""
    else:
        how = _ended(code)
        status, message = ("crashed" if candidate else "error"), f"the runner ended with {how}, last at: {where}"
    return Outcome(status, message, where, folder, records, result, seconds, log, bool(limit or code))
