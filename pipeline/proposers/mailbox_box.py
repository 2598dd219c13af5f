"""The files of a mailbox, and the same files in the run folder when the mailbox lies elsewhere.

    <run>/mailbox/         the record: every prompt as written, every answer as received, byte for byte
    DIR/                   optional, where the agent works: the same files, and the marker that says whose it is

Whatever lies in DIR is somebody else's: links, folders and special files are never followed nor read, sizes are capped.
Not covered: what the files say (`mailbox`).
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from kgen.proposers.answers import MAX_ANSWER_BYTES
from kgen.proposers.base import SetupError
from kgen.records import sha256_bytes
from kgen.store.durable import DURABLE
from kgen.store.errors import StoreError, storing

log = logging.getLogger(__name__)

FOLDER = "mailbox"
GUIDE = "AGENTS.md"
DONE = "done.md"
PAUSED = "paused.md"
MARKER = ".kgen-mailbox"  # in DIR: the run that it belongs to
SUFFIXES = (".md", ".py")  # of answers
_NUMBERED = re.compile(r"(\d{4,})-(?:prompt|answer|error|verdict)\.(?:md|py)")
_PROMPT = re.compile(r"(\d{4,})-prompt\.md")
MARKER_BYTES = 400

Signature = tuple[int, int, int]  # inode, size, modification time in ns


@dataclass(frozen=True)
class Box:
    """`record` is the run's own mailbox folder, `outside` the folder of the user's choice, if there is one."""

    record: Path
    outside: Path | None = None

    @property
    def folder(self) -> Path:
        """Where the agent reads and writes."""
        return self.outside or self.record

    def path(self, number: int, what: str) -> Path:
        return self.folder / f"{number:04d}-{what}"

    def open(self, limits: str = "") -> None:
        """Bind the outer folder to this run and leave the guide, with the run's `limits` in words.

        Raises SetupError for another run's, StoreError.
        """
        run = self.record.parent.name
        if self.outside is not None:
            with storing(self.outside, "create folder"):
                self.outside.mkdir(parents=True, exist_ok=True)
            owner = _text(self.outside / MARKER, MARKER_BYTES)
            if owner is not None and owner.strip() != run:
                raise SetupError(f"{self.outside} is the mailbox of run {owner.strip()[:120]}: name an empty folder")
            if owner is None:
                if left := next(self._numbered(self.outside), ""):
                    raise SetupError(f"{self.outside} holds {left} already: name an empty folder")
                DURABLE.write(self.outside / MARKER, f"{run}\n".encode())
        text = files("kgen.proposers").joinpath("mailbox_guide.md").read_text("utf-8")
        self.put(GUIDE, text.replace("{run}", run).replace("{limits}\n\n", f"{limits}\n\n" if limits else "").encode())

    @staticmethod
    def _numbered(folder: Path) -> Iterator[str]:
        return (p.name for p in sorted(folder.iterdir()) if _NUMBERED.fullmatch(p.name))

    def put(self, name: str, data: bytes) -> bool:
        """Write a file where it is not there or differs, the record first; whether anything was. Raises StoreError."""
        changed = False
        for path in dict.fromkeys((self.record / name, self.folder / name)):
            if not same(path, data):
                DURABLE.write(path, data)
                changed = True
        return changed

    def tell(self, name: str, data: bytes) -> None:
        """As `put`; an outer folder that has gone is no reason to lose a run: one line in the log."""
        if not same(self.record / name, data):
            DURABLE.write(self.record / name, data)
        if self.outside is None or same(self.outside / name, data):
            return
        try:
            DURABLE.write(self.outside / name, data)
        except StoreError as error:
            log.warning("%s", error)

    def drop(self, name: str) -> None:
        """Remove a file that is no longer true."""
        for path in dict.fromkeys((self.record / name, self.folder / name)):
            if signature(path) is not None:
                with storing(path):
                    path.unlink(missing_ok=True)

    def keep(self, name: str, data: bytes) -> None:
        """An answer as received, in the record. Raises StoreError."""
        if not same(self.record / name, data):
            DURABLE.write(self.record / name, data)

    def numbers(self) -> list[int]:
        """Of the questions asked so far, by the record: the outer folder is not ours."""
        if not self.record.is_dir():
            return []
        matches = (_PROMPT.fullmatch(p.name) for p in self.record.iterdir())
        return sorted(int(m[1]) for m in matches if m)

    def answers(self, number: int) -> list[Path]:
        """Regular files with something in them that answer a question."""
        paths = (self.path(number, f"answer{suffix}") for suffix in SUFFIXES)
        return [p for p in paths if signature(p) is not None]


def signature(path: Path) -> Signature | None:
    """What changes while a file is written; None for anything but a regular file with something in it."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    regular = stat.S_ISREG(found.st_mode) and found.st_size > 0
    return (found.st_ino, found.st_size, found.st_mtime_ns) if regular else None


def read(path: Path, limit: int = MAX_ANSWER_BYTES) -> bytes | None:
    """At most one byte more than `limit`; None for links, folders, special and empty files."""
    if signature(path) is None:
        return None
    with storing(path, "read"):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with os.fdopen(handle, "rb") as file:
            return file.read(limit + 1)


def same(path: Path, data: bytes) -> bool:
    """Whether the file holds exactly these bytes."""
    found = signature(path)
    return found is not None and found[1] == len(data) and read(path, len(data)) == data


def _text(path: Path, limit: int) -> str | None:
    data = read(path, limit)
    return None if data is None else data[:limit].decode("utf-8", errors="replace")


def refused_name(number: int, data: bytes, suffix: str) -> str:
    """The name under which a refused answer is kept in the record."""
    return f"{number:04d}-refused-{sha256_bytes(data)[:12]}{suffix}"
