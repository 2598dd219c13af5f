"""Run one command in a sandbox with a wall deadline and a cap on what it may say."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import IO

from kgen.gates.sandbox.folder import too_full
from kgen.gates.sandbox.levels import Box, Level

CHUNK = 1 << 16
LOOK_SECONDS = 0.05  # between two looks at the folder


@dataclass(frozen=True)
class Finished:
    """`returncode` is negative for a signal; `output` holds stdout and stderr together, at most the cap."""

    returncode: int
    output: bytes
    truncated: bool
    timed_out: bool
    seconds: float
    overfull: bool = False  # killed for filling its folder


class CappedReader(threading.Thread):
    """Reads a pipe to its end and keeps the first `cap` bytes: the writer never blocks, the reader never swells."""

    def __init__(self, pipe: IO[bytes], cap: int) -> None:
        super().__init__(daemon=True)
        self._pipe, self._cap, self._kept = pipe, cap, bytearray()
        self.truncated = False
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the pipe may be closed under us
            while chunk := os.read(self._pipe.fileno(), CHUNK):
                room = self._cap - len(self._kept)
                self._kept += chunk[:room]
                self.truncated |= len(chunk) > room

    @property
    def text(self) -> bytes:
        return bytes(self._kept)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a command and everything in its process group. It must have been started as a session leader."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def run(level: Level, box: Box, argv: list[str], seconds: float, cap: int, stdin: bytes = b"") -> Finished:
    """Run `argv` in the sandbox. The caller's thread must outlive the command (it dies with that thread).

    Raises OSError when the sandbox itself cannot be started.
    """
    started = time.monotonic()
    process = subprocess.Popen(
        level.wrap(box, argv),
        env=dict(box.env),
        cwd=box.write,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    reader = CappedReader(process.stdout, cap)
    timed_out = overfull = False
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(stdin)
            process.stdin.close()
        while not (_ended(process) or timed_out or overfull):
            timed_out = time.monotonic() - started > seconds
            overfull = too_full(str(box.write))
    finally:
        kill_group(process)
        process.wait()
        reader.join(1.0)
        process.stdout.close()
    spent = time.monotonic() - started
    return Finished(process.returncode, reader.text, reader.truncated, timed_out, spent, overfull)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True
