"""What a report is about, read from a run folder alone: every candidate, and the one that got furthest.

    read(run, op) -> Document       raises IntegrityError for damaged files, StoreError

Not covered: how it looks (`markdown`, `json_form`).
"""

from dataclasses import dataclass
from typing import Any

from kgen.contract.op import Op
from kgen.loop.building import quick_result
from kgen.loop.plans import Plan, read_plans
from kgen.loop.rounds import Ranked, Round, read_rounds
from kgen.loop.session import outcome
from kgen.loop.settings import Settings, read_settings
from kgen.promotion.gather import EVIDENCE
from kgen.records import GATES, BuildRecord, Candidate, Evidence, GateResult, SignedEvidence, Status, Verdict
from kgen.records.envelope import HEADLINE, envelope
from kgen.records.manifest import OWN_KEY, SELF_REPORTED
from kgen.store.candidates import CandidateFolder
from kgen.store.documents import read_record
from kgen.store.runs import Run, RunInfo
from kgen.store.signing import check


@dataclass(frozen=True)
class Entry:
    """One candidate of a run. `rank` is its place by cost (0: not ranked); results may be missing."""

    folder: str
    number: int
    candidate: Candidate
    results: tuple[GateResult, ...]
    judged: bool
    quick: GateResult | None
    ranked: Ranked | None
    rank: int
    builds: tuple[BuildRecord, ...]
    evidence: Evidence | None
    trust: str  # OWN_KEY, SELF_REPORTED, or "" without evidence

    @property
    def verdict(self) -> Verdict:
        return Verdict(self.candidate.id, self.results)

    def result(self, gate: str) -> GateResult | None:
        return self.verdict.result(gate)

    @property
    def state(self) -> str:
        """`promotable`, `staged`, `not chosen`, `failed`, `error` or `unfinished`."""
        verdict = self.verdict
        if verdict.promotable:
            return "promotable"
        if verdict.failed is not None:
            return "error" if verdict.failed.status is Status.ERROR else "failed"
        if not self.judged:
            return "unfinished"
        return "staged" if verdict.staged else "not chosen"

    @property
    def sound_builds(self) -> tuple[BuildRecord, ...]:
        return tuple(b for b in self.builds if not b.defect)

    @property
    def ratio(self) -> float:
        """The worst upper bound in the envelope's column; inf without times. Orders promotable candidates."""
        points = self.evidence.points if self.evidence else ()
        served = envelope(points)
        return max((p.ratio_high for p in points if p.problem in served and p.column == HEADLINE), default=float("inf"))


FURTHEST = ("promotable", "staged", "error", "failed", "not chosen", "unfinished")


@dataclass(frozen=True)
class Document:
    """`subject` is the candidate that the report is about: the one that got furthest, then the best of those."""

    run: RunInfo
    path: str
    state: str  # of the run: finished, running, interrupted
    op: Op
    settings: Settings
    rounds: tuple[Round, ...]
    plans: tuple[Plan, ...]
    entries: tuple[Entry, ...]
    subject: Entry | None

    @property
    def outcome(self) -> str:
        return outcome([e.verdict for e in self.entries if e.judged])

    def counted(self, state: str) -> int:
        return sum(e.state == state for e in self.entries)

    @property
    def usage(self) -> dict[str, Any]:
        """What the proposals cost, added up."""
        total: dict[str, Any] = {}
        for entry in self.rounds:
            for name, value in entry.usage.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    total[name] = round(total.get(name, 0) + value, 4)
        return total

    @property
    def next_command(self) -> str:
        """What to do now, one line."""
        if self.state != "finished":
            return f"kgen resume {self.run.id}"
        if self.outcome == "promotable":
            return f"kgen promote {self.run.id}"
        if self.outcome == "staged":
            return f"kgen kit {self.run.id} -o kit.pyz"
        if self.outcome == "error":
            return f"kgen resume {self.run.id}"
        return f"kgen propose --op {self.op.name} --seed {self.settings.seed + 1}"


def read(run: Run, op: Op) -> Document:
    rounds, info = read_rounds(run), run.info
    ranked = {r.candidate: (place, r) for entry in rounds for place, r in enumerate(entry.order, 1)}
    entries = tuple(_entry(run, folder, ranked) for folder in run.folders())
    best = sorted(entries, key=lambda e: (FURTHEST.index(e.state), e.ratio, e.rank or len(entries), e.number))
    settings = read_settings(info.settings, f"{run.path}/run.json")
    return Document(
        info, str(run.path), run.state, op, settings, rounds, read_plans(run), entries, best[0] if best else None
    )


def _entry(run: Run, folder: CandidateFolder, ranked: dict[str, tuple[int, Ranked]]) -> Entry:
    name = folder.path.name
    results = tuple(r for gate in GATES if (r := folder.result(gate)) is not None)
    path = folder.file(EVIDENCE)
    signed = read_record(SignedEvidence, path) if path.exists() else None
    place, entry = ranked.get(name, (0, None))
    return Entry(
        folder=name,
        number=folder.number,
        candidate=folder.candidate(),
        results=results,
        judged=not folder.interrupted,
        quick=quick_result(folder),
        ranked=entry,
        rank=place,
        builds=folder.builds(),
        evidence=signed.evidence if signed else None,
        trust=(OWN_KEY if check(signed, run.key()) else SELF_REPORTED) if signed else "",
    )
