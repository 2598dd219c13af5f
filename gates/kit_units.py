"""The pieces of work of a kit: one gate of one candidate on a few points, each minutes at most, and their evidence."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from kgen.contract import Op
from kgen.gates import modeleval, numeric, perf
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.environment import environment
from kgen.gates.gpu.lease import JUDGING_SECONDS, leased
from kgen.gates.gpu.quarantine import NoDevice
from kgen.gates.kit_results import TOGETHER, UNIT, raw_digest
from kgen.gates.routing import Recorded, ids_in
from kgen.records import BuildRecord, Evidence, GateResult, PerfPoint, Status
from kgen.store.cache import OBJECT_SUFFIX, Blobs
from kgen.store.runs import utc_now

BINS_A_UNIT = 4
TRACE = "routing.jsonl"  # of a kit's files: a recorded routing trace
MODEL = "model"  # of the gates, the one that judges a whole candidate at once
Say = Callable[[str], None]


@dataclass(frozen=True)
class Carried:
    """An artefact inside an unpacked kit."""

    record: BuildRecord
    object: Path


@dataclass(frozen=True)
class CarriedCandidate:
    """One candidate of a kit. `mutants`: builds of it with a planted defect; `champions`: those of kernels in place."""

    SCHEMA: ClassVar[str] = "kgen.kit-candidate/1"
    id: str
    builds: tuple[BuildRecord, ...]
    mutants: tuple[BuildRecord, ...]
    champions: tuple[BuildRecord, ...] = ()


@dataclass(frozen=True)
class Unit:
    """Work that ends in one part of the evidence."""

    gate: str  # numeric, model or perf
    name: str
    candidate: str
    artefacts: tuple[Carried, ...]
    mutants: tuple[Carried, ...] = ()
    champions: tuple[Carried, ...] = ()  # what a timed candidate has to beat, where something serves already

    @property
    def objects(self) -> dict[str, str]:
        """Problem key -> sha256 of the object that is judged there."""
        return {a.record.problem.key: a.record.object_sha256 for a in self.artefacts}


@dataclass(frozen=True)
class Done:
    result: GateResult
    points: tuple[PerfPoint, ...] = ()
    raw: Mapping[str, Any] | None = None


def units(
    op: Op, candidate: CarriedCandidate, objects: Path, gates: Sequence[str], wanted: Sequence[str]
) -> list[Unit]:
    """The candidate's work in order. `wanted` restricts the points (see `wants`); nothing left is an empty list."""
    builds, mutants, champions = (
        [carried_in(objects, b) for b in records if wants(b.problem.key, wanted)]
        for records in (candidate.builds, candidate.mutants, candidate.champions)
    )
    found = []
    for gate in gates:
        due = [b for b in builds if covers(gate, b.record, op)]
        for label, group in _groups(due) if gate != MODEL else [("", due)]:
            name = f"{GATE_NAMES[gate]} {label}".strip()
            if group:
                own = tuple(mutants) if gate == MODEL else ()
                keys = {b.record.problem.key for b in group} if gate == "perf" else set()
                rivals = tuple(c for c in champions if c.record.problem.key in keys)
                found.append(Unit(gate, name, candidate.id, tuple(group), own, rivals))
    return found


def carried_in(objects: Path, build: BuildRecord) -> Carried:
    """A build whose object lies in the folder `objects` under its hash."""
    return Carried(build, Blobs(objects).where(build.object_sha256, OBJECT_SUFFIX))


def covers(gate: str, build: BuildRecord, op: Op) -> bool:
    """Whether this gate has to judge this build: only the dims that a promotion claims are timed."""
    return gate != "perf" or build.problem.dims in op.served


def wants(key: str, wanted: Sequence[str]) -> bool:
    """Whether a problem key holds one of the wanted words between its slashes (`t8`, `nano`), or is one of them."""
    return not wanted or key in wanted or bool(set(key.split("/")) & set(wanted))


def _groups(builds: Sequence[Carried]) -> list[tuple[str, list[Carried]]]:
    """By arch and dims, at most BINS_A_UNIT bins each, named by them."""
    lines: dict[tuple[str, str], list[Carried]] = {}
    for build in builds:
        lines.setdefault((build.record.problem.arch, build.record.problem.dims), []).append(build)
    found = []
    for (arch, dims), line in lines.items():
        bins = sorted({b.record.problem.tokens for b in line})
        for start in range(0, len(bins), BINS_A_UNIT):
            part = bins[start : start + BINS_A_UNIT]
            label = f"{arch} {dims} t{part[0]}" + (f"-t{part[-1]}" if len(part) > 1 else "")
            found.append((label, [b for b in line if b.record.problem.tokens in part]))
    return found


def part_of(
    op: Op,
    run: str,
    arch: str,
    kit: str,
    unit: Unit,
    done: Done,
    started: str,
    beside: Mapping[str, str] | None = None,
) -> Evidence:
    """One piece's evidence. `kit` is the hash of the kit's table of contents, "" where no kit is involved; `beside`
    are other candidates that were in place in the same evaluation, by op."""
    seeds, timed = done.result.evidence.get("seeds", {}), unit.gate == "perf"
    return Evidence(
        op=op.name,
        candidate=unit.candidate,
        op_contract=op.contract_sha256(),
        gate_contract=GATE_CONTRACT,
        arch=arch,
        run=run,
        objects=unit.objects,
        environment=environment(),
        results=(done.result,),
        points=done.points,
        seeds={k: v for k, v in seeds.items() if isinstance(v, int)},
        started=started,
        finished=utc_now(),
        raw_sha256=raw_digest(done.raw or {}),
        facts={
            UNIT: unit.name,
            "kit": kit,
            "mutants": {f"{m.record.problem.key} {m.record.defect}": m.record.object_sha256 for m in unit.mutants},
            **({TOGETHER: dict(beside)} if beside else {}),
            **({"champions": {c.record.problem.key: c.record.object_sha256 for c in unit.champions}} if timed else {}),
        },
    )


Runner = Callable[[Op, Unit, Path, float], Done]
Ensemble = Callable[..., Done]  # of ops, their units, a cache folder, a deadline in seconds


def piece(gate: str, whose: str, deadline: float, say: Say, work: Callable[[], Done]) -> Done:
    """One piece of work with the GPU to itself. What goes wrong with the machine is its result; raises NoDevice."""
    try:
        with leased("cuda", whose, deadline + JUDGING_SECONDS, say=lambda line: say(f"  {line}")):
            return work()
    except NoDevice:  # nothing else could run either
        raise
    # The boundary of a piece: the other pieces go on.
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
        return Done(GateResult(GATE_NAMES[gate], Status.ERROR, "kit.error", text, contract=GATE_CONTRACT))


def talking(say: Say, trace: Recorded | None = None) -> Mapping[str, Runner]:
    """The gates; the one that takes minutes says how far it is; `trace`: of routing, for ops that take one."""
    return {**RUN, MODEL: partial(_model, say=say), "perf": partial(_perf, trace=trace)}


def _numeric(op: Op, unit: Unit, cache: Path, deadline: float) -> Done:
    return Done(numeric.run(op, unit.artefacts, cache=cache, deadline=deadline))


def _model(op: Op, unit: Unit, cache: Path, deadline: float, say: Say = lambda line: None) -> Done:
    return Done(modeleval.run(op, unit.artefacts, unit.mutants, cache=cache, deadline=deadline, say=say))


def _perf(op: Op, unit: Unit, cache: Path, deadline: float, trace: Recorded | None = None) -> Done:
    used = trace if ids_in(op) else None
    return Done(*perf.run(op, unit.artefacts, cache=cache, champion=unit.champions, deadline=deadline, trace=used))


def ensemble(
    ops: Sequence[Op], units: Sequence[Unit], cache: Path, deadline: float, say: Say = lambda line: None
) -> Done:
    """The model gate of one candidate of each op, all in place at once."""
    artefacts = [a for unit in units for a in unit.artefacts]
    mutants = [m for unit in units for m in unit.mutants]
    return Done(modeleval.run(ops, artefacts, mutants, cache=cache, deadline=deadline, say=say))


RUN: Mapping[str, Runner] = {"numeric": _numeric, MODEL: _model, "perf": _perf}
GATE_NAMES: Mapping[str, str] = {"numeric": numeric.GATE, MODEL: modeleval.GATE, "perf": perf.GATE}
