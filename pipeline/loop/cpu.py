"""CPU seconds of this process and everything below it, ended or still running.

The clock of the process (with children that have ended and were waited for), and for every process below it that runs
the four times of /proc/PID/stat: its own, and of its ended children. Which are below it is asked of those above, one by
one: where one ends just then, the list may lack another for this once. Only where the kernel does not say (without
CONFIG_PROC_CHILDREN) all its processes are looked through. Without /proc only the clock. What runs on other machines,
and what a process left behind that was orphaned, is not in it.
"""

import os
from collections.abc import Iterator

PROC = "/proc"


def cpu_seconds() -> float:
    """User and system time together, since the process began."""
    mine = os.times()
    return mine.user + mine.system + mine.children_user + mine.children_system + sum(_below(os.getpid()))


def _below(root: int) -> list[float]:
    tick = os.sysconf("SC_CLK_TCK")
    pids = _told(root) if os.path.exists(f"{PROC}/{root}/task/{root}/children") else _looked_up(root)  # noqa: PTH110
    return [sum(times) / tick for pid in pids if (times := _times(pid))]


def _told(root: int) -> Iterator[int]:
    """The processes below `root`, by the lists that each of their threads has of its children."""
    waiting = [root]
    while waiting:
        folder = f"{PROC}/{waiting.pop()}/task"
        for thread in _numbers(folder):
            for word in _read(f"{folder}/{thread}/children").split():
                waiting.append(int(word))
                yield int(word)


def _looked_up(root: int) -> Iterator[int]:
    """The same from the parents of all processes."""
    children: dict[int, list[int]] = {}
    for name in _numbers(PROC):
        if fields := _fields(int(name)):
            children.setdefault(int(fields[1]), []).append(int(name))
    waiting = [root]
    while waiting:
        found = children.get(waiting.pop(), ())
        waiting += found
        yield from found


def _times(pid: int) -> list[int]:
    """utime, stime, cutime, cstime in ticks; empty for one that has ended meanwhile."""
    return [int(f) for f in _fields(pid)[11:15]]


def _fields(pid: int) -> list[bytes]:
    """What /proc/PID/stat says behind the name, the parent second; empty for one that has ended meanwhile."""
    return _read(f"{PROC}/{pid}/stat").rpartition(b") ")[2].split()


def _numbers(folder: str) -> list[str]:
    """Names that are numbers. Plain ones: every stage of a run asks, and a Path for each took half the time."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.name.isdecimal()]
    except OSError:
        return []


def _read(path: str) -> bytes:
    """Nothing of what has gone."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  a Path would take as long as the reading
            return file.read()
    except OSError:
        return b""
