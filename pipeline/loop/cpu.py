"""CPU seconds of this process and everything below it, ended or still running.

The clock of the process (with children that have ended and were waited for), and for every process below it that runs
the four times of /proc/PID/stat: its own, and of its ended children. Without /proc only the former. What runs on other
machines, and what a process left behind that was orphaned, is not in it.
"""

import os

PROC = "/proc"


def cpu_seconds() -> float:
    """User and system time together, since the process began."""
    mine = os.times()
    return mine.user + mine.system + mine.children_user + mine.children_system + sum(_below(os.getpid()))


def _below(root: int) -> list[float]:
    times: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for name in _names():
        try:
            fields = _read(f"{PROC}/{name}/stat").rpartition(b") ")[2].split()
            pid, parent = int(name), int(fields[1])
            times[pid] = sum(int(f) for f in fields[11:15]) / tick  # utime, stime, cutime, cstime
        except (OSError, ValueError, IndexError):
            continue  # it has ended meanwhile
        children.setdefault(parent, []).append(pid)
    found, waiting = [], list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        found.append(times[pid])
        waiting += children.get(pid, ())
    return found


def _names() -> list[str]:
    """Of all processes. Plain names: every stage of a run asks twice, and a Path for each took half the time."""
    try:
        with os.scandir(PROC) as entries:
            return [entry.name for entry in entries if entry.name.isdecimal()]
    except OSError:
        return []


def _read(path: str) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(handle, 4096)  # one line of some fifty numbers
    finally:
        os.close(handle)
