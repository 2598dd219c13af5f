"""The warm build server: imports the compiler once, then forks one fenced job per request.

Runs inside the sandbox. Requests come as JSON lines on stdin, answers leave as JSON lines on stdout; a job inherits
neither. It has imported nothing but the compiler and never reads a source itself. Every job gets its own process
group, deadline, capped output, and its own fence (its folder is the only thing it may write), so no job can reach
another or this server. Not covered: trusting what a job leaves in its folder; the judge audits that.
"""

import contextlib
import importlib
import json
import os
import resource
import selectors
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kgen.gates.builder import job
from kgen.gates.sandbox import fence
from kgen.gates.sandbox.folder import too_full

FENCED = b"\x01"  # a job's first byte: its fence is up. Without it the failure is ours, not the candidate's
CHUNK = 1 << 16
KEPT_BYTES = 64 << 10  # of a job's stdout and stderr together
FLOOD_BYTES = 8 << 20  # a job that says more than this is killed
COMPILER = (
    "cuda.bindings.driver",
    "cutlass.cute.runtime",
    "cutlass.cute._tvm_ffi_args_spec_converter",
    "cutlass.base_dsl.tvm_ffi_builder",
    "cutlass.cutlass_dsl.tvm_ffi_provider",
    "tvm_ffi",
)
TICK = 0.02  # seconds between looks at deadlines and exits

Work = Callable[[dict[str, Any]], int]


@dataclass
class _Running:
    """A forked job that has not been reaped yet."""

    number: int
    pid: int
    pipe: int
    deadline: float
    started: float
    said: int = 0
    kept: bytearray = field(default_factory=bytearray)
    folder: str = ""
    timed_out: bool = False
    flooded: bool = False


def import_compiler() -> None:
    """All that a build needs, imported once. torch and numpy are kept out: half of the memory, a second of start."""
    for name in ("torch", "numpy"):
        sys.modules[name] = None  # type: ignore[assignment]
    for name in COMPILER:
        importlib.import_module(name)


class Server:
    def __init__(self, requests: int, answers: int, read: tuple[str, ...], policy: dict[str, Any], work: Work) -> None:
        self._requests, self._answers = requests, answers
        self._read, self._policy, self._work = read, policy, work
        self._jobs: dict[int, _Running] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ, None)
        self._pending = bytearray()

    def serve(self) -> None:
        """Until the judge closes the request pipe; jobs still running are killed then."""
        while self._step():
            pass
        for running in self._jobs.values():
            _kill(running.pid)

    def _step(self) -> bool:
        for key, _ in self._selector.select(TICK if self._jobs else None):
            if key.data is not None:
                self._listen(key.data)
            elif not self._take_requests():
                return False
        now = time.monotonic()
        for running in list(self._jobs.values()):
            if now > running.deadline and not running.timed_out:
                running.timed_out = True
                _kill(running.pid)
            elif not running.flooded and too_full(running.folder):
                running.flooded = True
                _kill(running.pid)
            self._reap(running)
        return True

    def _take_requests(self) -> bool:
        chunk = os.read(self._requests, CHUNK)
        self._pending += chunk
        while b"\n" in self._pending:
            line, _, rest = bytes(self._pending).partition(b"\n")
            self._pending = bytearray(rest)
            self._start(json.loads(line))
        return bool(chunk)

    def _start(self, request: dict[str, Any]) -> None:
        reader, writer = os.pipe()
        now = time.monotonic()
        try:
            pid = os.fork()
        except OSError as error:  # too many processes or too little memory: ours, and this job's alone
            os.close(reader)
            os.close(writer)
            self._answer(
                **{"id": request["id"], "returncode": 70, "timed_out": False, "flooded": False, "seconds": 0.0},
                **{"fenced": False, "output": f"no process for the job: {error}"},
            )
            return
        if pid == 0:
            self._become_job(request, writer)
        os.close(writer)
        running = _Running(request["id"], pid, reader, now + request["seconds"], now, folder=request["folder"])
        self._jobs[pid] = running
        self._selector.register(reader, selectors.EVENT_READ, running)

    def _become_job(self, request: dict[str, Any], writer: int) -> None:
        """In the fork: nothing of the server's stays open, then the fence, then the candidate. Never returns."""
        status = 70
        try:
            os.setsid()
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            folder = request["folder"]
            os.chdir(folder)
            os.environ.update(HOME=folder, TMPDIR=folder)
            tempfile.tempdir = folder
            limits = fence.Limits(**request["limits"])
            fence.apply(fence.Policy(self._read, (folder, "/dev/null"), limits, **self._policy))
            os.write(1, FENCED)
            status = self._work(request)
        except BaseException as error:  # noqa: BLE001  process boundary: whatever it is, the fork ends here
            os.write(2, f"job: {type(error).__name__}: {error}\n".encode())
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _listen(self, running: _Running) -> None:
        chunk = os.read(running.pipe, CHUNK)
        running.said += len(chunk)
        running.kept += chunk[: max(0, KEPT_BYTES - len(running.kept))]
        if not chunk:
            self._selector.unregister(running.pipe)
        elif running.said > FLOOD_BYTES and not running.flooded:
            running.flooded = True
            _kill(running.pid)

    def _reap(self, running: _Running) -> None:
        pid, status = os.waitpid(running.pid, os.WNOHANG)
        if pid == 0:
            return
        _kill(running.pid)  # whatever else is left of its group
        while self._selector.get_map().get(running.pipe) and _readable(running.pipe):
            self._listen(running)
        if self._selector.get_map().get(running.pipe):
            self._selector.unregister(running.pipe)
        os.close(running.pipe)
        del self._jobs[running.pid]
        self._answer(
            id=running.number,
            returncode=os.waitstatus_to_exitcode(status),
            timed_out=running.timed_out,
            flooded=running.flooded,
            seconds=time.monotonic() - running.started,
            fenced=running.kept.startswith(FENCED),
            output=running.kept.removeprefix(FENCED).decode("utf-8", "replace"),
        )

    def _answer(self, **body: Any) -> None:
        data = json.dumps(body).encode() + b"\n"
        while data:
            data = data[os.write(self._answers, data) :]


def _readable(fd: int) -> bool:
    with selectors.DefaultSelector() as one:
        one.register(fd, selectors.EVENT_READ)
        return bool(one.select(0))


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(group, signal.SIGKILL)  # before its setsid, the job is still in our group


def main(read: list[str], policy: dict[str, Any], builds: bool = True) -> None:
    """`read`: paths that jobs may read; `policy`: which parts of the fence a job gets (see `fence.Policy`).

    `builds`: else jobs are probes of the sandbox, which need no compiler.
    """
    requests, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # nothing that the compiler prints while it is imported may look like an answer
    work: Work = job.run
    if builds:
        import_compiler()
    else:
        from kgen.gates.sandbox.probes import run as work
    server = Server(requests, answers, tuple(read), policy, work)
    server._answer(ready=True)
    server.serve()
