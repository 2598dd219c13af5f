"""Hardware counters of the finalists, beside their evidence: asked for with --counters, and no part of any verdict.

A candidate's `counters.json` holds them, or why there are none. Not covered: reading them (gates/counters.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kgen.gates.counters import FILE, SECONDS, Counters, CounterSet, chosen, take, why_not
from kgen.gates.gpu.lease import JUDGING_SECONDS, leased
from kgen.gates.kit_units import Carried, carried_in
from kgen.loop.work import Work
from kgen.records import Verdict, one_line
from kgen.store.cache import linked_in, objects_in
from kgen.store.candidates import CandidateFolder
from kgen.store.documents import json_bytes, parse_record, read_record
from kgen.store.runs import Run

NAME = "counters"


def count(work: Work, folders: Sequence[CandidateFolder]) -> None:
    """Those that have counters, or were skipped for another reason than time, keep what they have."""
    for folder in folders:
        known = read(folder)
        if not any(c.kernels for c in known) and not work.stopping.is_set():
            store(folder, _taken(work, folder))


def read(folder: CandidateFolder) -> tuple[Counters, ...]:
    """Raises IntegrityError for a damaged file."""
    path = folder.file(FILE)
    return read_record(CounterSet, path).counters if path.exists() else ()


def store(folder: CandidateFolder, found: Sequence[Counters]) -> None:
    folder.write(FILE, json_bytes(CounterSet(tuple(found))))


def keep_counters(run: Run, documents: Mapping[str, bytes]) -> int:
    """Counters that a kit wrote, into the folders of the candidates that this run built them for; returns how many.

    They are believed as they are: they decide nothing. Raises IntegrityError for a file that holds none.
    """
    found = [c for name, data in documents.items() for c in parse_record(CounterSet, data, name).counters]
    kept = 0
    for folder in run.folders() if found else ():
        built = {b.problem.key: b.object_sha256 for b in folder.builds() if not b.defect}
        mine = [c for c in found if c.object_sha256 and built.get(c.problem) == c.object_sha256]
        if mine:
            store(folder, mine)
            kept += 1
    return kept


def with_counters(folder: CandidateFolder, verdict: Verdict) -> Verdict:
    """The verdict as a diagnosis reads it: counters beside the facts of the builds that they are of."""
    counted = {c.problem: c.kernels for c in read(folder) if c.kernels}
    if not counted:
        return verdict
    results = []
    for result in verdict.results:
        problems = result.evidence.get("problems")
        if result.gate == "compile" and isinstance(problems, dict):
            more = {k: {**problems[k], NAME: counted[k]} for k in counted if k in problems}
            result = replace(result, evidence={**result.evidence, "problems": {**problems, **more}})
        results.append(result)
    return replace(verdict, results=tuple(results))


def _taken(work: Work, folder: CandidateFolder) -> list[Counters]:
    picked = chosen(work.op, [carried_in(objects_in(work.cache).root, b) for b in folder.builds()], work.arch)
    why = why_not(work.arch) if work.arch else "no GPU here"
    if not work.executor.here:
        why = "counters are read on the machine that asks only"
    if why or not picked:
        why = why or f"nothing of what is served was built for {work.arch}"
        work.say(f"{folder.short_id}: {NAME}: skip: {why}")
        return [Counters(folder.candidate().id, "", "", skipped=why)]
    found = [_one(work, folder, piece) for piece in picked]
    for each in found:
        said = f"skip: {each.skipped}" if each.skipped else f"{len(each.kernels)} kernels"
        work.say(f"{folder.short_id}: {NAME} of {each.problem}: {said}")
    return found


def _one(work: Work, folder: CandidateFolder, piece: Carried) -> Counters:
    record, most = piece.record, min(SECONDS, work.seconds_left)
    nothing = Counters(record.candidate, record.problem.key, record.object_sha256)
    if most <= 0:
        return replace(nothing, skipped="the run's minutes were used up before its turn")
    what = f"{NAME} of {folder.short_id}"
    try:
        with (
            leased("cuda", what, most + JUDGING_SECONDS, say=work.say),
            work.ledger.gpu(folder, NAME, record.problem.key, most) as seconds,
        ):
            if not seconds:
                return replace(nothing, skipped="the run's GPU-seconds do not reach for it")
            return take(piece, cache=linked_in(work.cache), seconds=seconds)
    # The boundary of a piece that decides nothing: whatever goes wrong is why there are no counters.
    except Exception as error:  # noqa: BLE001
        return replace(nothing, skipped=f"{type(error).__name__}: {one_line(str(error), 400)}")
