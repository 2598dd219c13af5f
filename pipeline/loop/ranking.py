"""Which of the candidates that passed the quick tier come first: measured where this GPU can, else by static cost."""

from collections.abc import Iterable, Sequence

from kgen.gates.runner.job import spec
from kgen.gates.runner.rank import rank
from kgen.loop import matrix
from kgen.loop.building import quick_result
from kgen.loop.rounds import Ranked, Round
from kgen.loop.work import Work
from kgen.records import GateResult
from kgen.store.cache import linked_in
from kgen.store.candidates import CandidateFolder

FARTHEST = 0.05  # relL2 to the stock op beyond which a time means nothing; the numeric gate is far stricter


def ordered(work: Work, folders: Sequence[CandidateFolder]) -> tuple[Ranked, ...]:
    """Best first; equal costs in the order proposed."""
    if not folders:
        return ()
    if work.executor.here and work.arch == work.settings.archs[0]:
        return _measured(work, folders)
    costs = [_static(f.path.name, quick_result(f)) for f in folders]
    return tuple(sorted(costs, key=lambda r: r.us))


def costs(rounds: Iterable[Round]) -> dict[str, dict[int, float]]:
    """What each candidate was ordered by: folder name -> tokens -> µs."""
    return {entry.candidate: dict(entry.points) for r in rounds for entry in r.order if entry.points}


def _static(name: str, result: GateResult | None) -> Ranked:
    assert result is not None  # only those that passed the quick tier are ranked
    said = result.evidence["cost"]
    return Ranked(name, float(said["us"]), points=tuple((int(n), float(us)) for n, us in said.get("points", ())))


def _measured(work: Work, folders: Sequence[CandidateFolder]) -> tuple[Ranked, ...]:
    """Sum of the median times at the quick points; what crashes or is plainly wrong comes last."""
    problems = matrix.quick(work.op, work.settings)
    work.stage(f"ranking {len(folders)} candidates on this GPU", 1)
    reports = [work.gate.run(f.candidate(), problems) for f in folders]  # from the cache
    specs = [spec(artefact) for report in reports for artefact in report.artefacts]
    rows = iter(rank(specs, cache=linked_in(work.cache)))
    found = []
    for folder, report in zip(folders, reports, strict=True):
        mine = [next(rows) for _ in report.artefacts]
        sound = bool(mine) and all(r.status == "ok" and r.rel_l2 <= FARTHEST for r in mine)
        points = tuple((a.record.problem.tokens, r.us) for a, r in zip(report.artefacts, mine, strict=True))
        us = sum(r.us for r in mine) if sound else float("inf")
        found.append(Ranked(folder.path.name, us, measured=True, points=points if sound else ()))
    work.step("")
    return tuple(sorted(found, key=lambda r: r.us))
