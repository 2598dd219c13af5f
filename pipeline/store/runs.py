"""Run folders: the truth about what a run proposed and what the gates said. Everything else can be rebuilt from them.

    <runs>/<utc>-<op>-<id6>/run.json, kit.key, 0001-<sha12>/{kernel.py, origin.json, <gate>.json ..., verdict.json}

Folders appear whole or not at all; a candidate folder without `verdict.json` was interrupted and can be taken up again.
Writers hold the run's lock; readers need none. Not covered: deleting runs.
"""

import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from kgen.records import Candidate
from kgen.store.candidates import FOLDER, CandidateFolder, candidate_files, folder_name
from kgen.store.documents import json_bytes, read_bytes, read_record
from kgen.store.durable import DURABLE, Durable, is_locked, locked, sweep, sync_folder
from kgen.store.errors import IntegrityError, storing

RUN = "run.json"
KEY = "kit.key"
KEY_BYTES = 32
LOCK_WAIT = 2.0  # seconds: a run is worked on by one process; only a reader's glance holds the lock for a moment
STAMP = "%Y%m%dT%H%M%SZ"
OP_NAME = re.compile(r"[a-z][a-z0-9_]*")


def utc_now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class RunInfo:
    """What `run.json` says. `finished` is empty until the run has come to its end, whatever the outcome."""

    SCHEMA: ClassVar[str] = "kgen.run/1"
    id: str
    op: str
    command: str
    created: str  # UTC, ISO 8601
    version: str  # of kgen
    settings: Mapping[str, Any] = field(default_factory=dict)
    finished: str = ""
    outcome: str = ""


@dataclass(frozen=True)
class Run:
    """One run folder."""

    path: Path
    durable: Durable = DURABLE

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def info(self) -> RunInfo:
        """Raises IntegrityError when run.json is damaged."""
        return read_record(RunInfo, self.path / RUN)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for writing and sweep up after crashed writers. Raises LockBusy when another process has it."""
        with locked(self.path, LOCK_WAIT):
            self.durable.make_folder(self.path)  # who began the run may have died before its name was on the medium
            sweep(self.path)
            yield

    @property
    def state(self) -> str:
        """`finished`, `running` (a process holds its lock) or `interrupted`."""
        if self.info.finished:
            return "finished"
        return "running" if is_locked(self.path) else "interrupted"

    def folders(self) -> tuple[CandidateFolder, ...]:
        """The candidate folders in the order of their numbers."""
        op = self.info.op
        with storing(self.path, "read"):
            found = [p for p in self.path.iterdir() if FOLDER.fullmatch(p.name) and p.is_dir()]
        return tuple(
            sorted((CandidateFolder(p, op, self.durable) for p in found), key=lambda f: (f.number, f.short_id))
        )

    def interrupted(self) -> tuple[CandidateFolder, ...]:
        return tuple(f for f in self.folders() if f.interrupted)

    def add(self, candidate: Candidate) -> CandidateFolder:
        """The candidate's folder, created unless the same source is there already. Call with the lock held.

        Raises ValueError for another op's candidate, StoreError.
        """
        info, folders = self.info, self.folders()
        if candidate.op != info.op:
            raise ValueError(f"run {self.id} is about {info.op}, the candidate about {candidate.op}")
        known = next((f for f in folders if f.short_id == candidate.id[:12]), None)
        if known is not None:
            self.durable.make_folder(known.path)  # likewise
            return known
        path = self.path / folder_name(1 + max((f.number for f in folders), default=0), candidate)
        self.durable.appear(path, candidate_files(candidate))
        return CandidateFolder(path, info.op, self.durable)

    def folder(self, name: str) -> CandidateFolder:
        """A candidate's folder by number, folder name or the beginning of its id. Raises ValueError."""
        found = [
            f for f in self.folders() if name == f.path.name or f.short_id.startswith(name) or name == str(f.number)
        ]
        exact = [f for f in found if name in (str(f.number), f"{f.number:04d}", f.path.name)] or found
        if len(exact) != 1:
            raise ValueError(f"run {self.id} has {len(exact)} candidates called {name!r}")
        return exact[0]

    def key(self) -> bytes:
        """The secret that this run's kits sign their evidence with. Raises IntegrityError when it is gone."""
        data = read_bytes(self.path / KEY)
        if len(data) != KEY_BYTES:
            raise IntegrityError(f"{self.path / KEY} is damaged: {len(data)} bytes instead of {KEY_BYTES}")
        return data

    def mark(self, outcome: str) -> None:
        """Note how far the run is, without ending it. Call with the lock held."""
        self.durable.write(self.path / RUN, json_bytes(replace(self.info, finished="", outcome=outcome)))

    def finish(self, outcome: str) -> None:
        """Mark the run as come to its end; one that had ended this way keeps its time. Call with the lock held."""
        info = self.info
        if info.finished and info.outcome == outcome:
            with storing(self.path):
                sync_folder(self.path)  # who wrote it may have died before that
            return
        self.durable.write(self.path / RUN, json_bytes(replace(info, finished=utc_now(), outcome=outcome)))


@dataclass(frozen=True)
class Runs:
    """The folder of all runs."""

    root: Path
    durable: Durable = DURABLE

    def create(self, op: str, command: str, version: str, settings: Mapping[str, Any] | None = None) -> Run:
        """A new run folder with its own one-time key, the latest of all. Raises ValueError (not an op), StoreError."""
        if not OP_NAME.fullmatch(op):
            raise ValueError(f"{op!r} is not an op's name")
        stamp = max(datetime.now(UTC).strftime(STAMP), self._after_the_newest())
        name = f"{stamp}-{op}-{secrets.token_hex(3)}"
        info = RunInfo(name, op, command, utc_now(), version, settings or {})
        files = {RUN: (json_bytes(info), 0o666), KEY: (secrets.token_bytes(KEY_BYTES), 0o600)}
        self.durable.make_folder(self.root)
        sweep(self.root, deep=False)
        self.durable.appear(self.root / name, files)
        return Run(self.root / name, self.durable)

    def _after_the_newest(self) -> str:
        """A second after the newest run's stamp: names sort as runs were begun, whatever the clock does meanwhile."""
        stamps = [run.id.split("-")[0] for run in self.list()]
        try:
            return (datetime.strptime(max(stamps), STAMP) + timedelta(seconds=1)).strftime(STAMP)
        except (ValueError, OverflowError):  # none yet, or a name that a person gave
            return ""

    def list(self) -> tuple[Run, ...]:
        """All runs, oldest first. Folders without a run.json are none of ours."""
        if not self.root.is_dir():
            return ()
        with storing(self.root, "read"):
            found = sorted(p for p in self.root.iterdir() if (p / RUN).is_file() and not p.name.startswith("."))
        return tuple(Run(p, self.durable) for p in found)

    def find(self, name: str) -> Run:
        """A run by path, id, unambiguous part of its id, or `latest`. Raises ValueError (one line)."""
        path = Path(name).expanduser()
        if (path / RUN).is_file():
            return Run(path.absolute(), self.durable)
        runs = self.list()
        if name == "latest" and runs:
            return runs[-1]
        found = [r for r in runs if r.id == name] or [r for r in runs if name and name in r.id]
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(f"{name!r} fits {len(found)} runs: {', '.join(r.id for r in found[:4])}")
        known = f"the latest is {runs[-1].id}" if runs else "there are none yet"
        raise ValueError(f"no run {name!r} in {self.root}; {known}")
