"""`replay`: the answers recorded in another run, given again in their order, and marked as such.

Reads what the run has: `answers/` (a model's answers, unusable ones skipped as they were then), else answers in
`mailbox/`, else the candidate folders themselves. Where the run has rounds, an ask of the loop gets what the same ask
of the same round got then; else candidates come in their order, and those of the history are passed over, so a resumed
run goes on where it was. Not covered: replaying verdicts; the gates judge again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kgen.proposers.answers import extract, source_file
from kgen.proposers.base import Proposal, ProposalRequest, ProposerExhausted, SetupError, Usage
from kgen.proposers.mailbox_box import FOLDER as MAILBOX
from kgen.proposers.transcript import Transcript
from kgen.records import Candidate, Origin, sha256_bytes, sha256_text, to_json
from kgen.store.candidates import FOLDER as CANDIDATE_FOLDER
from kgen.store.candidates import CandidateFolder
from kgen.store.documents import parse_json, read_bytes

ROUNDS = "rounds"
DESCENT = ("ask", "kind", "parents")

Recorded = tuple[str, dict[str, Any]]  # source, and what the origin remembers of where it was recorded


class ReplayProposer:
    """See the module. `recorded` is a run folder."""

    name = "replay"

    def __init__(self, recorded: Path) -> None:
        self.recorded = recorded

    def propose(self, request: ProposalRequest) -> Proposal:
        """The next `request.count` recorded candidates. Raises ProposerExhausted at the end, SetupError without any."""
        started = time.monotonic()
        recorded = [
            Candidate(request.op.name, source, Origin(self.name, {"run": self.recorded.name, **detail}))
            for source, detail in self._recorded(request.op.name)
        ]
        if not recorded:
            raise SetupError(f"{self.recorded} holds no recorded answers for {request.op.name}")
        if request.ask is not None and request.round and (self.recorded / ROUNDS).is_dir():
            return Proposal(self._answered(request, recorded), Usage(seconds=time.monotonic() - started))
        seen = {c.id for c, _ in request.history} | request.taken
        found: dict[str, Candidate] = {}
        for candidate in recorded:
            if candidate.id not in seen and len(found) < request.count:
                found.setdefault(candidate.id, candidate)
        if not found:
            raise ProposerExhausted(f"all {len(recorded)} recorded answers of {self.recorded} are used")
        return Proposal(tuple(found.values()), Usage(seconds=time.monotonic() - started))

    def _answered(self, request: ProposalRequest, recorded: list[Candidate]) -> tuple[Candidate, ...]:
        """What this ask of this round got then. Raises ProposerExhausted where the round brought nothing."""
        path = self.recorded / ROUNDS / f"{request.round:04d}.json"
        entry = parse_json(read_bytes(path), path) if path.exists() else {}
        names = entry.get("candidates", ()) if isinstance(entry, dict) else ()
        if not names:
            used = f"all {len(recorded)} recorded answers of {self.recorded.name} are used"
            raise ProposerExhausted(str(entry.get("note") or used) if isinstance(entry, dict) else used)
        sources = {candidate.id[:12]: candidate for candidate in recorded}
        found = []
        for name in map(str, names):
            folder = CandidateFolder(self.recorded / name, request.op.name)
            own = folder.candidate()
            asked = own.origin.detail.get("ask", request.ask.number if request.ask else 0)
            if request.ask is None or asked == request.ask.number:
                found.append(_again(self.name, self.recorded.name, sources.get(folder.short_id, own), own))
        return tuple(found)

    def _recorded(self, op: str) -> list[Recorded]:
        if not self.recorded.is_dir():
            raise SetupError(f"{self.recorded} is not a run folder")
        for kind in (self._answers(op), self._mailbox(), self._candidates(op)):
            listed = list(kind)
            if listed:
                return listed
        return []

    def _answers(self, op: str) -> Iterator[Recorded]:
        transcript = Transcript(self.recorded)
        for number in transcript.numbers():
            entry = transcript.read(number)
            source = extract(entry[1]) if entry and entry[0].candidate else None
            if entry and isinstance(source, str) and Candidate(op, source, Origin("")).id == entry[0].candidate:
                record = entry[0]
                detail = {"answer": f"answers/{number:04d}.md", "answer_sha256": record.answer_sha256}
                yield source, {**detail, "recorded": to_json(record)}

    def _mailbox(self) -> Iterator[Recorded]:
        folder = self.recorded / MAILBOX
        for path in sorted(folder.glob("*-answer.*")) if folder.is_dir() else ():
            data = path.read_bytes()
            source = source_file(data) if path.suffix == ".py" else extract(data)
            if isinstance(source, str):
                yield source, {"answer": f"{MAILBOX}/{path.name}", "answer_sha256": sha256_bytes(data)}

    def _candidates(self, op: str) -> Iterator[Recorded]:
        for path in sorted(p for p in self.recorded.iterdir() if CANDIDATE_FOLDER.fullmatch(p.name)):
            candidate = CandidateFolder(path, op).candidate()
            detail = {"answer": f"{path.name}/kernel.py", "answer_sha256": sha256_text(candidate.source)}
            yield candidate.source, {**detail, "recorded": to_json(candidate.origin)}


def _again(proposer: str, run: str, answer: Candidate, own: Candidate) -> Candidate:
    """The recorded answer with the descent that the loop gave its candidate then."""
    descent = {key: own.origin.detail[key] for key in DESCENT if key in own.origin.detail}
    return Candidate(own.op, own.source, Origin(proposer, {"run": run, **answer.origin.detail, **descent}))
