"""`kgen` as a process that need not import anything: a fork of an interpreter that has (see support/nursery.py).

It is a process as any other, with its own pid, session, folder, variables and pipes, and it may be killed. What differs
from a cold start: the packages are there, and variables that are read on import are those of the tests.
"""

import functools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from select import select
from typing import IO

NURSERY = Path(__file__).with_name("nursery.py")


class Forked:
    """As much of subprocess.Popen[str] as tests use, of a process that is nobody's child here."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        self.args = arguments
        self.returncode: int | None = None
        out, err, status = os.pipe(), os.pipe(), os.pipe()
        given = [0, out[1], err[1], status[1]]
        request = {"argv": list(arguments), "env": dict(env), "cwd": str(cwd)}
        socket.send_fds(_nursery(), [json.dumps(request).encode()], given)
        for fd in given[1:]:
            os.close(fd)
        self.stdout: IO[str] = os.fdopen(out[0], encoding="utf-8")
        self.stderr: IO[str] = os.fdopen(err[0], encoding="utf-8")
        self._status = os.fdopen(status[0], "rb", buffering=0)
        self.pid = self._told()

    def _told(self) -> int:
        number: int = struct.unpack("i", self._status.read(4))[0]
        return number

    def poll(self) -> int | None:
        if self.returncode is None and select([self._status], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(self._told())
            self._status.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it still says until it has ended."""
        said: dict[IO[str], str] = {}
        readers = [threading.Thread(target=lambda s=s: said.update({s: s.read()})) for s in (self.stdout, self.stderr)]
        for reader in readers:
            reader.daemon = True
            reader.start()
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
        self.wait(timeout)
        for stream in said:
            stream.close()
        return said[self.stdout], said[self.stderr]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def _nursery() -> socket.socket:
    """One for all tests of this process; it ends with this process."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        subprocess.Popen(
            [sys.executable, "-I", str(NURSERY), str(there.fileno())],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    threads = here.recv(16)
    assert threads == b"1", f"{NURSERY.name} has {threads.decode() or 'no'} threads: a fork of it is no whole process"
    return here
