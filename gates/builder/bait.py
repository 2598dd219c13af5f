"""What the judge lays out for the sandbox's probes to reach, and how it sees from outside whether they did.

A folder with a secret file, a process that listens by every door and holds a secret, another job's folder, and a pipe
that every process of a probe holds open: its end is the last one's. Everything is first tried from outside, for bait
that nobody can reach shows nothing.
"""

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kgen.gates.builder
import kgen.gates.sandbox
from kgen.gates.sandbox import fence, outsider
from kgen.gates.sandbox.folder import FOLDER_ENTRIES
from kgen.gates.sandbox.levels import OWN_USER_PROCESSES, SYSTEM, Level, python_paths
from kgen.gates.sandbox.lines import JOB

DOORS = {"tcp": "tcp", "udp": "udp", "dns": "udp", "unix-socket": "unix", "abstract-socket": "abstract"}
PLACES = ("/", "/usr", "/etc", "/tmp", "/var/tmp", "/dev/shm", "/home")
FILES = ("/etc/passwd", "/etc/shadow", "/etc/hostname", "/etc/machine-id")
IN_HOME = (".bashrc", ".profile", ".netrc", ".ssh/id_rsa", ".ssh/authorized_keys")
CONTROL, CONTROL_SECONDS = "control", 2.0


@dataclass(frozen=True)
class Arrival:
    door: str
    got: str


class Outsider:
    """The process outside. `reachable`: the doors that were open to the judge itself."""

    def __init__(self, folder: Path, secret: str) -> None:
        self.abstract = f"kgen-{secret[:12]}"
        self._arrivals: list[Arrival] = []
        command = [sys.executable, "-I", "-S", str(Path(outsider.__file__).resolve()), str(folder), self.abstract]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={outsider.SECRET: secret},
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.ports: dict[str, int] = json.loads(self._process.stdout.readline())
        self.pid = self._process.pid
        self.socket = f"{folder}/socket"
        threading.Thread(target=self._listen, daemon=True).start()
        self.reachable = self._control()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._arrivals.append(Arrival(**json.loads(line)))

    def _control(self) -> frozenset[str]:
        local = "127.0.0.1"
        stream: dict[str, tuple[int, Any]] = {
            "tcp": (socket.AF_INET, (local, self.ports["tcp"])),
            "unix": (socket.AF_UNIX, self.socket),
            "abstract": (socket.AF_UNIX, f"\0{self.abstract}"),
        }
        for family, address in stream.values():
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as connection:
                connection.connect(address)
                connection.sendall(CONTROL.encode())
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
            connection.sendto(CONTROL.encode(), (local, self.ports["udp"]))
        os.kill(self.pid, signal.SIGURG)
        wanted = {*stream, "udp", "signals"}
        until = time.monotonic() + CONTROL_SECONDS
        while wanted - {a.door for a in self._arrivals} and time.monotonic() < until:
            time.sleep(0.01)
        return frozenset(a.door for a in self._arrivals)

    def mark(self) -> int:
        """A point in time, for `since`."""
        return len(self._arrivals)

    def since(self, mark: int) -> list[Arrival]:
        return self._arrivals[mark:]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Grounds:
    """The whole lay-out, in a folder of its own that the sandboxed user can walk to. Use `laid_out`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secret = secrets.token_hex(16)
        self.mark = f"kgen-{secrets.token_hex(8)}"
        self.jobs = folder / "jobs"
        self.jobs.mkdir()
        self.jobs.chmod(0o755)
        (folder / "secret").write_text(self.secret)
        (folder / "secret").chmod(0o644)
        self.outsider = Outsider(folder, self.secret)
        self._next = 0
        self._lock = threading.Lock()

    def job(self, level: Level) -> "Job":
        """A new job folder, with the pipe in it."""
        with self._lock:
            self._next += 1
            number = self._next
        folder = self.jobs / str(number)
        folder.mkdir()
        os.mkfifo(folder / "held")
        (folder / "held").chmod(0o666)
        level.prepare(folder)
        return Job(number, folder, os.open(folder / "held", os.O_RDONLY | os.O_NONBLOCK))

    def sibling(self, level: Level) -> Path:
        """Another job's folder, with a source in it, as the builder prepares one."""
        folder = self.job(level).folder
        (folder / "candidate.py").write_text("secret = 1\n")
        (folder / "candidate.py").chmod(0o644)
        return folder

    def places(self) -> list[str]:
        """Folders where nothing may be written."""
        return [*PLACES, str(Path.home()), str(self.folder), str(self.jobs), *own_packages(), sys.prefix]

    def bait(self, level: Level, kind: str, places: list[str], private: bool) -> dict[str, Any]:
        """What a probe is told, as JSON values. `kind`: the fence; `private`: whether it goes for what is no bait."""
        limits, home = fence.Limits(), Path.home()
        own = [p for p in (*FILES, *(f"{home}/{name}" for name in IN_HOME)) if os.access(p, os.R_OK)]
        return {
            "fence": kind,
            "say": f"{level.name}-{kind}",
            "secret": self.secret,
            "mark": self.mark,
            "places": places,
            "files": [f"{self.folder}/secret", *(own if private else [])],
            "home": str(home),
            "names": _private_names(home) if private else [],
            "sibling": str(self.sibling(level)),
            "outsider": self.outsider.pid,
            "unix": self.outsider.socket,
            "abstract": self.outsider.abstract,
            "tcp": self.outsider.ports["tcp"],
            "tcp6": self.outsider.ports.get("tcp6", self.outsider.ports["tcp"]),
            "udp": self.outsider.ports["udp"],
            "dns": _name_servers() if private else [],
            "caps": level.keeps,
            "processes": 0 if kind == JOB else OWN_USER_PROCESSES,
            "threads": OWN_USER_PROCESSES,
            "entries": FOLDER_ENTRIES,
            "memory": limits.memory,
            "file_bytes": limits.file_bytes,
            "open_files": limits.open_files,
        }

    def written(self, places: list[str]) -> list[str]:
        """What a probe left outside of its folder; it is removed."""
        found = [p for place in places for p in _marked(Path(place), self.mark)]
        for path in found:
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        return [str(p) for p in found]


@dataclass
class Job:
    """A job folder. `held` tells of its processes: its end, that the last is gone."""

    number: int
    folder: Path
    held: int

    def started(self, seconds: float) -> bool:
        """Whether the probe has shown within that time that it lives."""
        poll = select.poll()
        poll.register(self.held, select.POLLIN)
        return any(events & select.POLLIN for _, events in poll.poll(seconds * 1000)) and bool(os.read(self.held, 1))

    def gone(self, until: float) -> float | None:
        """When the last process was seen to be gone (time.monotonic); None: some still live at `until`."""
        poll = select.poll()
        poll.register(self.held, 0)  # hang-ups are always told
        while True:
            if poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return time.monotonic()
            if time.monotonic() >= until:
                return None

    def close(self) -> None:
        os.close(self.held)


@contextlib.contextmanager
def laid_out() -> Iterator[Grounds]:
    """The bait, and the secret in this process's own environment, for as long as it lasts."""
    with tempfile.TemporaryDirectory(prefix="kgen-conformance-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        grounds = Grounds(Path(name))
        os.environ[outsider.SECRET] = grounds.secret
        try:
            yield grounds
        finally:
            del os.environ[outsider.SECRET]
            grounds.outsider.close()


def own_packages() -> list[str]:
    """The two folders of kgen that the sandbox sees."""
    return [str(Path(p).resolve()) for m in (kgen.gates.builder, kgen.gates.sandbox) for p in m.__path__]


def _marked(place: Path, mark: str) -> list[Path]:
    try:
        return [p for p in place.iterdir() if p.name.startswith(mark)]
    except OSError:
        return []


def _private_names(home: Path) -> list[str]:
    """What lies in the home, but for the way to what the sandbox must show."""
    shown = [Path(p) for p in (*SYSTEM, *python_paths(), *own_packages())]
    on_the_way = {p.relative_to(home).parts[0] for p in shown if p.is_relative_to(home) and p != home}
    if home == Path("/") or any(home.is_relative_to(p) for p in shown):
        return []
    try:
        return sorted({p.name for p in home.iterdir()} - on_the_way)
    except OSError:
        return []


def _name_servers() -> list[str]:
    try:
        words = [line.split() for line in Path("/etc/resolv.conf").read_text().splitlines()]
    except OSError:
        return []
    return [w[1] for w in words if len(w) > 1 and w[0] == "nameserver" and ":" not in w[1]][:2]
