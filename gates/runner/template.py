"""A process that has imported what runners need, and is forked for every job without a GPU: `main([DESCRIPTOR])`.

It has imported trusted code only and never reads a job, so that no fork finds anything of another candidate. Requests
are messages on a socket, whose number is the argument: a JSON object (arguments, environment, folder) with two
descriptors, the log and a line to whoever asked. A fork runs `kgen.gates.runner.__main__`; its process number is on the
line once it is a session of its own, and its wait status when it has ended. Where the other end of a line is closed the
fork is killed; where that of the socket is, this process ends, and every fork with it. Not covered: CUDA, which a fork
could not use once it was initialised, and variables that are read when an interpreter or a package starts.
"""

import contextlib
import errno
import gc
import importlib
import importlib.util
import json
import os
import selectors
import signal
import socket
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgen.gates.runner.__main__ import KINDS
from kgen.gates.runner.__main__ import main as run

LARGEST = 1 << 17  # bytes of a request
NUMBER = struct.Struct("i")  # a process number, a negative errno where there is no process, a wait status
# need NumPy, which a kit does not carry
INTERPRETED = ("kgen.gates.ptx", "kgen.gates.runner.interpreted", "kgen.gates.ranks.interpreted")


@dataclass(frozen=True)
class Fork:
    """One that has not ended."""

    pid: int
    end: int  # pidfd
    line: socket.socket


def prepare() -> int:
    """Import everything; the number of threads afterwards."""
    for name in {target.partition(":")[0] for target in KINDS.values()} - set(INTERPRETED):
        importlib.import_module(name)
    if importlib.util.find_spec("numpy") is not None:
        for name in INTERPRETED:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the forks leave it where it is
    return len(list(Path("/proc/self/task").iterdir()))


class Template:
    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)

    def serve(self) -> list[str] | None:
        """Until the socket is closed. In a fork: the arguments of its job."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._requests:
                    data, fds, _, _ = socket.recv_fds(self._requests, LARGEST, 2)
                    if not data:
                        return None
                    if (arguments := self._fork(json.loads(data), *fds)) is not None:
                        return arguments
                elif key.fileobj == key.data.end:
                    self._ended(key.data)
                elif key.data.line.fileno() >= 0:  # it has not ended, and whoever asked for it is gone
                    self._selector.unregister(key.data.line)
                    os.killpg(key.data.pid, signal.SIGKILL)

    def _fork(self, request: dict[str, Any], log: int, asked: int) -> list[str] | None:
        line = socket.socket(fileno=asked)
        begun, begins = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or errno.EAGAIN)
        if pid == 0:
            self._forget()
            line.close()
            os.close(begun)
            become(request, log)
            os.close(begins)
            arguments: list[str] = request["arguments"]
            return arguments
        for fd in (begins, log):
            os.close(fd)
        os.read(begun, 1)  # its end: the fork is a group, which can be killed, or it is dead
        os.close(begun)
        _tell(line, pid)
        if pid < 0:
            line.close()
            return None
        fork = Fork(pid, os.pidfd_open(pid), line)
        self._selector.register(fork.end, selectors.EVENT_READ, fork)
        self._selector.register(line, selectors.EVENT_READ, fork)
        return None

    def _ended(self, fork: Fork) -> None:
        _, status = os.waitpid(fork.pid, 0)
        _tell(fork.line, status)
        self._selector.unregister(fork.end)
        with contextlib.suppress(KeyError):  # its other end was closed
            self._selector.unregister(fork.line)
        os.close(fork.end)
        fork.line.close()

    def _forget(self) -> None:
        """In a fork: what belongs to this process and to the other forks."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            else:
                os.close(key.fd)
        self._selector.close()


def _tell(line: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it any more
        line.send(NUMBER.pack(number))


def become(request: dict[str, Any], log: int) -> None:
    """In a fork: a session of its own, in the place and with the variables that were asked for."""
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    tempfile.tempdir = None  # asked again, of these variables


def main(argv: list[str]) -> int:
    own, requests = os.getpid(), socket.socket(fileno=int(argv[0]))
    requests.send(NUMBER.pack(prepare()))
    arguments = Template(requests).serve()
    return 0 if arguments is None else run(arguments, own)
