"""What a committed kernel set says now, however often it was promoted: nothing here names a kernel or a number.

serving("moe_shared")         the promotions that serve points, oldest first
headline("moe_shared")        {(dims, true tokens): PerfPoint} of the points that serve, each from its own evidence
promoted()                    the ops of which something serves, by name
timed("moe_shared")           every point that the evidence of what serves has in the column that decides, with what
                              became of its bin: those that left the envelope too, and the op's scenarios
"""

import functools
from dataclasses import dataclass
from pathlib import Path

from support.checkout import ROOT

from kgen.records import Evidence, Manifest, PerfPoint, Problem, Promotion
from kgen.records.envelope import HEADLINE
from kgen.store.kernelset import MANIFEST, KernelSet, parse_problem

SET = ROOT / "generated_kernels"


@dataclass(frozen=True)
class Timed:
    """`outcome` of the bin, by all its counts and scenarios: win, tie or left. `seq`: of the promotion."""

    seq: int
    problem: Problem
    point: PerfPoint
    outcome: str


def manifest_of(root: Path) -> Manifest:
    """Read anew only where the file has changed."""
    found = (root / MANIFEST).stat()
    return _manifest(root, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=8)
def _manifest(root: Path, changed: int, size: int) -> Manifest:
    return KernelSet(root).manifest()


def serving(op: str, root: Path = SET) -> list[Promotion]:
    manifest = manifest_of(root)
    mine = {seq for key, seq in manifest.champions.items() if parse_problem(key).op == op}
    return [p for p in manifest.promotions if p.seq in mine]


def promoted(root: Path = SET) -> list[str]:
    return sorted({parse_problem(key).op for key in manifest_of(root).champions})


@functools.lru_cache(maxsize=64)
def _evidence(root: Path, promotion: str) -> Evidence:
    found = {p.evidence: p for p in manifest_of(root).promotions}
    return KernelSet(root).evidence(found[promotion]).evidence


def evidence(promotion: Promotion, root: Path = SET) -> Evidence:
    return _evidence(root, promotion.evidence)  # files of a set never change


def headline(op: str, root: Path = SET) -> dict[tuple[str, int], PerfPoint]:
    champions, found = manifest_of(root).champions, dict[tuple[str, int], PerfPoint]()
    for promotion in serving(op, root):
        for p in evidence(promotion, root).points:
            if champions.get(p.problem) == promotion.seq and p.column == HEADLINE and not p.scenario:
                found[parse_problem(p.problem).dims, p.tokens] = p
    return found


def timed(op: str, root: Path = SET) -> list[Timed]:
    """By dims, axes and true count. What another promotion serves is that one's."""
    champions, found = manifest_of(root).champions, dict[str, list[Timed]]()
    for promotion in serving(op, root):
        new: dict[str, list[Timed]] = {}
        for p in evidence(promotion, root).points:
            served = champions.get(p.problem)
            if p.column == HEADLINE and served in (None, promotion.seq):
                outcome = promotion.labels[p.problem] if served else "left"
                new.setdefault(p.problem, []).append(Timed(promotion.seq, parse_problem(p.problem), p, outcome))
        found |= new  # of a bin that left twice, the later try
    return sorted((each for bins in found.values() for each in bins), key=_order)


def _order(each: Timed) -> tuple[str, str, int, list[tuple[str, str]], int, int]:
    """Dims of more ranks come later; scenarios keep the evidence's order behind the typical inputs of their bin."""
    problem, p = each.problem, each.point
    name, _, ranks = problem.dims.rpartition("tp")
    axes = sorted(problem.axes.items())
    return problem.arch, name, int(ranks) if ranks.isdigit() else 0, axes, p.tokens, problem.tokens
