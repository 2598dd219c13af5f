"""Evidence of one kernel from several machines: side by side for each GPU model, with what they disagree about.

    groups(reports) -> one Group for each (candidate, GPU model)

Nothing is averaged: where two machines say different things, both are shown, and a person decides. They disagree where
a gate passes on one and fails on another, where the intervals of one point's ratio do not touch, where one calls a win
what another does not, and where they ran different objects. Not covered: whether evidence may be believed (ingest.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kgen.gates.kit_results import JUDGED
from kgen.records import Evidence, PerfPoint


@dataclass(frozen=True)
class Report:
    """The whole evidence of one candidate on one machine. `where` names it, e.g. the file."""

    where: str
    evidence: Evidence


@dataclass(frozen=True)
class Group:
    op: str
    candidate: str
    gpu: str
    reports: tuple[Report, ...]

    @property
    def gates(self) -> Mapping[str, Mapping[str, str]]:
        """Gate -> where -> status."""
        found: dict[str, dict[str, str]] = {}
        for report in self.reports:
            for result in report.evidence.results:
                found.setdefault(result.gate, {})[report.where] = result.status.value
        return found

    @property
    def points(self) -> Mapping[str, Mapping[str, PerfPoint]]:
        """Point -> where -> what was measured."""
        found: dict[str, dict[str, PerfPoint]] = {}
        for report in self.reports:
            for point in report.evidence.points:
                found.setdefault(_name(point), {})[report.where] = point
        return found

    @property
    def disagreements(self) -> tuple[str, ...]:
        """One line each, in the order of gates, objects, points."""
        judged = {status.value for status in JUDGED}
        lines = [
            f"{gate}: {_each(said)}" for gate, said in self.gates.items() if len(judged.intersection(said.values())) > 1
        ]
        lines += [f"{key}: different objects were run: {_each(ran)}" for key, ran in self._objects().items()]
        return (*lines, *(line for name, said in self.points.items() if (line := _apart(name, said))))

    def _objects(self) -> dict[str, dict[str, str]]:
        """Where more than one object was run for a problem: problem -> where -> how its hash begins."""
        ran: dict[str, dict[str, str]] = {}
        for report in self.reports:
            for key, sha256 in report.evidence.objects.items():
                ran.setdefault(key, {})[report.where] = sha256[:12]
        return {key: found for key, found in ran.items() if len(set(found.values())) > 1}


def groups(reports: Iterable[Report]) -> tuple[Group, ...]:
    """In order of op, candidate and GPU model; reports keep theirs."""
    found: dict[tuple[str, str, str], list[Report]] = {}
    for report in reports:
        e = report.evidence
        found.setdefault((e.op, e.candidate, e.environment.gpu), []).append(report)
    return tuple(Group(*key, tuple(mine)) for key, mine in sorted(found.items()))


def _name(point: PerfPoint) -> str:
    scenario = f" {point.scenario}" if point.scenario else ""
    return f"{point.problem} n={point.tokens} {point.column}{scenario}"


def _apart(name: str, said: Mapping[str, PerfPoint]) -> str:
    """A line where machines differ by more than their own intervals allow, or in the label."""
    points = said.values()
    disjoint = max(p.ratio_low for p in points) > min(p.ratio_high for p in points)
    if not disjoint and len({p.label for p in points}) == 1:
        return ""
    shown = {w: f"{p.label} {p.ratio:.3f} ({p.ratio_low:.3f} to {p.ratio_high:.3f})" for w, p in said.items()}
    return f"{name}: {_each(shown)}"


def _each(said: Mapping[str, str]) -> str:
    return ", ".join(f"{what} in {where}" for where, what in said.items())
