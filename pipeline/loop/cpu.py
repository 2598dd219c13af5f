"""CPU seconds of this process and everything below it, ended or still running.

The clock of the process (with children that have ended and were waited for), and for every process below it that runs
the four times of /proc/PID/stat: its own, and of its ended children. Without /proc only the former. What runs on other
machines, and what a process left behind that was orphaned, is not in it.
"""

import os
from pathlib import Path

PROC = Path("/proc")


def cpu_seconds() -> float:
    """User and system time together, since the process began."""
    mine = os.times()
    return mine.user + mine.system + mine.children_user + mine.children_system + sum(_below(os.getpid()))


def _below(root: int) -> list[float]:
    times: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for path in PROC.iterdir() if PROC.is_dir() else ():
        if not path.name.isdecimal():
            continue
        try:
            fields = (path / "stat").read_bytes().rpartition(b") ")[2].split()
            pid, parent = int(path.name), int(fields[1])
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
