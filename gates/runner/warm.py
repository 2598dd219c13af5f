"""Starts runner processes: cold, as interpreters of their own, or warm, as forks of one that has imported it all.

    process = start(words, environment, folder, log, warm=True)

A job without a GPU spends most of its time on imports, two seconds of CPU. So one process (`template.py`) is kept that
has done them and nothing else, and is forked for each job; it ends with this process. A fork is a process as any other:
its own number, session, folder, log and variables, and it dies with whoever asked for it. Cold start what needs another
interpreter: a job on a GPU, another command than a runner's, other variables than the template was started with, and
everything where no template works.
"""

import errno
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from kgen.gates.gpu import standin
from kgen.gates.runner.child import Process, command
from kgen.gates.runner.template import NUMBER

RUNNER, TEMPLATE = "kgen.gates.runner.__main__", "kgen.gates.runner.template"
START_SECONDS = 120.0  # imports take two seconds; a cold disk may take many
FREE = ("PATH", "HOME", "TMPDIR", "USER", "KGEN_CUTE_RUNTIME", "CC", "CXX", standin.VARIABLE)  # that no import reads
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}  # NumPy's would start when it is imported, and a fork has one thread only


class Forked:
    """A fork of the template, which waits for it in our stead."""

    def __init__(self, pid: int, line: socket.socket, arguments: Sequence[str]) -> None:
        self.pid, self._line, self._arguments = pid, line, list(arguments)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            self._line.settimeout(timeout)
            try:
                said = self._line.recv(NUMBER.size)
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(self._arguments, timeout or 0.0) from None
            # without a template there is no status, and its forks were killed with it
            self.returncode = os.waitstatus_to_exitcode(NUMBER.unpack(said)[0]) if said else -signal.SIGKILL
            self._line.close()
        return self.returncode


class Template:
    """The process that is forked. Raises OSError where none works."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.needs = _read_at_start(environment)
        self._requests, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            self._process = subprocess.Popen(
                command(TEMPLATE, str(there.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**environment, **ONE_THREAD},
                pass_fds=[there.fileno()],
                start_new_session=True,
            )
        self._requests.settimeout(START_SECONDS)
        try:
            said = self._requests.recv(NUMBER.size)
        except TimeoutError:
            said = b""
        if said != NUMBER.pack(1):  # a fork of several threads is no whole process
            self.close()
            raise OSError(errno.ECHILD, "no runner can be forked here")

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, log: IO[bytes]) -> Forked:
        """Raises OSError."""
        request = {"arguments": list(arguments), "environment": dict(environment), "folder": str(folder)}
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            socket.send_fds(self._requests, [json.dumps(request).encode()], [log.fileno(), there.fileno()])
        said = here.recv(NUMBER.size)
        number = NUMBER.unpack(said)[0] if said else -errno.EPIPE
        if number < 0:
            here.close()
            raise OSError(-number, f"no process for a runner: {os.strerror(-number)}")
        return Forked(number, here, arguments)

    def close(self) -> None:
        """Its forks are killed with it."""
        self._requests.close()
        self._process.kill()
        self._process.wait()


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in FREE}


_lock = threading.Lock()
_templates: dict[tuple[str, ...], Template | None] = {}  # by command: the one of this process, None where none works


def template(head: Sequence[str], environment: Mapping[str, str]) -> Template | None:
    """Of the runners whose command begins so, started for the first one. None where a fork would not be the same."""
    key = tuple(head)
    with _lock:
        if key not in _templates:
            try:
                _templates[key] = Template(environment)
            except OSError:
                _templates[key] = None
        found = _templates[key]
    return found if found is not None and found.needs == _read_at_start(environment) else None


def forget(lost: Template) -> None:
    """The next job starts another in place of one that is gone."""
    with _lock:
        for key in [key for key, kept in _templates.items() if kept is lost]:
            del _templates[key]
    lost.close()


def start(words: Sequence[str], environment: Mapping[str, str], folder: Path, log: IO[bytes], warm: bool) -> Process:
    """A process of its own session in `folder`, what it says in `log`. Raises OSError where there can be none."""
    head = command(RUNNER)
    if warm and list(words[: len(head)]) == head:
        for _ in range(2):
            kept = template(head, environment)
            if kept is None:
                break
            try:
                return kept.fork(words[len(head) :], environment, folder, log)
            except (BrokenPipeError, ConnectionResetError):
                forget(kept)  # it was killed: another, once
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=folder,
        start_new_session=True,
    )
