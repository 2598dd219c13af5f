"""The three GPU gates inside a run: the same pieces of work, functions and evidence as in a kit, on the GPU here.

Without a fitting GPU every gate is a skip whose message holds the next command; but the numbers are checked in the PTX
interpreter, whose pass stages a candidate and is tried again where a GPU is. Finished pieces are kept in `parts.json`
and are not run again. Not covered: which candidates get here; see `graph`.
"""

import json
import lzma
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kgen.gates import kinds, numeric
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.gpu.lease import JUDGING_SECONDS, leased
from kgen.gates.gpu.quarantine import NoDevice
from kgen.gates.ingest import ingest
from kgen.gates.kit_results import JUDGED, NEUTRAL, EvidenceSet, distinct, merge_results, pack_raw
from kgen.gates.kit_units import GATE_NAMES, RUN, CarriedCandidate, Done, Runner, Unit, part_of, units
from kgen.gates.runner.job import stock_spec
from kgen.gates.skipping import skip_without
from kgen.loop import matrix
from kgen.loop.building import collect, pool
from kgen.loop.history import builds_of
from kgen.loop.intake import ledger, take_in
from kgen.loop.work import OUT_OF_BUDGET, OUT_OF_TIME, Work
from kgen.pool.dispatch import PoolError
from kgen.promotion.champions import champions
from kgen.records import Evidence, GateResult, Status
from kgen.store.cache import linked_in, objects_in
from kgen.store.candidates import CandidateFolder
from kgen.store.documents import json_bytes, read_record
from kgen.store.runs import utc_now
from kgen.store.signing import sign

PARTS, RAW_PARTS = "parts.json", "raw-parts.json.xz"
PREFIX: Mapping[str, str] = {"numeric": "numeric", "model": "fullmodel", "perf": "perf"}  # of the gates' codes
SHORT: Mapping[str, str] = {gate: short for short, gate in GATE_NAMES.items()}
UNIT_SECONDS = 480.0


def next_command(work: Work) -> str:
    return kinds.of(work.op).elsewhere.format(run=work.run.id)


def prove(work: Work, folder: CandidateFolder, gate: str, runners: Mapping[str, Runner] = RUN) -> GateResult:
    """One GPU gate of one candidate; its result is stored. What is finished already is only read."""
    known = folder.result(gate)
    if known is not None and work.finished(known):
        return known
    result = _result(work, folder, SHORT[gate], runners)
    if work.stopping.is_set():
        return result
    folder.write_result(result)
    return result


def prove_all(work: Work, folders: Sequence[CandidateFolder], gate: str) -> list[GateResult]:
    """One GPU gate of these candidates, as many at a time as the executor can judge."""
    width = min(len(folders), work.executor.provers(work.arch if work.arch in work.settings.archs else ""))
    if width <= 1:
        return [prove(work, folder, gate) for folder in folders]
    with pool(work, width) as threads:
        futures = [threads.submit(prove, work, folder, gate) for folder in folders]
        collect(futures, lambda: None)
        return [future.result() for future in futures]


def _result(work: Work, folder: CandidateFolder, short: str, runners: Mapping[str, Runner]) -> GateResult:
    builds = builds_of(folder)
    sound = [b for b in builds if not b.defect]
    specs = [stock_spec(b.problem) for b in sound]
    skip = skip_without("cuda", work.op, specs, GATE_NAMES[short], PREFIX[short], next_command(work))
    if skip is not None and (work.executor.here or work.arch not in work.settings.archs):
        return _interpreted(work, folder, skip) if short == "numeric" else skip
    carried = CarriedCandidate(
        folder.candidate().id,
        tuple(b for b in sound if b.problem.arch == work.arch),
        tuple(b for b in builds if b.defect and b.problem.arch == work.arch),
        champions(work.kernels, sound, objects_in(work.cache)) if work.kernels and short == "perf" else (),
    )
    todo = units(work.op, carried, objects_in(work.cache).root, [short], [])
    work.stage(f"{GATE_NAMES[short]} of {folder.short_id}", len(todo))
    results: list[GateResult] = []
    for unit in todo:
        results += _unit(work, folder, unit, runners).results
        if results[-1].status is Status.FAIL and results[-1].code not in NEUTRAL:
            break
    if not results:
        message = "this matrix has no dims that a promotion claims"
        return GateResult(GATE_NAMES[short], Status.SKIP, f"{PREFIX[short]}.no_points", message)
    return merge_results(results)


def _interpreted(work: Work, folder: CandidateFolder, skip: GateResult) -> GateResult:
    """unit-numeric on the CPU; `skip` where nothing is built that can be interpreted, or no time is left."""
    problems = matrix.interpreted(work.op, work.settings)
    if not problems or work.seconds_left <= 0:
        return skip
    work.stage(f"{numeric.GATE} of {folder.short_id} in the PTX interpreter", 1)
    report = work.gate.run(folder.candidate(), problems)  # from the cache
    if not report.result.passed:
        return report.result
    seconds = min(UNIT_SECONDS, work.seconds_left)
    result = work.executor.interpret(work.op, report.artefacts, work.cache, seconds)
    if result.status is Status.PASS or result.status is Status.SKIP:
        result = replace(result, message=f"{result.message}; next, on a GPU: {next_command(work)}")
    work.step(result.code, folder.short_id, result)
    return result


def _unit(work: Work, folder: CandidateFolder, unit: Unit, runners: Mapping[str, Runner]) -> Evidence:
    """The unit's evidence: the part that is there, if it is about exactly these objects, else run now."""
    found = parts(work, folder)
    if (before := found.judged(unit.candidate, unit.name, unit.objects)) is not None:
        work.step(f"{unit.name}: done before", folder.short_id)
        return before
    evidence, raw = _judged(work, unit, runners)
    if raw:
        folder.write(RAW_PARTS, pack_raw(_raw_parts(folder) | {f"{unit.candidate} {unit.name}": raw}))
    folder.write(PARTS, json_bytes(found.with_part(sign(evidence, work.run.key()))))
    (result,) = evidence.results
    work.step(f"{unit.name}: {result.status} {result.code}", folder.short_id, result)
    return evidence


def _judged(work: Work, unit: Unit, runners: Mapping[str, Runner]) -> tuple[Evidence, Any]:
    """Evidence and raw samples, made here or where the executor has its GPUs; signed here only."""
    started = utc_now()
    if work.executor.here or work.seconds_left <= 0:
        done = _run(work, unit, runners)
    else:
        try:
            most, folder = min(UNIT_SECONDS, work.seconds_left), work.run.folder(unit.candidate[:12])
            with work.ledger.gpu(folder, GATE_NAMES[unit.gate], unit.name, most) as seconds:
                if seconds:
                    return work.executor.unit(work.op, unit, work.cache, work.run.id, work.arch, seconds)
            done = _poor(work, unit)
        except PoolError as error:
            name = GATE_NAMES[unit.gate]
            done = Done(GateResult(name, Status.ERROR, "loop.error", str(error), contract=GATE_CONTRACT))
    return part_of(work.op, work.run.id, work.arch, "", unit, done, started), done.raw


def _run(work: Work, unit: Unit, runners: Mapping[str, Runner]) -> Done:
    name = GATE_NAMES[unit.gate]
    if work.seconds_left <= 0:
        text = "the run's minutes were used up before its turn"
        return Done(GateResult(name, Status.SKIP, f"{PREFIX[unit.gate]}.{OUT_OF_TIME}", text, contract=GATE_CONTRACT))
    most, folder = min(UNIT_SECONDS, work.seconds_left), work.run.folder(unit.candidate[:12])
    what = f"{unit.name} of {unit.candidate[:12]}"
    try:
        with (
            leased("cuda", what, most + JUDGING_SECONDS, say=work.say),
            work.ledger.gpu(folder, name, unit.name, most) as seconds,
        ):
            return runners[unit.gate](work.op, unit, linked_in(work.cache), seconds) if seconds else _poor(work, unit)
    except NoDevice:  # nothing else could run either: the run stops here, and can be resumed
        raise
    # The boundary of a piece: what goes wrong with the machine is its result, and the other pieces go on.
    except Exception as error:  # noqa: BLE001
        work.say(f"{unit.name}: {''.join(traceback.format_exception_only(error)).strip()[:400]}")
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
        return Done(GateResult(name, Status.ERROR, "loop.error", text, contract=GATE_CONTRACT))


def _poor(work: Work, unit: Unit) -> Done:
    text = f"{max(0.0, work.ledger.gpu_left):.0f} GPU-seconds are left of {work.settings.max_gpu_seconds:g}"
    need = work.ledger.longest.get(GATE_NAMES[unit.gate], 0.0)
    said = f"{text}, and the longest piece of this gate took {need:.0f}; kgen resume --max-gpu-seconds gives it more"
    code = f"{PREFIX[unit.gate]}.{OUT_OF_BUDGET}"
    return Done(GateResult(GATE_NAMES[unit.gate], Status.SKIP, code, said, contract=GATE_CONTRACT))


def parts(work: Work, folder: CandidateFolder) -> EvidenceSet:
    path = folder.file(PARTS)
    return read_record(EvidenceSet, path) if path.exists() else EvidenceSet(work.run.id, "")


def _raw_parts(folder: CandidateFolder) -> dict[str, Any]:
    """Raw samples kept so far. A damaged file loses samples of parts that are then refused, and run again by hand."""
    path = folder.file(RAW_PARTS)
    if not path.exists():
        return {}
    try:
        return dict(json.loads(lzma.decompress(path.read_bytes())))
    except (lzma.LZMAError, ValueError):
        return {}


def settle(work: Work, folder: CandidateFolder) -> None:
    """When all three gates of a candidate were judged here, its parts become its evidence, as those of a kit would."""
    found = parts(work, folder)
    statuses = {r.status for p in distinct(p.evidence for p in found.parts) for r in p.results}
    if not found.parts or not statuses <= set(JUDGED):
        return
    raw = folder.file(RAW_PARTS)
    raws = {RAW_PARTS: raw.read_bytes()} if raw.exists() else {}
    for ingested in ingest({PARTS: folder.file(PARTS).read_bytes()}, raws, ledger(work.run, work.op)):
        take_in(work.run, ingested)
