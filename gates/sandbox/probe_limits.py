"""Probes of limits: time, processes, memory, disk, files, output, and what is left after the end.

Run inside the sandbox; standard library only. Each ends by itself after a small, bounded damage, so that it can be run
where a defence is missing. An empty list says that everything was refused; of those that are to be killed, that they
say nothing.
"""

import contextlib
import ctypes
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kgen.gates.sandbox.attempt import Bait, call, libc, through

MIB = 1 << 20
PATIENCE = 4.0  # seconds that a probe of time goes on when nobody stops it
PAUSE = 0.5  # for whoever watches a folder
LINGER = 8.0  # of processes that want to stay
FILE, FILES = 8 * MIB, 24
PR_SET_PDEATHSIG = 1


def endless_loop(bait: Bait) -> list[str]:
    until = time.process_time() + PATIENCE
    while time.process_time() < until:
        pass
    return [f"computed for {PATIENCE:.0f} s"]


def sleeping(bait: Bait) -> list[str]:
    time.sleep(PATIENCE)
    return [f"waited for {PATIENCE:.0f} s"]


def _fork(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def fork_bomb(bait: Bait) -> list[str]:
    started: list[int] = []
    with contextlib.suppress(OSError):
        while len(started) < bait["processes"] + 50:
            started.append(_fork(partial(time.sleep, LINGER)))
    for pid in started:
        with contextlib.suppress(OSError):  # who may not kill leaves them to who kills the group
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return [f"started {len(started)} processes"] if len(started) > bait["processes"] else []


def threads(bait: Bait) -> list[str]:
    threading.stack_size(64 << 10)
    stop, started = threading.Event(), 0
    with contextlib.suppress(RuntimeError, MemoryError):
        while started < bait["threads"] + 50:
            threading.Thread(target=stop.wait, args=(LINGER,), daemon=True).start()
            started += 1
    stop.set()
    return [f"started {started} threads"] if started > bait["threads"] else []


def memory(bait: Bait) -> list[str]:
    more = bait["memory"] + 64 * MIB
    return through({"malloc": partial(_malloc, more), "mmap": partial(mmap.mmap, -1, more)})


def _malloc(size: int) -> int:
    """Never touched, so that it costs nothing where it is not refused."""
    libc.malloc.restype = ctypes.c_void_p
    return 0 if libc.malloc(ctypes.c_size_t(size)) else -1


def _write(name: str, size: int) -> int:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
    os.posix_fallocate(fd, 0, size)
    return fd


def disk(bait: Bait) -> list[str]:
    for i in range(FILES):
        os.close(_write(f"disk{i}", FILE))
        time.sleep(0.02)
    time.sleep(PAUSE)
    return [f"filled {FILES * FILE // MIB} MiB"]


def reserving(bait: Bait) -> list[str]:
    fd = os.open("reserved", os.O_WRONLY | os.O_CREAT, 0o600)
    return through({"fallocate": partial(call, "fallocate", fd, 0, 0, MIB)})


def deleted_files(bait: Bait) -> list[str]:
    """Takes room that no look at the folder shows: the files are open and deleted."""
    for i in range(FILES):
        _write(f"gone{i}", FILE)
        Path(f"gone{i}").unlink()
        time.sleep(0.02)
    time.sleep(PAUSE)
    return [f"filled {FILES * FILE // MIB} MiB"]


def nameless_files(bait: Bait) -> list[str]:
    return through(
        {
            "a nameless file": partial(os.open, ".", os.O_TMPFILE | os.O_RDWR),
            "a file in memory": partial(os.memfd_create, "x"),
        }
    )


def many_files(bait: Bait) -> list[str]:
    count = 4 * bait["entries"]
    for i in range(count):
        os.close(os.open(f"many{i}", os.O_WRONLY | os.O_CREAT, 0o600))
    time.sleep(PAUSE)
    return [f"made {count} files"]


def file_size(bait: Bait) -> list[str]:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    more = bait["file_bytes"] + MIB
    return through(
        {"allocated more": partial(_write, "large", more), "made it longer": partial(os.truncate, "large", more)}
    )


def open_files(bait: Bait) -> list[str]:
    opened = 0
    with contextlib.suppress(OSError):
        while opened <= bait["open_files"]:
            os.open("/dev/null", os.O_RDONLY)
            opened += 1
    return [f"{opened} open files"] if opened > bait["open_files"] else []


def endless_output(bait: Bait) -> list[str]:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        os.write(1, b"x" * 4096)
    return [f"wrote for {PATIENCE:.0f} s"]


def descriptors(bait: Bait) -> list[str]:
    return through({f"descriptor {fd}": partial(os.fstat, fd) for fd in range(3, 256)})


def _hold(bait: Bait) -> None:
    """Show that this process lives, as do all that it starts: they inherit the open end."""
    os.write(os.open(bait["fifo"], os.O_WRONLY | os.O_NONBLOCK), b"x")


def _linger(ready: int = -1) -> None:
    os.setsid()
    for ignored in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    if ready >= 0:
        os.close(ready)
    time.sleep(LINGER)


def daemons(bait: Bait) -> list[str]:
    """Leaves a grandchild in a session of its own, and ends. The judge sees whether that lives on."""
    _hold(bait)
    reader, ready = os.pipe()
    with contextlib.suppress(OSError):
        _fork(partial(_fork, partial(_linger, ready)))
    os.close(ready)
    os.read(reader, 1)  # ends once the grandchild is on its own
    return []


def leftovers(bait: Bait) -> list[str]:
    """Processes and threads that want to stay, to be killed. The judge sees how long they last."""
    _hold(bait)
    libc.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)  # its parent's death would be the end of it, if this is refused
    with contextlib.suppress(OSError):
        for _ in range(16):
            _fork(_linger)
    for _ in range(4):
        threading.Thread(target=time.sleep, args=(LINGER,), daemon=True).start()
    time.sleep(LINGER)
    return ["was not killed"]


closing = judge_killed = leftovers
