"""A program, not a module: imports what `kgen` imports, then forks one `kgen` process for every request.

support/forked.py starts it, with one end of a socket as the only argument. A request is a JSON document (argv, env,
cwd) with four descriptors: stdin, stdout, stderr, and where to write the pid and at last the wait status. A fork runs
`kgen.cli.main` and ends as any interpreter does. Not covered: variables that Python or a package reads when it starts.
"""

import contextlib
import gc
import json
import os
import selectors
import socket
import struct
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch", "langgraph.graph", "langgraph.checkpoint.sqlite", "openai", "rich.progress", "rich.table", "jinja2",
    "kgen.cli.app", "kgen.gates.compile", "kgen.loop.graph", "kgen.loop.session", "kgen.ops", "kgen.proposers.choose",
    "kgen.report",
)  # fmt: skip
LARGEST = 1 << 18  # bytes of a request


def serve(line: socket.socket) -> list[str]:
    """Fork for every request and tell how each fork ended. Returns in the forks alone: their arguments."""
    with selectors.DefaultSelector() as selector:
        selector.register(line, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not line:  # a fork has ended
                    pid, status = os.waitpid(key.data[0], 0)
                    tell(key.data[1], status)
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    os.close(key.data[1])
                    continue
                data, fds, _, _ = socket.recv_fds(line, LARGEST, 4)
                if not data:  # whoever asked is gone
                    os._exit(0)
                pid = os.fork()
                if pid == 0:
                    for other in list(selector.get_map().values()):
                        os.close(other.fd) if other.fileobj is not line else line.close()
                        if other.data:
                            os.close(other.data[1])
                    return become(json.loads(data), fds)
                tell(fds[3], pid)
                for fd in fds[:3]:
                    os.close(fd)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, fds[3]))


def tell(fd: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for that process any more
        os.write(fd, struct.pack("i", number))


def become(request: dict[str, Any], fds: list[int]) -> list[str]:
    """In the fork: a session of its own, and what the request gave."""
    os.setsid()
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    tempfile.tempdir = None  # asked again, of these variables
    return request["argv"]


if __name__ == "__main__":
    for name in PACKAGES:
        import_module(name)
    gc.collect()
    gc.freeze()  # the forks leave it where it is
    asked = socket.socket(fileno=int(sys.argv[1]))
    threads = len(list(Path("/proc/self/task").iterdir()))
    asked.send(str(threads).encode())  # of more than one thread a fork would be no whole process
    sys.argv[:] = ["-c", *serve(asked)]
    from kgen.cli import main

    main()
