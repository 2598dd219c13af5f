"""`mailbox`: the prompt is written to the run folder, and whoever can (a person, a coding agent) answers with a file.

    <run>/mailbox/0001-prompt.md    the question, whole
    <run>/mailbox/0001-answer.md    the answer with one Python block, or 0001-answer.py: the bare candidate file
    <run>/mailbox/0001-error.md     what is wrong with the answer that lies there; replace the answer, it is read again

All state is in these files and in the run's history, so a killed run goes on where it was. Half-written answers: write
under another name and rename. A file written in place is taken once its size, time and identity have stood still for
`settle_s`; a writer that pauses longer is read too early, which a Markdown answer survives (its block is not closed,
so it is refused and read again) and a bare .py file does not. Not covered: several questions at once.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kgen.proposers.answers import MAX_ANSWER_BYTES, FormatError, extract, source_file
from kgen.proposers.base import Proposal, ProposalRequest, Usage
from kgen.proposers.render import Prompt, packaged
from kgen.records import Candidate, Origin, sha256_bytes
from kgen.store.durable import DURABLE
from kgen.store.errors import storing

log = logging.getLogger(__name__)

FOLDER = "mailbox"
SETTLE_S = 1.0
POLL_S = 0.25
_PROMPT = re.compile(r"(\d{4,})-prompt\.md")
READERS: dict[str, Callable[[bytes], str | FormatError]] = {".md": extract, ".py": source_file}

Signature = tuple[int, int, int]  # inode, size, modification time in ns


@dataclass(frozen=True)
class _Answer:
    path: Path
    data: bytes


class MailboxProposer:
    """See the module. `wait_s`: how long one `propose` waits; None: until the request's deadline, 0: only look."""

    name = "mailbox"

    def __init__(self, wait_s: float | None = None, settle_s: float = SETTLE_S) -> None:
        self.wait_s, self.settle_s = wait_s, settle_s

    def propose(self, request: ProposalRequest) -> Proposal:
        """The answer's candidate, or a proposal whose `pending` names the file to write. Raises StoreError."""
        started = time.monotonic()
        box = _Box(request.run / FOLDER, request)
        number, prompt = box.question(request)
        end = started + (request.deadline_s if self.wait_s is None else min(self.wait_s, request.deadline_s))
        told = False
        while True:
            candidate = box.candidate(number, prompt, self.settle_s)
            if candidate is not None:
                return Proposal((candidate,), Usage(attempts=1, seconds=time.monotonic() - started))
            if not told:
                log.info("%s", box.instruction(number))
                told = True
            if time.monotonic() + POLL_S > end:
                return Proposal((), Usage(seconds=time.monotonic() - started), pending=box.instruction(number))
            time.sleep(POLL_S)


class _Box:
    """The files of one run's mailbox."""

    def __init__(self, folder: Path, request: ProposalRequest) -> None:
        self.folder, self.op = folder, request.op.name
        self.seen = {c.id for c, _ in request.history}
        self.used = {str(c.origin.detail.get("answer")) for c, _ in request.history if c.origin.proposer == "mailbox"}

    def path(self, number: int, what: str) -> Path:
        return self.folder / f"{number:04d}-{what}"

    def question(self, request: ProposalRequest) -> tuple[int, Prompt]:
        """The open question: the latest prompt if its candidate is not in the history yet, else a new one."""
        prompt = packaged().prompt(request)
        text = f"{prompt.system}\n\n{prompt.user}".encode()
        number = self._latest()
        if number == 0 or self.used & {f"{FOLDER}/{p.name}" for p in self._answers(number)}:
            number += 1
        path = self.path(number, "prompt.md")
        if not path.exists() or path.read_bytes() != text:  # the history may have grown since it was asked
            DURABLE.write(path, text)
        return number, prompt

    def instruction(self, number: int) -> str:
        wrong = self.path(number, "error.md")
        again = f"; the last answer was refused, see {wrong}" if wrong.exists() else ""
        answer = self.path(number, "answer.md")
        return (
            f"read {self.path(number, 'prompt.md')} and write the answer to {answer} (or {answer.with_suffix('.py')}):"
            f" write another name first, then rename{again}"
        )

    def candidate(self, number: int, prompt: Prompt, settle_s: float) -> Candidate | None:
        """The candidate in the answer, or None: no answer yet, still being written, or refused."""
        paths = [p for p in self._answers(number) if _signature(p) is not None]
        if len(paths) > 1:
            self._refuse(number, b"", FormatError("answer.files", f"Both {paths[0]} and {paths[1]} exist: keep one."))
            return None
        answer = _settled(paths[0], settle_s) if paths else None
        if answer is None:
            return None
        source = READERS[answer.path.suffix](answer.data)
        if isinstance(source, FormatError):
            self._refuse(number, answer.data, source)
            return None
        detail = {
            **prompt.origin(),
            "answer": f"{FOLDER}/{answer.path.name}",
            "answer_sha256": sha256_bytes(answer.data),
        }
        candidate = Candidate(self.op, source, Origin(MailboxProposer.name, detail))
        if candidate.id in self.seen:
            same = FormatError("answer.duplicate", "This is exactly a candidate that was already tried.")
            self._refuse(number, answer.data, same)
            return None
        return candidate

    def _latest(self) -> int:
        if not self.folder.is_dir():
            return 0
        matches = (_PROMPT.fullmatch(p.name) for p in self.folder.iterdir())
        return max((int(m[1]) for m in matches if m), default=0)

    def _answers(self, number: int) -> list[Path]:
        return [self.path(number, f"answer{suffix}") for suffix in READERS]

    def _refuse(self, number: int, data: bytes, error: FormatError) -> None:
        """Say once what is wrong with an answer; the hash tells which one is meant."""
        text = f"{error.code}: {error.message}\n\nRefused answer: sha256 {sha256_bytes(data)}\n".encode()
        path = self.path(number, "error.md")
        if not path.exists() or path.read_bytes() != text:
            DURABLE.write(path, text)
            log.info("answer %04d refused: %s %s", number, error.code, error.message)


def _signature(path: Path) -> Signature | None:
    """What changes while a file is written; None for anything but a regular file with something in it."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    regular = stat.S_ISREG(found.st_mode) and found.st_size > 0
    return (found.st_ino, found.st_size, found.st_mtime_ns) if regular else None


def _settled(path: Path, settle_s: float) -> _Answer | None:
    """The answer, if the file stood still for `settle_s` before and during reading."""
    before = _signature(path)
    time.sleep(settle_s)
    if before is None or _signature(path) != before:
        return None
    answer = _read(path)
    return answer if _signature(path) == before else None


def _read(path: Path) -> _Answer | None:
    """At most one byte more than an answer may have; None for links, folders and special files."""
    if _signature(path) is None:
        return None
    with storing(path, "read"):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with os.fdopen(handle, "rb") as file:
            return _Answer(path, file.read(MAX_ANSWER_BYTES + 1))
