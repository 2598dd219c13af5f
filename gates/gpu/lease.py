"""A GPU for one kgen process at a time: an exclusive lock a device, with a record of who has it and until when.

    with leased("cuda", "perf-sweep of 1234", seconds) as held: ...      None where there is nothing to share

Whoever waits is told for whom, and stands in a queue, so that a holder which comes back at once does not go first.
Uses within one process share its lease: threads, and gates that start several jobs. A watchdog process (watchdog.py)
ends what runs past its time, and gives the device up when its holder hangs or dies. Among several devices of one model
the first that is free and not in quarantine is taken. Not covered: other software on the GPU; see also places.py.
"""

import contextlib
import fcntl
import getpass
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from kgen.gates.gpu import devices, places, quarantine, watchdog
from kgen.gates.gpu.devices import Bench, Device
from kgen.store.errors import StoreError

WAIT_SECONDS = 1800.0  # longer than any one piece of work
GRACE_SECONDS = 60.0  # beside a job's own deadline: for starting, ending, and a probe
JUDGING_SECONDS = 1200.0  # for what a gate does on the device when its jobs have ended
POLL_SECONDS = 0.05
SUFFIX, QUEUE = ".lease", ".queue"
Say = Callable[[str], None]


class Busy(StoreError):
    """Another process kept the device for longer than this one was to wait."""


class LeaseEnded(StoreError):
    """The lease was over before the work: what was measured since may have had company."""


@dataclass(frozen=True)
class Owner:
    """Who has a device. Times in UTC."""

    SCHEMA: ClassVar[str] = "kgen.gpu-owner/1"
    pid: int
    host: str
    user: str
    what: str
    since: str
    until: str

    def __str__(self) -> str:
        return f"process {self.pid} of {self.user} on {self.host} since {self.since}, until {self.until}: {self.what}"


@dataclass
class Held:
    """A lease of this process. `counters`: the driver's, when it began."""

    bench: Bench
    device: Device
    handle: int
    dog: "subprocess.Popen[bytes]"
    owner: Owner
    until: float  # by time.time()
    counters: Mapping[str, str] = field(default_factory=dict)
    users: int = 0

    @property
    def environment(self) -> Mapping[str, str]:
        return self.bench.environment(self.device)

    def extend(self, seconds: float) -> None:
        """It lasts at least that long from now."""
        if (until := time.time() + seconds) > self.until:
            self.until, self.owner = until, replace(self.owner, until=_clock(until))
            places.put(self.handle, self.owner)
            self._order(f"until {seconds:.3f}")

    def run(self, pid: int, seconds: float) -> None:
        """A process group of ours uses the device now, and may for so long."""
        self._order(f"run {pid} {seconds:.3f}")

    def end(self, pid: int) -> None:
        self._order(f"end {pid}")

    def check(self) -> None:
        """Raises LeaseEnded."""
        if (code := self.dog.poll()) is not None:
            why = (
                f"its time was over at {self.owner.until}"
                if code == watchdog.EXPIRED
                else f"its watchdog ended ({code})"
            )
            raise LeaseEnded(_path(self.device, SUFFIX), f"the lease of GPU {self.device} is over, {why}: run again")

    def _order(self, line: str) -> None:
        assert self.dog.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `check` will say so
            os.write(self.dog.stdin.fileno(), f"{line}\n".encode())


_held: list[Held] = []  # that of this process
_guard = threading.Lock()


def _log(text: str) -> None:
    logging.getLogger(__name__).warning(text)


@contextlib.contextmanager
def leased(
    device: str, what: str, seconds: float, wait: float = WAIT_SECONDS, say: Say = _log
) -> Iterator[Held | None]:
    """Hold a device for `seconds`, after `wait` seconds at most. `device`: a gate's word for it.

    Raises Busy, NoDevice, and at the end LeaseEnded when it did not last; StoreError where files cannot be had.
    """
    bench = devices.bench(device)
    if bench is None or not bench.devices():
        yield None
        return
    with _guard:
        if not _held:
            _held.append(_acquired(bench, what, seconds, wait, say))
        held = _held[0]
        held.users += 1
    try:
        held.check()
        held.bench.choose(held.device)  # of this thread
        held.extend(seconds)
        yield held
        held.check()
    finally:
        with _guard:
            held.users -= 1
            if not held.users:
                _held.remove(held)
                _release(held)


def current() -> Held | None:
    """The lease of this process."""
    return _held[0] if _held else None


def owner_of(device: Device) -> Owner | None:
    """Who has a device now; None when it is free. A record without a lock was left by a process that died."""
    path = _path(device, SUFFIX)
    if not path.exists():
        return None
    handle = places.opened(path)
    try:
        if _locked(handle):
            return None
        return places.read(Owner, path) or Owner(0, "", "somebody", "kgen", "", "")
    finally:
        os.close(handle)


def _path(device: Device, suffix: str) -> Path:
    return places.folder() / f"{device.uuid}{suffix}"


def _clock(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _usable(found: Sequence[Device]) -> list[Device]:
    """Those of the first one's model that are not in quarantine. Raises NoDevice."""
    peers = [d for d in found if d.name == found[0].name]  # the current device first
    sick = [record for d in peers if (record := quarantine.find(d)) is not None]
    if len(sick) == len(peers):
        more = f", {len(sick) - 1} more too" if len(sick) > 1 else ""
        text = f"{sick[0]}{more}; when one is well again: kgen gpu release {sick[0].device}, then run this again"
        raise quarantine.NoDevice(places.folder(), text)
    return [d for d in peers if quarantine.find(d) is None]


def _acquired(bench: Bench, what: str, seconds: float, wait: float, say: Say) -> Held:
    deadline, told = time.monotonic() + wait, ""
    with contextlib.ExitStack() as queue:
        first_in: set[str] = set()  # devices in whose queue nobody is before this process
        while True:
            usable = _usable(bench.devices())
            for device in usable:
                if device.uuid not in first_in and (place := _try(device, QUEUE)) is not None:
                    queue.callback(os.close, place)
                    first_in.add(device.uuid)
                if device.uuid in first_in and (handle := _try(device, SUFFIX)) is not None:
                    return _begun(bench, device, handle, what, seconds)
            holders = [f"GPU {d} is in use by {places.read(Owner, _path(d, SUFFIX)) or 'kgen'}" for d in usable]
            if time.monotonic() >= deadline:
                text = f"{holders[0]}; it was not free within {wait:.0f} s: try again later (kgen gpu shows who has it)"
                raise Busy(_path(usable[0], SUFFIX), text)
            if holders[0].partition(", until")[0] != told:
                told = holders[0].partition(", until")[0]
                say(f"{holders[0]}; waiting, {wait:.0f} s at most")
            time.sleep(POLL_SECONDS)


def _try(device: Device, suffix: str) -> int | None:
    """The locked file's descriptor, or None at once."""
    handle = places.opened(_path(device, suffix))
    if _locked(handle):
        return handle
    os.close(handle)
    return None


def _begun(bench: Bench, device: Device, handle: int, what: str, seconds: float) -> Held:
    now = time.time()
    owner = Owner(os.getpid(), socket.gethostname(), _user(), what, _clock(now), _clock(now + seconds))
    places.put(handle, owner)
    dog = subprocess.Popen(
        [sys.executable, "-I", "-S", watchdog.__file__, str(handle), f"{seconds:.3f}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(handle,),
        start_new_session=True,
    )
    return Held(bench, device, handle, dog, owner, now + seconds, bench.counters(device))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"  # a container without names


def _release(held: Held) -> None:
    assert held.dog.stdin is not None
    if held.dog.poll() is None:
        places.put(held.handle, None)
        fcntl.flock(held.handle, fcntl.LOCK_UN)  # for the watchdog's copy too
    os.close(held.handle)
    held.dog.stdin.close()
    held.dog.wait()
