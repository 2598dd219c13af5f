"""`mcp`: candidates that clients of `kgen mcp` submitted, one after the other, from the run folder.

    <run>/submissions/0001/{kernel.py, submission.json}     what came, and from whom

A submission appears whole or not at all, and is there before its number is told. Not covered: taking them in (the
server does), and verdicts.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from kgen.proposers.base import DESIGN, OPTIMISE, REPAIR, Proposal, ProposalRequest, Usage
from kgen.records import Candidate, Origin, sha256_text
from kgen.store.documents import json_bytes, read_bytes, read_record
from kgen.store.durable import DURABLE
from kgen.store.errors import IntegrityError, StoreError

FOLDER = "submissions"
SOURCE, META = "kernel.py", "submission.json"
_NUMBER = re.compile(r"\d{4,}")


@dataclass(frozen=True)
class Submission:
    """`client` is the name that the client gave itself; `parent` the id of a candidate that it says it built on."""

    SCHEMA: ClassVar[str] = "kgen.submission/1"
    client: str
    received: str  # UTC, ISO 8601
    sha256: str  # of the source
    parent: str = ""


@dataclass(frozen=True)
class Submissions:
    """The submissions of one run."""

    run: Path

    @property
    def folder(self) -> Path:
        return self.run / FOLDER

    def numbers(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return sorted(int(p.name) for p in self.folder.iterdir() if _NUMBER.fullmatch(p.name))

    def add(self, source: str, client: str, received: str, parent: str = "") -> int:
        """Keep one; returns its number. Several processes may do so at once. Raises StoreError."""
        entry = Submission(client, received, sha256_text(source), parent)
        files = {SOURCE: (source.encode(), 0o666), META: (json_bytes(entry), 0o666)}
        while True:
            number = max(self.numbers(), default=0) + 1
            path = self.folder / f"{number:04d}"
            try:
                DURABLE.appear(path, files)
                return number
            except StoreError:
                if not path.is_dir():  # else another process took the number in between
                    raise

    def read(self, number: int) -> tuple[Submission, str]:
        """Raises IntegrityError for one that is not there or damaged."""
        path = self.folder / f"{number:04d}"
        entry = read_record(Submission, path / META)
        try:
            source = read_bytes(path / SOURCE).decode("utf-8")
        except UnicodeDecodeError:
            raise IntegrityError(f"{path / SOURCE} is damaged: not UTF-8") from None
        if sha256_text(source) != entry.sha256:
            raise IntegrityError(f"{path / SOURCE} is damaged: its hash is another")
        return entry, source


class SubmittedProposer:
    """See the module. Never waits: without a new submission the proposal is pending."""

    name = "mcp"

    def propose(self, request: ProposalRequest) -> Proposal:
        """The first `request.count` submissions that have no verdict yet. Raises IntegrityError."""
        started = time.monotonic()
        known = {c.id: v for c, v in request.history}
        found: dict[str, Candidate] = {}
        submissions = Submissions(request.run)
        for number in submissions.numbers():
            entry, source = submissions.read(number)
            candidate = Candidate(request.op.name, source, Origin(self.name, _detail(number, entry, request)))
            if candidate.id not in known and candidate.id not in request.taken and len(found) < request.count:
                found.setdefault(candidate.id, candidate)
        usage = Usage(attempts=len(found), seconds=time.monotonic() - started)
        if found:
            return Proposal(tuple(found.values()), usage)
        waiting = (
            f"run {request.run.name} waits for a candidate: an agent submits it through kgen mcp (submit_candidate)"
        )
        return Proposal((), usage, pending=waiting)


def _detail(number: int, entry: Submission, request: ProposalRequest) -> dict[str, Any]:
    """What the origin remembers: who, which file, and what it builds on if it says so."""
    answer = {"answer": f"{FOLDER}/{number:04d}/{SOURCE}", "answer_sha256": entry.sha256, "client": entry.client}
    parent = next(((c, v) for c, v in request.history if entry.parent and c.id.startswith(entry.parent)), None)
    if parent is None:
        return {**answer, "kind": DESIGN, "parents": []}
    kind = REPAIR if parent[1].failed is not None else OPTIMISE
    return {**answer, "kind": kind, "parents": [parent[0].id]}
