"""The process that stands beside the holder of a lease: `python -I -S watchdog.py LOCK_FD LEASE_SECONDS`.

It shares the holder's lock, reads orders from standard input, and acts when the holder cannot:

    run PID SECONDS    the holder started this process group, which has that long
    end PID            and saw it end
    until SECONDS      the lease lasts that long from now

Past a limit the process group is killed; past the lease's all of them, and the lock is given up once they are gone, so
that a holder which hangs keeps nobody waiting. When the holder is gone (end of input) the same happens at once. Times
are of the monotonic clock. Standard library only.
"""

import contextlib
import fcntl
import os
import select
import signal
import sys
import time

POLL_SECONDS = 0.2
GONE_SECONDS = 0.02
EXPIRED = 9  # exit code: the lease's time was over


class Group:
    """A process group by its leader, with the leader's start time: a number may be given to another process."""

    def __init__(self, pid: int, until: float) -> None:
        self.pid, self.until, self.born = pid, until, started(pid)

    def kill(self) -> None:
        if self.born and started(self.pid) == self.born:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def gone(self) -> bool:
        return not self.born or started(self.pid) != self.born


def started(pid: int) -> str:
    """The process's start time, "" where there is none or only its exit status is left."""
    try:
        with open(f"/proc/{pid}/stat", encoding="latin-1") as file:  # noqa: PTH123  nothing is imported for this
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


class Watchdog:
    def __init__(self, lock: int, seconds: float) -> None:
        self.lock, self.until = lock, time.monotonic() + seconds
        self.groups: dict[int, Group] = {}

    def watch(self) -> int:
        """Until the holder is gone (0), or its time is over (EXPIRED)."""
        rest = b""
        while True:
            now = time.monotonic()
            if now > self.until:
                return EXPIRED
            for group in self.groups.values():
                if now > group.until:
                    group.kill()
            if not select.select([0], [], [], POLL_SECONDS)[0]:
                continue
            data = os.read(0, 1 << 16)
            if not data:
                return 0
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.order(line.decode().split())

    def order(self, words: list[str]) -> None:
        now = time.monotonic()
        if words[0] == "run":
            self.groups[int(words[1])] = Group(int(words[1]), now + float(words[2]))
        elif words[0] == "end":
            self.groups.pop(int(words[1]), None)
        else:
            self.until = max(self.until, now + float(words[1]))

    def clear(self) -> None:
        """Kill what runs, wait until it is gone, then let the next one in. What cannot be killed keeps the lock."""
        while left := [g for g in self.groups.values() if not g.gone()]:
            for group in left:
                group.kill()
            time.sleep(GONE_SECONDS)
        fcntl.flock(self.lock, fcntl.LOCK_UN)


def main(argv: list[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its holder
    dog = Watchdog(int(argv[0]), float(argv[1]))
    code = dog.watch()
    dog.clear()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
