"""One attempt at a parser under watch: its time, its memory, and that it touches nothing but its input.

    crash = attempt(target, data)      # None: the property held

Covered: any exception that is not the parser's own, more CPU seconds than SECONDS, a peak of memory that grew by more
than MEGABYTES, a file written, a process started, a connection made. Not covered: a death of the whole process, which
the one who started it sees (`fuzz.run`).
"""

import atexit
import functools
import os
import re
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from fuzz.target import Target

SECONDS = 5.0  # of CPU time for one input; the slowest seed takes a tenth
MEGABYTES = 256  # by which one input may raise the peak of the process
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = frozenset(
    [
        *("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod"),
        *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.kill"),
    ]
)
CONNECTIONS = frozenset(["socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"])


class TooSlow(BaseException):
    """The time is over; no parser's handler may swallow it."""


class Touched(BaseException):
    """The parser did something to the world."""


@dataclass(frozen=True)
class Crash:
    """`signature`: kind and place, the same for inputs that show the same fault."""

    signature: str
    detail: str


class _Watch:
    """What an audit hook may let pass; hooks cannot be taken away again, so there is one that is asleep most times."""

    def __init__(self) -> None:
        self.on, self.network, self.hooked = False, False, False
        self.seen: list[str] = []

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        wrote = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
        wrote = wrote and arguments[0] != os.devnull
        if wrote or event in CHANGES or (event in CONNECTIONS and not self.network):
            self.seen.append(f"{event} {arguments[:1]!r:.80}")


_WATCH = _Watch()


@contextmanager
def own_files() -> Iterator[None]:
    """Within it a target itself may write: what it then gives to the parser."""
    before, _WATCH.on = _WATCH.on, False
    try:
        yield
    finally:
        _WATCH.on = before


@functools.cache
def scratch() -> Path:
    """The folder of the targets' own files."""
    with own_files():
        folder = Path(tempfile.mkdtemp(prefix="kgen-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def _watched(target: Target) -> Iterator[None]:
    if not _WATCH.hooked:
        sys.addaudithook(_WATCH.hook)
        _WATCH.hooked = True
    _WATCH.seen.clear()
    _WATCH.network, _WATCH.on = target.network, True
    try:
        yield
    finally:
        _WATCH.on = False
    if _WATCH.seen:
        raise Touched(_WATCH.seen[0])


def _late(number: int, frame: FrameType | None) -> None:
    raise TooSlow(f"more than {SECONDS:g} s of CPU time")


@contextmanager
def _timed() -> Iterator[None]:
    before = signal.signal(signal.SIGPROF, _late)
    start = sum(os.times()[:2])
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    if sum(os.times()[:2]) - start > SECONDS:
        raise TooSlow(f"more than {SECONDS:g} s of CPU time")


def _peak(anew: bool = False) -> int:
    """MiB that were resident at most since the count began `anew`; 0 where the kernel does not say."""
    try:
        if anew:
            Path("/proc/self/clear_refs").write_text("5")
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return 0
    return int(found[1]) >> 10 if found else 0


def attempt(target: Target, data: bytes) -> Crash | None:
    """Run the target's property on one input; on the main thread only."""
    before = _peak(anew=True)
    try:
        with warnings.catch_warnings(), _watched(target), _timed():
            warnings.simplefilter("ignore")
            target.check(data)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  whatever it is, it is what this looks for
        return _crash(error)
    grown = _peak() - before
    return Crash("memory", f"the peak of memory grew by {grown} MiB") if grown > MEGABYTES else None


def _crash(error: BaseException) -> Crash:
    kind = type(error).__name__
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/fuzz/guard.py" not in f.filename]
    place = next((f for f in reversed(frames) if "/fuzz/" not in f.filename), frames[-1] if frames else None)
    where = f"{place.filename.rsplit('/', 1)[-1]}:{place.name}" if place else "?"
    if isinstance(error, TooSlow | Touched | MemoryError):
        where = next((f"{f.filename.rsplit('/', 1)[-1]}:{f.name}" for f in frames if "/fuzz/" not in f.filename), where)
    what = f" {str(error)[:60]}" if isinstance(error, AssertionError) else ""
    return Crash(re.sub(r"\d+", "N", f"{kind} {where}{what}"), f"{kind}: {str(error)[:300]}")
