"""The GPU gates again, on the objects that a set holds: `kgen verify` on a GPU host.

Serving promotions for this GPU's arch only. What the model gate needs and a set does not hold (mutants, builds for the
small model) is built anew from the stored source. Not covered: other archs, and evidence (the set keeps what it was
promoted with).
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from kgen.contract.op import Op, Registry
from kgen.gates.audit.recorder import RecorderError
from kgen.gates.builder.outcome import BuilderError
from kgen.gates.compile import CompileGate
from kgen.gates.contract import DEFECTS, few_bins
from kgen.gates.environment import device_arch
from kgen.gates.kit_results import NEUTRAL
from kgen.gates.kit_units import RUN, CarriedCandidate, units
from kgen.gates.sandbox import NoSandboxError
from kgen.loop.proving import UNIT_SECONDS
from kgen.promotion import Finding, Outcome
from kgen.promotion.verify import name
from kgen.records import BuildRecord, Candidate, Origin, Promotion, Status
from kgen.store.cache import OBJECT_SUFFIX, linked_in, objects_in
from kgen.store.kernelset import KernelSet
from kgen.store.paths import SetPath

OUTCOMES = {Status.PASS: Outcome.OK, Status.FAIL: Outcome.BAD, Status.ERROR: Outcome.SKIP, Status.SKIP: Outcome.SKIP}


def reprove(target: SetPath, registry: Registry, cache: Path, say: Callable[[str], None]) -> list[Finding]:
    """A finding for each piece of work; one that says why where there is nothing to do. Raises IntegrityError."""
    kernels, arch = KernelSet(target.path), device_arch()
    manifest = kernels.manifest()
    serving = [p for p in manifest.promotions if p.seq in set(manifest.champions.values())]
    if not serving:
        return []
    mine = [p for p in serving if p.arch == arch]
    if not mine:
        here = f"this GPU is {arch}" if arch else "no GPU here"
        return [Finding("gates", "gates", Outcome.SKIP, f"not run again: {here}")]
    return [f for p in mine for f in _again(kernels, p, registry.get(p.op), cache, say)]


def _again(
    kernels: KernelSet, promotion: Promotion, op: Op, cache: Path, say: Callable[[str], None]
) -> Iterator[Finding]:
    builds = kernels.builds(promotion)
    blobs = objects_in(cache)
    for sha256 in set(promotion.objects.values()):
        blobs.put(kernels.object(sha256), OBJECT_SUFFIX)
    candidate = Candidate(promotion.op, kernels.source(promotion), Origin("promoted"))
    small, mutants = built_beside(op, candidate, builds, cache)
    for gate in RUN:
        judged = (*builds, *small) if gate == "model" else builds
        carried = CarriedCandidate(candidate.id, judged, mutants)
        for unit in units(op, carried, blobs.root, [gate], []):
            say(f"{name(promotion)}: {unit.name} ...")
            result = RUN[gate](op, unit, linked_in(cache), UNIT_SECONDS).result
            outcome = Outcome.OK if result.code in NEUTRAL else OUTCOMES[result.status]
            yield Finding(name(promotion), unit.name, outcome, f"{result.code}: {result.message[:200]}")


def built_beside(
    op: Op, candidate: Candidate, builds: tuple[BuildRecord, ...], cache: Path
) -> tuple[tuple[BuildRecord, ...], tuple[BuildRecord, ...]]:
    """Builds for the small model, and mutants, at a narrow, a middle and a wide bin of the first dims.

    Without a compiler there are none, and the model gate says that it proves nothing.
    """
    first = builds[0].problem.dims
    few = few_bins(b.problem.tokens for b in builds if b.problem.dims == first)
    problems = [b.problem for b in builds if b.problem.dims == first and b.problem.tokens in few]
    little = [op.problem(op.pack.small, p.tokens, p.arch, p.axes) for p in problems]
    try:
        with CompileGate(op, cache) as gate:
            sound = gate.run(candidate, little)
            reports = [gate.run(candidate, [p], defect) for defect in DEFECTS for p in problems]
    except (NoSandboxError, RecorderError, BuilderError):
        return (), ()
    broken = tuple(a.record for report in reports for a in report.artefacts)
    return tuple(a.record for a in sound.artefacts), broken
