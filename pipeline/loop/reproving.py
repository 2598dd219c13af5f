"""The GPU gates again, on the objects that a set holds: `kgen verify --all` and `--full` on a GPU host.

Serving promotions for this GPU's arch only, at the points that they serve. Pieces, each within PIECE_SECONDS:

    --all    every numeric point (without the sanitizer); one full-model-eval with the whole set in its seats, a router
             alone; the perf sweep at 1, 8 and 64 tokens, in the column that decides
    --full   every numeric point, sanitizer included; a full-model-eval of each promotion alone; the whole perf sweep

Finished pieces are kept (kgen.loop.reproved) until all are done, so that a run that ends early is taken up again. What
the model gate needs and a set does not hold (mutants, builds for the small model) is built anew from the stored source.
Not covered: other archs, and evidence (the set keeps what it was promoted with).
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kgen.contract.op import Op, Registry
from kgen.gates import numeric, perf
from kgen.gates.audit.recorder import RecorderError
from kgen.gates.builder.outcome import BuilderError
from kgen.gates.compile import CompileGate
from kgen.gates.contract import DEFECTS, few_bins
from kgen.gates.environment import device_arch
from kgen.gates.kit_together import apart
from kgen.gates.kit_units import (
    GATE_NAMES,
    MODEL,
    CarriedCandidate,
    Done,
    Runner,
    Say,
    Unit,
    carried_in,
    ensemble,
    piece,
    units,
)
from kgen.gates.runner.job import spec
from kgen.gates.sandbox import NoSandboxError
from kgen.loop.reproved import Kept, Part, digest, findings, open_parts
from kgen.promotion import Finding, Outcome
from kgen.promotion.verify import name
from kgen.records import BuildRecord, Candidate, Manifest, Origin, Promotion
from kgen.records.envelope import HEADLINE
from kgen.store.cache import OBJECT_SUFFIX, linked_in, objects_in
from kgen.store.kernelset import KernelSet
from kgen.store.paths import SetPath

NUMERIC, PERF = "numeric", "perf"
QUICK_TOKENS = (1, 8, 64)
PIECE_SECONDS = 480.0  # that one piece may take
USUAL_SECONDS = {NUMERIC: 90.0, MODEL: 240.0, PERF: 240.0}  # a piece is begun where so much is left
WHOLE = "the whole set"
Together = Callable[[Sequence[Op], Sequence[Unit], Path, float, Say], Done]
Builds = tuple[BuildRecord, ...]
Beside = Callable[[Op, Candidate, Builds, Path, bool], tuple[Builds, Builds]]


@dataclass(frozen=True)
class Reproved:
    """`left`: pieces that no time was left for, `failed`: that ended in an error; the same call goes on with both."""

    findings: tuple[Finding, ...]
    left: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Served:
    """A promotion, and the builds of the points at which it is what serves."""

    promotion: Promotion
    op: Op
    builds: Builds
    candidate: Candidate


@dataclass(frozen=True)
class Piece:
    """Work with an end of its own. `make`: its units, several where candidates of several ops are judged at once."""

    name: str
    gate: str
    served: tuple[Served, ...]
    make: Callable[[], list[Unit]]

    @property
    def digest(self) -> str:
        """Of the objects that serve: others are another piece of work."""
        return digest({b.problem.key: b.object_sha256 for s in self.served for b in s.builds})


def built_beside(
    op: Op, candidate: Candidate, builds: Builds, cache: Path, brief: bool = False
) -> tuple[Builds, Builds]:
    """Builds for the small model, and mutants of these and of the first dims, at a narrow, a middle and a wide bin;
    `brief`: mutants at the middle one only. Without a compiler there are none, and the model gate says that it proves
    nothing."""
    first = builds[0].problem.dims
    few = few_bins(b.problem.tokens for b in builds if b.problem.dims == first)
    problems = [b.problem for b in builds if b.problem.dims == first and b.problem.tokens in few]
    little = [op.problem(op.pack.small, p.tokens, p.arch, p.axes) for p in problems]
    planted = [p for p in (*problems, *little) if not brief or p.tokens == few[len(few) // 2]]
    try:
        with CompileGate(op, cache) as gate:
            sound = gate.run(candidate, little)
            reports = [gate.run(candidate, [p], defect) for defect in DEFECTS for p in planted]
    except (NoSandboxError, RecorderError, BuilderError):
        return (), ()
    broken = tuple(a.record for report in reports for a in report.artefacts)
    return tuple(a.record for a in sound.artefacts), broken


def _numeric(op: Op, unit: Unit, cache: Path, deadline: float) -> Done:
    return Done(numeric.run(op, unit.artefacts, cache=cache, deadline=deadline))


def _quick_numeric(op: Op, unit: Unit, cache: Path, deadline: float) -> Done:
    return Done(numeric.run(op, unit.artefacts, cache=cache, deadline=deadline, sanitize=False))


def _perf(op: Op, unit: Unit, cache: Path, deadline: float) -> Done:
    return Done(*perf.run(op, unit.artefacts, cache=cache, deadline=deadline))


def _quick_perf(op: Op, unit: Unit, cache: Path, deadline: float) -> Done:
    headline = {HEADLINE: perf.REPETITIONS[HEADLINE]}
    specs = [spec(a) for a in unit.artefacts]
    return Done(*perf.run_specs(op, specs, cache=cache, repetitions=headline, deadline=deadline))


@dataclass(frozen=True)
class Judges:
    """The gates as pieces call them; stand-ins in tests."""

    numeric: Runner = _numeric
    quick_numeric: Runner = _quick_numeric
    perf: Runner = _perf
    quick_perf: Runner = _quick_perf
    model: Together = ensemble
    beside: Beside = built_beside


def reprove(
    target: SetPath,
    registry: Registry,
    cache: Path,
    say: Say,
    *,
    full: bool = False,
    seconds: float = math.inf,
    arch: str | None = None,
    judges: Judges = Judges(),
) -> Reproved:
    """A finding for each piece of work, and for what it says of the evidence; one that says why where there is nothing
    to do. No piece is begun that would usually end after `seconds`, but one is. Raises IntegrityError."""
    kernels, here = KernelSet(target.path), device_arch() if arch is None else arch
    manifest = kernels.manifest()
    serving = [p for p in manifest.promotions if p.seq in set(manifest.champions.values())]
    if not serving:
        return Reproved(())
    mine = [_served(kernels, manifest, p, registry) for p in serving if p.arch == here]
    if not mine:
        where = f"this GPU is {here}" if here else "no GPU here"
        return Reproved((Finding("gates", "gates", Outcome.SKIP, f"not run again: {where}"),))
    blobs = objects_in(cache)
    for sha256 in {b.object_sha256 for s in mine for b in s.builds}:
        blobs.put(kernels.object(sha256), OBJECT_SUFFIX)
    todo = list(pieces(mine, cache, full, judges))
    kept = open_parts(cache, manifest, here, full)
    left = _run(todo, kept, cache, full, seconds, judges, say)
    found = [f for p in todo if (part := kept.of(p.name, p.digest)) for f in _of(p, part)]
    found += [Finding(p.name, GATE_NAMES[p.gate], Outcome.SKIP, "no time was left for it") for p in left]
    for served in mine:
        timed = [p for p in todo if p.gate == PERF and served in p.served]
        parts = [part for p in timed if (part := kept.of(p.name, p.digest)) and part.outcome is Outcome.OK]
        points = [q for part in parts for q in part.points]
        found += findings(served.promotion, {b.problem.key for b in served.builds}, points)
    if not left:
        kept.forget()  # the next call begins anew
    return Reproved(tuple(found), tuple(p.name for p in left), tuple(p.name for p in kept.errors))


def _served(kernels: KernelSet, manifest: Manifest, promotion: Promotion, registry: Registry) -> Served:
    builds = tuple(b for b in kernels.builds(promotion) if manifest.champions.get(b.problem.key) == promotion.seq)
    candidate = Candidate(promotion.op, kernels.source(promotion), Origin("promoted"))
    return Served(promotion, registry.get(promotion.op), builds, candidate)


def pieces(mine: Sequence[Served], cache: Path, full: bool, judges: Judges) -> Iterator[Piece]:
    """In the order in which they are run: what is cheap and tells most comes first."""
    root = objects_in(cache).root
    for served in mine:
        yield from _pieces_of(served, NUMERIC, root, served.builds, full)
    groups = [[s] for s in mine]
    if not full:
        first = {s.op.name: s for s in reversed(mine) if not apart(s.op)}
        joint = [s for s in mine if first.get(s.op.name) is s]  # one candidate an op
        groups = [*([joint] if joint else []), *([s] for s in mine if s not in joint)]
    for group in groups:
        who = name(group[0].promotion) if len(group) == 1 else WHOLE

        def make(group: Sequence[Served] = tuple(group)) -> list[Unit]:
            return [_model_unit(s, cache, full, judges) for s in group]

        yield Piece(f"{who}: {GATE_NAMES[MODEL]}", MODEL, tuple(group), make)
    for served in mine:
        timed = tuple(b for b in served.builds if full or b.problem.tokens in QUICK_TOKENS)
        yield from _pieces_of(served, PERF, root, timed, full)


def _pieces_of(served: Served, gate: str, root: Path, builds: Builds, full: bool) -> Iterator[Piece]:
    """As a run cuts its work; all points at once where they are brief, since each process takes its time to start."""
    found = units(served.op, CarriedCandidate(served.candidate.id, builds, ()), root, [gate], [])
    if not full and found:
        every = tuple(a for unit in found for a in unit.artefacts)
        found = [replace(found[0], name=f"{GATE_NAMES[gate]} of {len(every)} points", artefacts=every)]
    for unit in found:

        def make(unit: Unit = unit) -> list[Unit]:
            return [unit]

        yield Piece(f"{name(served.promotion)}: {unit.name}", gate, (served,), make)


def _model_unit(served: Served, cache: Path, full: bool, judges: Judges) -> Unit:
    root = objects_in(cache).root
    small, mutants = judges.beside(served.op, served.candidate, served.builds, cache, not full)
    judged, planted = (tuple(carried_in(root, b) for b in some) for some in ((*served.builds, *small), mutants))
    return Unit(MODEL, GATE_NAMES[MODEL], served.candidate.id, judged, planted)


def _run(
    todo: Sequence[Piece], kept: Kept, cache: Path, full: bool, seconds: float, judges: Judges, say: Say
) -> list[Piece]:
    """What is not done yet, as far as time allows; returns the rest."""
    started, begun, left = time.monotonic(), False, []
    for number, each in enumerate(todo, 1):
        where = f"[{number}/{len(todo)}] {each.name}"
        if kept.of(each.name, each.digest) is not None:
            say(f"{where}: done before")
            continue
        remaining = seconds - (time.monotonic() - started)
        if begun and remaining < USUAL_SECONDS[each.gate]:
            left.append(each)
            continue
        begun = True
        say(f"{where} ...")
        done = _judged(each, cache, full, judges, say)
        kept.add(each.name, each.digest, done)
        say(f"{where}: {done.result.status}  {done.result.code}  ({done.result.seconds:.0f} s)")
    return left


def _judged(each: Piece, cache: Path, full: bool, judges: Judges, say: Say) -> Done:
    """Builds first, without the GPU."""
    made, folder = each.make(), linked_in(cache)
    if each.gate == MODEL:
        ops = list({s.op.name: s.op for s in each.served}.values())
        return piece(MODEL, each.name, PIECE_SECONDS, say, lambda: judges.model(ops, made, folder, PIECE_SECONDS, say))
    checked, timed = (judges.numeric, judges.perf) if full else (judges.quick_numeric, judges.quick_perf)
    run = checked if each.gate == NUMERIC else timed
    return piece(
        each.gate, each.name, PIECE_SECONDS, say, lambda: run(each.served[0].op, made[0], folder, PIECE_SECONDS)
    )


def _of(each: Piece, part: Part) -> Iterator[Finding]:
    """What a piece came to; for each promotion, where several were judged at once."""
    subject = name(each.served[0].promotion) if len(each.served) == 1 else WHOLE
    beside = f" ({', '.join(s.op.name for s in each.served)})" if len(each.served) > 1 else ""
    check = each.name.rpartition(": ")[2]
    yield Finding(subject, check + beside, part.outcome, f"{part.code}: {part.message[:200]}")
