"""The run folder as specimens: what a plan may know of each judged candidate. Times come from its evidence.

A verdict that ends in *error* says nothing about its candidate, which is then no specimen. Static costs are those of
the quick tier, and of the full matrix (first arch and dims) for ranges of tokens that the quick tier leaves out. Not
covered: what is made of it (`population`, `plan`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kgen.loop import cost, matrix
from kgen.loop.building import quick_result
from kgen.loop.population import BROKEN, BUILT, RIGHT, STATIC, TIMED, Score, Specimen, shape, span, techniques
from kgen.loop.replaying import recording
from kgen.loop.rounds import read_rounds
from kgen.loop.settings import Settings
from kgen.loop.work import Work
from kgen.promotion.gather import EVIDENCE
from kgen.proposers.base import DESIGN
from kgen.records import (
    GATES,
    BuildRecord,
    Candidate,
    GateResult,
    PerfPoint,
    SignedEvidence,
    Status,
    Verdict,
    canonical_json,
    sha256_bytes,
)
from kgen.records.envelope import HEADLINE
from kgen.store.candidates import BUILDS, CandidateFolder, parse_builds
from kgen.store.documents import KEPT, read_bytes, read_record

SLOW = "perf.no_win"  # refused for its times alone: it is right
LABEL = 48  # characters of a design's name


def specimens(work: Work) -> tuple[Specimen, ...]:
    """In the order of the run. Raises IntegrityError."""
    rounds = {name: r.number for r in read_rounds(work.run) for name in r.candidates}
    found: dict[str, Specimen] = {}
    for folder in work.run.folders():
        verdict = folder.verdict()
        if verdict is None or any(r.status is Status.ERROR for r in verdict.results):
            continue
        one = _specimen(work, folder, verdict, rounds.get(folder.path.name, 0), found)
        found[one.id] = one
    return tuple(found.values())


def basis(history: Iterable[Specimen]) -> str:
    """A hash of what a plan was made from, times excluded."""
    return sha256_bytes(canonical_json([[s.id, s.state, s.code] for s in history]))[:16]


def points_of(work: Work, folder: CandidateFolder) -> tuple[PerfPoint, ...]:
    """The candidate's timed points, () without evidence; in a replay those of the recorded run."""
    return timed_points(work.settings, folder)


def timed_points(settings: Settings, folder: CandidateFolder) -> tuple[PerfPoint, ...]:
    """The same for whoever only reads a run, by its settings."""
    if (recorded := recording(settings)) is not None and (then := recorded.points(folder.short_id)):
        return then
    path = folder.file(EVIDENCE)
    return read_record(SignedEvidence, path).evidence.points if path.exists() else ()


def _specimen(
    work: Work, folder: CandidateFolder, verdict: Verdict, number: int, before: Mapping[str, Specimen]
) -> Specimen:
    candidate, builds, quick = folder.candidate(), builds_of(folder), quick_result(folder)
    sound = [b for b in builds if not b.defect]
    timed = [p for p in points_of(work, folder) if p.column == HEADLINE]
    parents = tuple(str(p) for p in candidate.origin.detail.get("parents", ()))
    stage, state, last = _standing(verdict)
    designs = _designs(sound, quick)
    family = _family(candidate, designs, [before[p] for p in parents if p in before])
    bins: dict[str, tuple[int, ...]] = {}
    for problem in matrix.asked(work.op, work.settings):
        where = span(problem.tokens)
        bins[where] = tuple(sorted({*bins.get(where, ()), problem.tokens}))
    return Specimen(
        id=candidate.id,
        number=folder.number,
        round=number,
        kind=str(candidate.origin.detail.get("kind", DESIGN)),
        parents=parents,
        state=state,
        stage=stage,
        code=last.code if last else "",
        family=family,
        designs=designs,
        scores=_scores(work, timed, quick, sound) if state == RIGHT else {},
        bins=bins,
        roofline=_mean([p.roofline for p in timed]),
        shape=shape(candidate.source),
    )


def builds_of(folder: CandidateFolder) -> tuple[BuildRecord, ...]:
    """The candidate's builds: each gate asks for them, and every round for those of all rounds before, whose text is
    made records once."""
    path = folder.file(BUILDS)
    return KEPT.made(BUILDS, read_bytes(path), lambda data: parse_builds(data, path)) if path.exists() else ()


def _standing(verdict: Verdict) -> tuple[int, str, GateResult | None]:
    """How many gates were come through, what that makes of the candidate, and the result that says so."""
    failed = verdict.failed
    if failed is not None:
        stage = GATES.index(failed.gate)
        return stage, RIGHT if failed.code == SLOW else BROKEN, failed
    passed = sum(r.passed for r in verdict.results)
    return passed, RIGHT if verdict.staged else BUILT, verdict.results[-1] if verdict.results else None


def _designs(builds: Sequence[BuildRecord], quick: GateResult | None) -> dict[str, str]:
    """Range -> the candidate's own name for the algorithm there: the commonest over the points."""
    problems = quick.evidence.get("problems", {}) if quick else {}
    named = [(span(_tokens(key)), str(facts.get("design", ""))) for key, facts in problems.items()]
    named += [(span(b.problem.tokens), b.design) for b in builds]
    counted: dict[str, Counter[str]] = {}
    for where, name in named:
        if name.strip():
            counted.setdefault(where, Counter())[" ".join(name.split())[:LABEL]] += 1
    return {where: min(names, key=lambda n: (-names[n], n)) for where, names in counted.items()}


def _tokens(key: str) -> int:
    """Of a problem's key."""
    return int(key.split("/")[2].removeprefix("t"))


def _family(candidate: Candidate, designs: Mapping[str, str], parents: Sequence[Specimen]) -> str:
    """The names of its designs; without any, its one parent's family, else the techniques that its source shows."""
    if designs:
        return " / ".join(dict.fromkeys(designs.values()))
    return parents[0].family if len(parents) == 1 else techniques(candidate.source)


def _scores(
    work: Work, timed: Sequence[PerfPoint], quick: GateResult | None, builds: Sequence[BuildRecord]
) -> dict[str, Score]:
    ratios: dict[str, list[float]] = {}
    for point in timed:
        ratios.setdefault(span(point.tokens), []).append(point.ratio)
    static: dict[str, list[float]] = {}
    first = [b for b in builds if (b.problem.arch, b.problem.dims) == (work.settings.archs[0], work.settings.dims[0])]
    for build in first:
        static.setdefault(span(build.problem.tokens), []).append(cost.static_cost(work.op, [build]))
    guesses = {where: sum(us) / len(us) for where, us in static.items()}
    asked = matrix.quick(work.op, work.settings)
    said = quick.evidence.get("cost", {}).get("us") if quick else None
    if asked and isinstance(said, int | float):  # the same points for every candidate
        guesses[span(asked[-1].tokens)] = float(said) / len(asked)
    scores = {where: Score(STATIC, us) for where, us in guesses.items()}
    return {**scores, **{where: Score(TIMED, _mean(found)) for where, found in ratios.items()}}


def _mean(values: Sequence[float]) -> float:
    """Geometric; 0 of none."""
    positive = [v for v in values if v > 0 and math.isfinite(v)]
    return math.exp(sum(map(math.log, positive)) / len(positive)) if positive else 0.0
