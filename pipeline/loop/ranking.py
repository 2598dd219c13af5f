"""Which of the candidates that passed the quick tier come first: measured where this GPU can, else by static cost."""

from collections.abc import Sequence

from kgen.gates.runner.job import spec
from kgen.gates.runner.rank import rank
from kgen.loop import matrix
from kgen.loop.building import quick_result
from kgen.loop.rounds import Ranked
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
    costs = [Ranked(f.path.name, _static(quick_result(f))) for f in folders]
    return tuple(sorted(costs, key=lambda r: r.us))


def _static(result: GateResult | None) -> float:
    assert result is not None  # only those that passed the quick tier are ranked
    return float(result.evidence["cost"]["us"])


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
        found.append(Ranked(folder.path.name, sum(r.us for r in mine) if sound else float("inf"), measured=True))
    work.step("")
    return tuple(sorted(found, key=lambda r: r.us))
