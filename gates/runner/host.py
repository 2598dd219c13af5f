"""Starts one runner process for one job, watches it, and reads what it left. Used by the judge.

    with running(kind, job, deadline=120, stall=30, need_bytes=...) as outcome: ...

Statuses: `done`; `fault` (the candidate's call raised, e.g. an illegal address); `crashed` (the process died while the
candidate ran); `hung` (no progress within `stall` seconds, or `deadline` passed, while the candidate ran); `error`
(anything that is not the candidate's doing). The job folder is private, in memory where there is room, and is deleted
when the block ends. The child gets an isolated interpreter, none of the caller's secrets, and dies with its parent.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

KEEP_ENV = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "USER", "KGEN_CUTE_RUNTIME", "CC", "CXX")
KEEP_PREFIXES = ("CUDA_", "NVIDIA_", "TRITON_", "TORCHINDUCTOR_", "NCCL_", "TORCH_")
BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]);"
    " from kgen.gates.runner.__main__ import main; sys.exit(main(sys.argv[2:]))"
)
LOG_CAP = 20_000  # characters of the child's own words that are kept
POLL_SECONDS = 0.02


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

    def tensor(self, ref: Mapping[str, Any]) -> torch.Tensor:
        """The CPU tensor behind a reference that a record holds."""
        with (self.folder / "tensors.bin").open("rb") as file:
            file.seek(int(ref["offset"]))
            data = bytearray(file.read(int(ref["nbytes"])))
        if len(data) != int(ref["nbytes"]):
            raise ValueError(f"the runner left {len(data)} of {ref['nbytes']} bytes of a tensor")
        shape = tuple(int(n) for n in ref["shape"])
        dtype = getattr(torch, str(ref["dtype"]))
        return (
            torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)
            if data
            else torch.empty(shape, dtype=dtype)
        )


def private_folder(need_bytes: int = 0) -> Path:
    """A fresh folder of mode 0700, in memory where `need_bytes` fit."""
    for base in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        if base.is_dir() and os.access(base, os.W_OK) and shutil.disk_usage(base).free > need_bytes + (64 << 20):
            return Path(tempfile.mkdtemp(prefix="kgen-run-", dir=base))
    raise OSError(f"no room for {need_bytes >> 20} MiB of runner output in /dev/shm or {tempfile.gettempdir()}")


def child_environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k in KEEP_ENV or k.startswith(KEEP_PREFIXES)}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def child_command(job: Path, folder: Path) -> list[str]:
    """The runner's command line; the child imports from where its caller does: a kit's own kgen."""
    paths = [str(Path(p).resolve()) for p in sys.path if p and Path(p).exists()]
    return [sys.executable, "-I", "-W", "ignore", "-c", BOOT, json.dumps(paths), str(job), str(folder)]


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
    """Run a job to its end. `deadline` and `stall` in seconds (stall 0: no limit); `wrap` goes before the command."""
    environment = {**child_environment(), **(extra_environment or {})}
    folder = private_folder(need_bytes)
    try:
        (folder / "job.json").write_text(json.dumps({"kind": kind, **job}))
        yield _run(folder, [*wrap, *child_command(folder / "job.json", folder)], environment, deadline, stall)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path, command: list[str], environment: Mapping[str, str], deadline: float, stall: float) -> Outcome:
    started = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        try:
            limit = _watch(process, folder, started, deadline, stall)
        finally:
            _end(process)
    return _read(folder, process.returncode, limit, time.monotonic() - started)


def _watch(process: "subprocess.Popen[bytes]", folder: Path, started: float, deadline: float, stall: float) -> str:
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


def _end(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _records(path: Path) -> tuple[dict[str, Any], ...]:
    if not path.exists():
        return ()
    lines = path.read_text().split("\n")[:-1]  # the last piece is empty, or cut by a death in the middle of a line
    return tuple(json.loads(line) for line in lines)


def _read(folder: Path, code: int, limit: str, seconds: float) -> Outcome:
    at, result = _json(folder / "at"), _json(folder / "result.json")
    log = (folder / "log").read_text(errors="replace")[-LOG_CAP:]
    where, candidate = str(at.get("where", "start")), bool(at.get("candidate", False))
    if limit:
        status, message = ("hung" if candidate else "error"), f"{limit}, last at: {where}"
    elif "fault" in result:
        status, message = "fault", str(result["fault"])
    elif "error" in result:
        status, message = "error", str(result["error"])
    elif result and code == 0:
        status, message = "done", ""
    else:
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        status, message = ("crashed" if candidate else "error"), f"the runner ended with {how}, last at: {where}"
    return Outcome(status, message, where, folder, _records(folder / "records.jsonl"), result, seconds, log)
