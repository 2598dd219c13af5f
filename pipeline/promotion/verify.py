"""Checking a whole set without a GPU: is every byte there, does it belong together, does the source still give it.

Damage is `bad`; evidence under older rules is `stale`, which is shown and is no failure; what cannot be checked here is
`skip` and says why. Not covered: whether the numbers in the evidence can be reproduced (that takes a GPU).
"""

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kgen.promotion.case import GPU_GATES
from kgen.promotion.freshness import Current, stale
from kgen.records import BuildRecord, Candidate, Compiler, Evidence, Manifest, Origin, Problem, Promotion
from kgen.records.envelope import envelope
from kgen.records.manifest import OWN_KEY
from kgen.store.errors import IntegrityError
from kgen.store.kernelset import MANIFEST, KernelSet
from kgen.store.paths import SetPath


class Outcome(enum.StrEnum):
    OK = "ok"
    STALE = "stale"
    SKIP = "skip"
    BAD = "bad"


class RebuildUnavailable(Exception):
    """Rebuilding is not possible here (no compiler, no sandbox); one line that says why."""


@dataclass(frozen=True)
class Rebuilder:
    """A way to build a promoted source again (`kgen.promotion.rebuild` has the real one).

    `build` raises RebuildUnavailable when it cannot be done here, IntegrityError when the source does not build.
    `difference` tells the first difference in machine code or launches of two builds, "" when there is none.
    """

    compiler: Compiler
    build: Callable[[Candidate, tuple[Problem, ...]], tuple[BuildRecord, ...]]
    difference: Callable[[BuildRecord, BuildRecord], str]


@dataclass(frozen=True)
class Finding:
    """One check of one thing: `subject` is the promotion, `check` the kind of check."""

    subject: str
    check: str
    outcome: Outcome
    message: str


@dataclass(frozen=True)
class VerifyReport:
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Nothing is bad; stale and skipped checks are reported, not failed."""
        return all(f.outcome is not Outcome.BAD for f in self.findings)


Check = Callable[[KernelSet, Promotion], str]  # a message on success; IntegrityError on damage


def verify(target: SetPath, current: Current, rebuilder: Rebuilder | None = None) -> VerifyReport:
    """Check every promotion of a set; those that serve are rebuilt too when a `rebuilder` is given.

    Never writes. Raises StoreError when the set cannot be read.
    """
    kernels = KernelSet(target.path)
    try:
        manifest = kernels.manifest()
    except IntegrityError as error:
        return VerifyReport((Finding(MANIFEST, "manifest", Outcome.BAD, str(error)),))
    first = Finding(MANIFEST, "manifest", Outcome.OK, f"seq {manifest.seq}, {len(manifest.promotions)} promotions")
    serving = set(manifest.champions.values())
    findings = [first, *_history(manifest)]
    for promotion in manifest.promotions:
        findings += _promotion(kernels, promotion, current)
        if promotion.seq in serving:
            findings.append(_rebuilt(kernels, promotion, rebuilder))
    return VerifyReport(tuple(findings))


def name(promotion: Promotion) -> str:
    return f"#{promotion.seq} {promotion.op} {promotion.candidate[:12]} {promotion.arch}"


def _history(manifest: Manifest) -> Iterator[Finding]:
    numbers = [line.get("seq", "") for line in manifest.history]
    if numbers != [str(n + 1) for n in range(manifest.seq)]:
        yield Finding(MANIFEST, "history", Outcome.BAD, f"history does not lead from 1 to {manifest.seq} without gaps")


def _promotion(kernels: KernelSet, promotion: Promotion, current: Current) -> Iterator[Finding]:
    for check, run in CHECKS.items():
        try:
            yield Finding(name(promotion), check, Outcome.OK, run(kernels, promotion))
        except IntegrityError as error:
            yield Finding(name(promotion), check, Outcome.BAD, str(error))
    reason = stale(promotion, current)
    yield Finding(
        name(promotion), "fresh", Outcome.STALE if reason else Outcome.OK, reason or "judged by today's rules"
    )


def _source(kernels: KernelSet, promotion: Promotion) -> str:
    found = Candidate(promotion.op, kernels.source(promotion), Origin("promoted")).id
    if found != promotion.candidate:
        raise IntegrityError(f"{promotion.source} is candidate {found[:12]}, not {promotion.candidate[:12]}")
    return f"{promotion.source} is the candidate"


def _evidence(kernels: KernelSet, promotion: Promotion) -> str:
    signed = kernels.evidence(promotion)
    evidence = signed.evidence
    for field in ("op", "candidate", "arch", "op_contract", "gate_contract", "run"):
        if getattr(evidence, field) != getattr(promotion, field):
            raise IntegrityError(f"{promotion.evidence} has another {field} than the promotion")
    if {k: evidence.objects.get(k) for k in promotion.objects} != dict(promotion.objects):
        raise IntegrityError(f"{promotion.evidence} was made with other objects than those promoted")
    _merit(promotion, evidence)
    if promotion.trust == OWN_KEY and not signed.hmac:
        raise IntegrityError(f"{promotion.evidence} is unsigned, but was promoted as the owner's own")
    kernels.raw(promotion)
    return f"{len(promotion.objects)} points on {evidence.environment.gpu}, {promotion.trust}"


def _merit(promotion: Promotion, evidence: Evidence) -> None:
    labels = envelope(evidence.points)
    if {k: labels.get(k) for k in promotion.labels} != dict(promotion.labels):
        raise IntegrityError(f"{promotion.evidence} does not show the wins and ties that the promotion claims")
    passed = {r.gate for r in evidence.results if r.passed}
    if missing := [gate for gate in GPU_GATES if gate not in passed]:
        raise IntegrityError(f"{promotion.evidence} holds no pass of {missing[0]}")


def _objects(kernels: KernelSet, promotion: Promotion) -> str:
    distinct = sorted(set(promotion.objects.values()))
    total = sum(len(kernels.object(sha256)) for sha256 in distinct)
    return f"{len(distinct)} objects, {total} bytes"


def _builds(kernels: KernelSet, promotion: Promotion) -> str:
    builds = {b.problem.key: b for b in kernels.builds(promotion)}
    if set(builds) != set(promotion.objects):
        raise IntegrityError(f"{promotion.builds or promotion.source}: build records do not cover the promoted points")
    for key, build in builds.items():
        recorded = (build.object_sha256, build.function, build.workspaces, build.launch_counts(), build.candidate)
        promoted = (
            promotion.objects[key],
            promotion.functions[key],
            promotion.workspaces[key],
            dict(promotion.launches[key]),
            promotion.candidate,
        )
        if recorded != promoted:
            raise IntegrityError(f"{promotion.builds}: the build record of {key} is not that of the promoted object")
    return f"{len(builds)} build records"


CHECKS: Mapping[str, Check] = {"source": _source, "evidence": _evidence, "objects": _objects, "builds": _builds}


def _rebuilt(kernels: KernelSet, promotion: Promotion, rebuilder: Rebuilder | None) -> Finding:
    if rebuilder is None:
        return Finding(name(promotion), "rebuild", Outcome.SKIP, "not asked for")
    try:
        outcome, message = _compare_rebuild(kernels, promotion, rebuilder)
    except IntegrityError as error:
        outcome, message = Outcome.BAD, str(error)
    except RebuildUnavailable as reason:
        outcome, message = Outcome.SKIP, str(reason)
    return Finding(name(promotion), "rebuild", outcome, message)


def _compare_rebuild(kernels: KernelSet, promotion: Promotion, rebuilder: Rebuilder) -> tuple[Outcome, str]:
    recorded = kernels.builds(promotion)
    others = sorted(
        {f"{b.compiler.version} ({b.compiler.flavour})" for b in recorded if b.compiler != rebuilder.compiler}
    )
    if others or not recorded:
        here = f"{rebuilder.compiler.version} ({rebuilder.compiler.flavour})"
        return Outcome.SKIP, f"built with {', '.join(others) or 'an unknown compiler'}, here is {here}"
    candidate = Candidate(promotion.op, kernels.source(promotion), Origin("promoted"))
    again = {b.problem.key: b for b in rebuilder.build(candidate, tuple(b.problem for b in recorded))}
    for build in recorded:
        key = build.problem.key
        if key not in again:
            raise IntegrityError(f"{key}: the source does not build any more")
        if text := rebuilder.difference(build, again[key]):
            raise IntegrityError(f"{key}: the source builds to something else than the promoted object: {text}")
    return Outcome.OK, f"{len(recorded)} points rebuilt to the same kernel code and launches"
