"""`mailbox`: the prompt is written to a folder, and whoever can (a person, a coding agent) answers with a file.

    <run>/mailbox/AGENTS.md         what to do, for an agent that sees only this folder
    <run>/mailbox/0001-prompt.md    the question, whole
    <run>/mailbox/0001-answer.md    the answer with one Python block, or 0001-answer.py: the bare candidate file
    <run>/mailbox/0001-error.md     what is wrong with the answer that lies there; replace the answer, it is read again
    <run>/mailbox/0001-verdict.md   what the gates said of the answer's candidate
    <run>/mailbox/done.md           the run is over, and how
    <run>/mailbox/paused.md         nobody reads answers now, and how that is changed

A round may put several questions at once; their answers come in any order and are taken together. With `folder` the
same files lie in a folder of the user's choice, and in the run folder as the record. All state is in these files and
in the run's history, so a killed run goes on where it was. Half-written answers: write under another name and rename. A
file written in place is taken once its size, time and identity have stood still for `settle_s`; a writer that pauses
longer is read too early, which a Markdown answer survives (its block is not closed, so it is refused and read again)
and a bare .py file does not. Not covered: files and folders themselves (`mailbox_box`).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kgen.proposers.answers import FormatError, extract, source_file
from kgen.proposers.base import Proposal, ProposalRequest, Standings, Usage
from kgen.proposers.mailbox_box import DONE, FOLDER, PAUSED, Box, Signature, read, refused_name, signature
from kgen.proposers.mailbox_words import ending, limits, pause, verdict_page
from kgen.proposers.render import Prompt, packaged
from kgen.records import Candidate, Origin, Verdict, sha256_bytes

log = logging.getLogger(__name__)

SETTLE_S = 1.0
POLL_S = 0.25
READERS: dict[str, Callable[[bytes], str | FormatError]] = {".md": extract, ".py": source_file}
_ANSWER = re.compile(rf"{FOLDER}/(\d{{4,}})-answer\.(?:md|py)")


class MailboxProposer:
    """See the module. `wait_s`: how long one `propose` waits; None: until the request's deadline, 0: only look.

    `folder`: where the mailbox lies; None: in the run folder.
    """

    name = "mailbox"

    def __init__(self, wait_s: float | None = None, settle_s: float = SETTLE_S, folder: Path | None = None) -> None:
        self.wait_s, self.settle_s, self.folder = wait_s, settle_s, folder

    def propose(self, request: ProposalRequest) -> Proposal:
        """The answers' candidates, or a proposal whose `pending` names the files to write. Raises StoreError."""
        return self._asked([(request, i) for i in range(1, request.count + 1)])

    def propose_all(self, requests: Sequence[ProposalRequest]) -> list[Proposal]:
        """One candidate for each request, all questions put at once; all are pending until all are answered."""
        asked = self._asked([(request, 1) for request in requests])
        if asked.pending:
            return [asked]
        shares = [Usage(attempts=1, seconds=asked.usage.seconds if i == 0 else 0.0) for i in range(len(requests))]
        return [Proposal((c,), share) for c, share in zip(asked.candidates, shares, strict=True)]

    def _asked(self, wanted: Sequence[tuple[ProposalRequest, int]]) -> Proposal:
        started, first = time.monotonic(), wanted[0][0]
        desk = _Desk(self._box(first.run), first)
        desk.box.open(limits(first.situation) if first.situation else "")
        _report(desk.box, first.history, first.standings)
        desk.ask(wanted)
        end = started + (first.deadline_s if self.wait_s is None else min(self.wait_s, first.deadline_s))
        told = ""
        while True:
            desk.look(self.settle_s)
            seconds = time.monotonic() - started
            if not desk.missing:
                return Proposal(desk.candidates, Usage(attempts=len(wanted), seconds=seconds))
            if (waiting := desk.instruction()) != told:
                log.info("%s", waiting)
                told = waiting
            if time.monotonic() + POLL_S > end:
                desk.box.tell(PAUSED, pause(first.run.name, waiting).encode())
                return Proposal((), Usage(seconds=seconds), pending=waiting)
            time.sleep(POLL_S)

    def judged(self, run: Path, candidate: Candidate, verdict: Verdict, standings: Standings | None = None) -> None:
        """Put the verdict beside the answer. Raises StoreError."""
        _report(self._box(run), [(candidate, verdict)], standings)

    def ended(self, run: Path, outcome: str, why: str, standings: Standings | None = None) -> None:
        """Say that the run is over, and how its candidates stand. Raises StoreError."""
        self._box(run).tell(DONE, ending(run.name, outcome, why, standings).encode())

    def _box(self, run: Path) -> Box:
        return Box(run / FOLDER, self.folder)


@dataclass(frozen=True)
class _Taken:
    """An answer that is a candidate, as long as the file stays what it was."""

    path: Path
    at: Signature
    candidate: Candidate


class _Desk:
    """The open questions of one call."""

    def __init__(self, box: Box, request: ProposalRequest) -> None:
        self.box, self.op = box, request.op.name
        self.seen = {c.id for c, _ in request.history} | request.taken
        self.used = {n for c, _ in request.history if (n := answered(c)) is not None}
        self.open: dict[int, Prompt] = {}
        self.taken: dict[int, _Taken] = {}

    def ask(self, wanted: Sequence[tuple[ProposalRequest, int]]) -> None:
        """The questions that are not in the history yet are asked again, as they were; new ones follow."""
        asked = self.box.numbers()
        numbers = [n for n in asked if n not in self.used]
        after = max(asked, default=0) + 1
        numbers += range(after, after + max(0, len(wanted) - len(numbers)))
        for number, (request, index) in zip(numbers, wanted, strict=False):
            prompt = packaged().prompt(request, index)
            self.open[number] = prompt
            self.box.put(f"{number:04d}-prompt.md", f"{prompt.system}\n\n{prompt.user}".encode())
        self.box.drop(DONE)
        self.box.drop(PAUSED)

    @property
    def missing(self) -> list[int]:
        return [n for n in self.open if n not in self.taken]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """In the order of the questions."""
        return tuple(self.taken[n].candidate for n in self.open)

    def instruction(self) -> str:
        return "; ".join(self._instruction(n) for n in self.missing)

    def _instruction(self, number: int) -> str:
        wrong = self.box.path(number, "error.md")
        again = f"; the last answer was refused, see {wrong}" if wrong.exists() else ""
        prompt, answer = self.box.path(number, "prompt.md"), self.box.path(number, "answer.md")
        where = f"{answer} (or {answer.with_suffix('.py')})"
        return f"read {prompt} and write the answer to {where}: write another name first, then rename{again}"

    def look(self, settle_s: float) -> None:
        """Take what has stood still for `settle_s` and is a candidate; give back what was replaced since."""
        unchanged = {n for n, t in self.taken.items() if self.box.answers(n) == [t.path] and signature(t.path) == t.at}
        self.taken = {n: t for n, t in self.taken.items() if n in unchanged}
        before = {n: [(p, signature(p)) for p in self.box.answers(n)] for n in self.missing}
        if any(before.values()):
            time.sleep(settle_s)
        for number, found in before.items():
            if len(found) > 1:
                both = FormatError("answer.files", f"Both {found[0][0]} and {found[1][0]} exist: keep one.")
                self._refuse(number, b"", both)
            elif found and (at := found[0][1]) is not None and signature(found[0][0]) == at:
                self._read(number, found[0][0], at)

    def _read(self, number: int, path: Path, at: Signature) -> None:
        data = read(path)
        if data is None or signature(path) != at:
            return
        source = READERS[path.suffix](data)
        if not isinstance(source, FormatError):
            candidate = Candidate(self.op, source, Origin(MailboxProposer.name, self._detail(number, path, data)))
            others = {t.candidate.id for t in self.taken.values()}
            if candidate.id not in self.seen | others:
                self.box.keep(path.name, data)
                self.box.drop(f"{number:04d}-error.md")
                self.taken[number] = _Taken(path, at, candidate)
                return
            source = FormatError("answer.duplicate", "This is exactly a candidate that was already tried.")
        if source.code != "answer.size":
            self.box.keep(refused_name(number, data, path.suffix), data)
        self._refuse(number, data, source)

    def _detail(self, number: int, path: Path, data: bytes) -> Mapping[str, str]:
        answer = {"answer": f"{FOLDER}/{path.name}", "answer_sha256": sha256_bytes(data)}
        return {**self.open[number].origin(), **answer}

    def _refuse(self, number: int, data: bytes, error: FormatError) -> None:
        """Say once what is wrong with an answer; the hash tells which one is meant."""
        text = f"{error.code}: {error.message}\n\nRefused answer: sha256 {sha256_bytes(data)}\n".encode()
        if self.box.put(f"{number:04d}-error.md", text):
            log.info("answer %04d refused: %s %s", number, error.code, error.message)


def answered(candidate: Candidate) -> int | None:
    """The number of the question that a candidate answers, None where it came another way."""
    match = _ANSWER.fullmatch(str(candidate.origin.detail.get("answer")))
    return int(match[1]) if match and candidate.origin.proposer == MailboxProposer.name else None


def _report(box: Box, judged: Iterable[tuple[Candidate, Verdict]], standings: Standings | None) -> None:
    """Pages of verdicts; those of earlier rounds too, so that a killed process loses none and ranks are today's."""
    for candidate, verdict in judged:
        if (number := answered(candidate)) is not None:
            box.tell(f"{number:04d}-verdict.md", verdict_page(candidate, verdict, standings).encode())
