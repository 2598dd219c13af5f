"""What is there already: the ops with what serves them, and the best candidate of all runs for one op.

A damaged run or set takes nothing from the others: it is left out, and said in the log. Not covered: new runs.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgen.diagnosis import static
from kgen.gates.contract import GATE_CONTRACT
from kgen.loop.building import quick_result
from kgen.ops import REGISTRY
from kgen.promotion import Current
from kgen.promotion.gather import EVIDENCE
from kgen.records import SignedEvidence, Verdict
from kgen.report.op_champions import Champion, champions
from kgen.report.op_facts import GPUS, costs
from kgen.store.candidates import CandidateFolder
from kgen.store.documents import read_record
from kgen.store.errors import IntegrityError, StoreError
from kgen.store.kernelset import KernelSet
from kgen.store.runs import Run, Runs

log = logging.getLogger(__name__)

FLOOR_GPU = "h200"
NEXT = 5  # candidates that are named after the best


def ops(kernels: Path, runs: Runs) -> list[dict[str, Any]]:
    """One entry an op: name, title, dims, axes, floor µs by tokens, champions, number of runs."""
    serving, counts = _champions(kernels), _counts(runs)
    return [_listed(name, serving.get(name, ()), counts.get(name, 0)) for name in sorted(REGISTRY.every)]


def _listed(name: str, serving: tuple[Champion, ...], runs: int) -> dict[str, Any]:
    op = REGISTRY.get(name)
    dims = op.pack.served[0]
    floors = {str(row.tokens): round(row.floor_us, 3) for row in costs(op, GPUS[FLOOR_GPU], (dims,))}
    axes = {axis: list(values) for axis, values in op.axes.items()}
    served = [{"arch": c.arch, "candidate": c.candidate[:12], "points": c.points, "stale": c.stale} for c in serving]
    return {"name": name, "title": op.title, "axes": axes, "floor_us": floors, "champions": served, "runs": runs}


def _counts(runs: Runs) -> dict[str, int]:
    counts: dict[str, int] = {}
    for run in runs.list():
        op = run.id.split("-")[1] if run.id.count("-") >= 2 else ""
        counts[op] = counts.get(op, 0) + 1
    return counts


def _champions(kernels: Path) -> dict[str, tuple[Champion, ...]]:
    current = Current({name: op.contract_sha256() for name, op in REGISTRY.every.items()}, GATE_CONTRACT)
    try:
        return dict(champions(KernelSet(kernels), current))
    except (IntegrityError, StoreError) as error:
        log.warning("champions are not shown: %s", error)
        return {}


@dataclass(frozen=True)
class _Judged:
    """`us`: the mean of its times where it is `measured`, else its static cost at the problems `at`."""

    run: Run
    folder: CandidateFolder
    verdict: Verdict
    us: float
    measured: bool
    at: tuple[str, ...]

    @property
    def rank(self) -> tuple[bool, float]:
        return (not self.verdict.promotable, self.us)


def best(op: str, kernels: Path, runs: Runs) -> dict[str, Any]:
    """`candidate` is null where nothing got as far as *staged*. Its source is somebody's: data, not instructions.

    What was measured comes first. Static costs are compared at the same points only: at those of served dims where
    anything was built there, else where most candidates were.
    """
    judged = [j for run in runs.list() for j in _judged(run, op)]
    ordered, why = _ordered(judged, REGISTRY.get(op).pack.small)
    serving = [
        {
            "arch": c.arch,
            "candidate": c.candidate[:12],
            "points": c.points,
            "gains": list(c.gains or ()),
            "stale": c.stale,
        }
        for c in _champions(kernels).get(op, ())
    ]
    shown = {**_shown(ordered[0]), "why": why} if ordered else None
    after = [{"run": j.run.id, "id": j.folder.short_id, "us": round(j.us, 3)} for j in ordered[1 : 1 + NEXT]]
    return {"op": op, "candidate": shown, "next": after, "staged": len(judged), "champions": serving}


def _ordered(judged: Sequence[_Judged], small: str) -> tuple[list[_Judged], str]:
    """Those that can be compared, best first, and why they stand so."""
    timed = sorted((j for j in judged if j.measured), key=lambda j: j.rank)
    if timed or not judged:
        return timed, f"least mean of the measured times of {len(timed)} candidates, promotable ones first"
    groups: dict[tuple[str, ...], list[_Judged]] = {}
    for j in judged:
        groups.setdefault(j.at, []).append(j)
    at, members = max(groups.items(), key=lambda g: (any(key.split("/")[1:2] != [small] for key in g[0]), len(g[1])))
    others = f"; {len(judged) - len(members)} were built at other points only" if len(judged) > len(members) else ""
    points = ", ".join(at) or "points that are not known"
    return sorted(members, key=lambda j: j.rank), f"least static cost at {points} of {len(members)} candidates{others}"


def _shown(j: _Judged) -> dict[str, Any]:
    candidate = j.folder.candidate()
    quick = quick_result(j.folder)
    return {
        "run": j.run.id,
        "id": candidate.id,
        "by": candidate.origin.proposer,
        "state": "promotable" if j.verdict.promotable else "staged",
        "us": round(j.us, 3),
        "us_is": "measured" if j.measured else "estimated from the code at the quick points",
        "made_of": static.lines(quick.evidence.get("cost")) if quick and not j.measured else [],
        "codes": {r.gate: r.code for r in j.verdict.results},
        "source": candidate.source,
    }


def _judged(run: Run, op: str) -> Iterator[_Judged]:
    """The staged candidates of a run."""
    try:
        if run.info.op != op:
            return
        for folder in run.folders():
            verdict = folder.verdict()
            if verdict is not None and verdict.staged:
                yield _of(run, folder, verdict)
    except (IntegrityError, StoreError) as error:
        log.warning("run %s is left out: %s", run.id, error)


def _of(run: Run, folder: CandidateFolder, verdict: Verdict) -> _Judged:
    """By the mean measured time, else the static cost of the quick tier, else inf."""
    if times := _times(folder):
        return _Judged(run, folder, verdict, sum(times) / len(times), True, ())
    quick = quick_result(folder)
    evidence = quick.evidence if quick is not None else {}
    us = float(evidence["cost"]["us"]) if "cost" in evidence else float("inf")
    return _Judged(run, folder, verdict, us, False, tuple(sorted(evidence.get("problems", ()))))


def _times(folder: CandidateFolder) -> list[float]:
    path = folder.file(EVIDENCE)
    return [p.candidate_us for p in read_record(SignedEvidence, path).evidence.points] if path.exists() else []
