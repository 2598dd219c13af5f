"""`replay`: the answers recorded in another run, given again in their order, and marked as such.

Reads what the run has: `answers/` (a model's answers, unusable ones skipped as they were then), else answers in
`mailbox/`, else the candidate folders themselves. Candidates that are in the history already are passed over, so a
resumed run goes on where it was. Not covered: replaying verdicts; the gates judge again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kgen.proposers.answers import extract, source_file
from kgen.proposers.base import Proposal, ProposalRequest, ProposerExhausted, SetupError, Usage
from kgen.proposers.mailbox import FOLDER as MAILBOX
from kgen.proposers.transcript import Transcript
from kgen.records import Candidate, Origin, sha256_bytes, sha256_text, to_json
from kgen.store.candidates import FOLDER as CANDIDATE_FOLDER
from kgen.store.candidates import CandidateFolder

Recorded = tuple[str, dict[str, Any]]  # source, and what the origin remembers of where it was recorded


class ReplayProposer:
    """See the module. `recorded` is a run folder."""

    name = "replay"

    def __init__(self, recorded: Path) -> None:
        self.recorded = recorded

    def propose(self, request: ProposalRequest) -> Proposal:
        """The next `request.count` recorded candidates. Raises ProposerExhausted at the end, SetupError without any."""
        started = time.monotonic()
        seen = {c.id for c, _ in request.history}
        found: list[Candidate] = []
        recorded = self._recorded(request.op.name)
        for source, detail in recorded:
            candidate = Candidate(request.op.name, source, Origin(self.name, {"run": self.recorded.name, **detail}))
            if candidate.id not in seen and len(found) < request.count:
                seen.add(candidate.id)
                found.append(candidate)
        if not recorded:
            raise SetupError(f"{self.recorded} holds no recorded answers for {request.op.name}")
        if not found:
            raise ProposerExhausted(f"all {len(recorded)} recorded answers of {self.recorded} are used")
        return Proposal(tuple(found), Usage(seconds=time.monotonic() - started))

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
