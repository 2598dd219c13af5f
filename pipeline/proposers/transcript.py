"""Answers kept in the run folder: `answers/0001.md` is the text, `answers/0001.json` what is known about it.

Answers are paid for: one that was kept before a crash is used again for the same question instead of being bought
twice, and `replay` reads them back. Texts arrive here redacted.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from kgen.proposers.base import Usage
from kgen.proposers.tools import ToolUse
from kgen.records import sha256_text
from kgen.records.codec import OPTIONAL
from kgen.store.documents import json_bytes, read_record
from kgen.store.durable import DURABLE
from kgen.store.errors import IntegrityError

FOLDER = "answers"
CALLS = "tool calls"  # outcome of a reply that wanted tools called
_META = re.compile(r"(\d{4,})\.json")
_ORDER = threading.Lock()  # a number for each answer, also where several questions are asked at once
_KEEPING = threading.Lock()  # questions are asked side by side; a run has one process


@dataclass(frozen=True)
class AnswerRecord:
    """`outcome`: `candidate <id>`, CALLS, or the code of what is wrong with the answer.

    `question_sha256` is that of all messages. `tools` are the calls of a reply with their results, as they were sent
    back; `role` and `api` say how the model was asked.
    """

    SCHEMA: ClassVar[str] = "kgen.answer/1"
    proposer: str
    model: str
    endpoint: str
    template: str
    templates_sha256: str
    prompt_sha256: str
    question_sha256: str
    answer_sha256: str
    finish: str
    outcome: str
    usage: Usage
    tools: tuple[ToolUse, ...] = field(default=(), metadata=OPTIONAL)
    role: str = field(default="", metadata=OPTIONAL)
    api: str = field(default="chat", metadata=OPTIONAL)

    @property
    def candidate(self) -> str:
        """The id of the candidate that the answer holds, or ""."""
        return self.outcome.removeprefix("candidate ") if self.outcome.startswith("candidate ") else ""


class Transcript:
    """The answers of one run, in order. Writing raises StoreError; damaged entries are skipped on reading."""

    def __init__(self, run: Path) -> None:
        self.folder = run / FOLDER

    def numbers(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        matches = (_META.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(m[1]) for m in matches if m)

    def keep(self, record: AnswerRecord, text: str) -> str:
        """Store an answer; the text first, so that an entry with its JSON is whole. Returns its relative name."""
        with _KEEPING:
            number = max(self.numbers(), default=0) + 1
            DURABLE.write(self.folder / f"{number:04d}.md", _utf8(text))
            DURABLE.write(self.folder / f"{number:04d}.json", json_bytes(record))
        return f"{FOLDER}/{number:04d}.md"

    def read(self, number: int) -> tuple[AnswerRecord, str] | None:
        """An entry, or None when it is damaged."""
        try:
            record = read_record(AnswerRecord, self.folder / f"{number:04d}.json")
            text = (self.folder / f"{number:04d}.md").read_bytes().decode("utf-8")
        except (IntegrityError, OSError, UnicodeDecodeError):
            return None
        return (record, text) if sha256_text(text) == record.answer_sha256 else None

    @property
    def cost_usd(self) -> float:
        """What all answers have cost, also those of questions that came to nothing; 0 where prices are not known."""
        entries = (self.read(number) for number in self.numbers())
        return sum(entry[0].usage.cost_usd or 0.0 for entry in entries if entry)

    def find(self, question_sha256: str) -> tuple[AnswerRecord, str, str] | None:
        """The latest answer to exactly this question that holds a candidate or called tools, with its relative name."""
        for number in reversed(self.numbers()):
            entry = self.read(number)
            usable = entry and (entry[0].candidate or entry[0].outcome == CALLS)
            if entry and usable and entry[0].question_sha256 == question_sha256:
                return entry[0], entry[1], f"{FOLDER}/{number:04d}.md"
        return None


def storable(text: str) -> str:
    """`text` with lone surrogates, which no file can hold, replaced."""
    return _utf8(text).decode("utf-8")


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")
