"""`tune`: variants of one candidate that declares its tunables, their constants chosen by a model of the space.

The candidate itself comes first; every variant is a candidate of its own whose origin names it as its parent. The same
for the same seed and history. Not covered: what a declaration may say (`tunables`), how points are chosen (`studies`).
"""

from __future__ import annotations

from pathlib import Path

from kgen.proposers.base import Proposal, ProposalRequest, ProposerExhausted, SetupError
from kgen.proposers.families.space import Point, Space
from kgen.proposers.studies import TPE, modelled
from kgen.proposers.tunables import Declared, read, rewritten
from kgen.records import Candidate, Origin

TRIES = 200  # points in a row that give nothing new before the space counts as searched
PARENT = "parent.py"  # in the run folder


class TuneProposer:
    """Raises SetupError for a file that cannot be tuned, ProposerExhausted when nothing new is left."""

    name = "tune"

    def __init__(self, path: Path, method: str = TPE) -> None:
        self.method = method
        try:
            self.source = path.read_bytes().decode("utf-8")
            self.tunables = read(self.source)
        except (OSError, UnicodeDecodeError) as error:
            raise SetupError(f"{path} cannot be read as UTF-8 text: {error}") from None
        except Declared as wrong:
            raise SetupError(f"{path}: {wrong}") from None

    def propose(self, request: ProposalRequest) -> Proposal:
        parent = self._candidate(request, self.tunables.point, ())
        seen = {candidate.id for candidate, _ in request.history} | request.taken
        found = [] if parent.id in seen else [parent]
        seen.add(parent.id)
        misses = 0
        for _, point in modelled((self.tunables.space,), request, self.method, _point_of):
            if len(found) >= request.count or misses >= TRIES:
                break
            candidate = self._candidate(request, point, (parent.id,))
            misses = misses + 1 if candidate.id in seen else 0
            if candidate.id not in seen:
                seen.add(candidate.id)
                found.append(candidate)
        if not found:
            raise ProposerExhausted("tune has proposed every combination of the declared values that it can find")
        return Proposal(
            tuple(found), note="" if len(found) >= request.count else f"only {len(found)} new variants left"
        )

    def _candidate(self, request: ProposalRequest, point: Point, parents: tuple[str, ...]) -> Candidate:
        detail = {"seed": request.seed, "method": self.method, "point": dict(point), "parents": list(parents)}
        return Candidate(request.op.name, rewritten(self.source, self.tunables, point), Origin(self.name, detail))


def _point_of(space: Space, candidate: Candidate) -> Point | None:
    point = candidate.origin.detail.get("point")
    return point if isinstance(point, dict) and not space.complaints(point) else None
