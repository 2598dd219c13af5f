"""The compile stage in two tiers: every candidate at a few points, the best by cost at every point.

A candidate folder holds `quick.json` after the first tier; `compile.json` is what the gate said in the end, written
last, after `builds.json`. Not covered: which candidate is faster; see `cost` and `ranking`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from kgen.diagnosis.api_names import installed
from kgen.diagnosis.api_unknown import Unknown, unknown_names
from kgen.gates.compile import GATE, SHOWN_FINDINGS, CompileReport
from kgen.gates.contract import DEFECTS, GATE_CONTRACT
from kgen.gates.parsing import UNPARSABLE
from kgen.gates.screen import screen
from kgen.gates.skeleton import once
from kgen.loop import cost, matrix
from kgen.loop.population import shape
from kgen.loop.work import OUT_OF_TIME, Work
from kgen.records import BuildRecord, Candidate, GateResult, Status, to_json
from kgen.store.candidates import CandidateFolder
from kgen.store.documents import json_bytes, read_record

QUICK = "quick.json"
TICK_SECONDS = 1.0  # between two looks at how far builds are: five a second took as long as deciding what to build
AHEAD = 2  # candidates in the gate beyond one a slot: no slot waits for the next screen


def quick_result(folder: CandidateFolder) -> GateResult | None:
    """What the quick tier said, None when it has not been through. Raises IntegrityError."""
    path = folder.file(QUICK)
    return read_record(GateResult, path) if path.exists() else None


def skipped(reason: str, message: str) -> GateResult:
    return GateResult(GATE, Status.SKIP, f"{GATE}.{reason}", message, {}, 0.0, GATE_CONTRACT)


def quick_tier(work: Work, folders: Sequence[CandidateFolder]) -> list[CandidateFolder]:
    """All candidates through the quick tier, as many at a time as there are slots. Returns those that passed."""
    todo = [f for f in folders if quick_result(f) is None and not work.finished(f.result(GATE))]
    problems = matrix.quick(work.op, work.settings)
    if todo:
        points = ", ".join(f"{p.dims} t{p.tokens}" for p in problems)
        work.stage(f"compile, quick tier ({problems[0].arch}: {points})", len(todo))
        with pool(work, work.executor.width + AHEAD) as threads:
            futures = [threads.submit(_quick, work, folder) for folder in todo]
            collect(futures, lambda: None)
    return [f for f in folders if (result := quick_result(f)) is not None and result.passed]


def misnamed(source: str) -> CompileReport | None:
    """What the gate says of a source with names that the compiler's package does not have: nothing is built for it.

    None where all names may exist, where there is no compiler here to ask, and where the screen has its own word.
    """
    started, unknown = time.monotonic(), _unknown(source)
    if not unknown or screen(source):
        return None
    message = "\n".join(str(name) for name in unknown[:SHOWN_FINDINGS])
    evidence = {"names": [name.name for name in unknown]}
    seconds = time.monotonic() - started
    return CompileReport(GateResult(GATE, Status.FAIL, "compile.name", message, evidence, seconds, GATE_CONTRACT), ())


def _unknown(source: str) -> tuple[Unknown, ...]:
    """Names that the installed compiler does not have, for all sources with one skeleton at once."""
    if (names := installed()) is None:
        return ()
    find = partial(unknown_names, source, names)
    try:
        return once("unknown names", source, lambda _: find())
    except UNPARSABLE:
        return ()


def _quick(work: Work, folder: CandidateFolder) -> None:
    """One candidate. A failure goes to compile.json at once: it is what the gate says."""
    if work.stopping.is_set():
        return
    if why := work.ledger.time_for("quick", work.seconds_left):
        folder.write_result(skipped(OUT_OF_TIME, why))
        return
    gate, candidate = work.gate, folder.candidate()
    report = misnamed(candidate.source) or gate.run(candidate, matrix.quick(work.op, work.settings))
    shape(candidate.source)  # the next plan asks for it, when the tree that the screen made is gone
    work.ledger.took("quick", report.result.seconds)
    if work.stopping.is_set():  # the builder may have been closed under it
        return
    result = replace(report.result, evidence={**report.result.evidence, "tier": "quick"})
    if result.passed:
        records = [a.record for a in report.artefacts]
        launches = [to_json(cost.launch_cost(work.op, r, launch).__dict__) for r in records for launch in r.launches]
        points = [[r.problem.tokens, cost.static_cost(work.op, [r])] for r in records]
        static = {"us": cost.static_cost(work.op, records), "launches": launches, "points": points}
        folder.write(QUICK, json_bytes(replace(result, evidence={**result.evidence, "cost": static})))
    else:
        folder.write_result(result)
    work.step(result.code, folder.short_id, result)


def full_tier(work: Work, order: Sequence[CandidateFolder]) -> list[CandidateFolder]:
    """The best through the whole matrix, until `finalists` have passed; returns those. `order` is best first.

    A finalist that fails makes room for the next one. The others are skipped, and say so.
    """
    passed: list[CandidateFolder] = []
    left = list(order)
    while left:
        wave = _wave(work, left, work.settings.finalists - len(passed))
        todo = [f for f in wave if not work.finished(f.result(GATE))]
        if todo:
            with pool(work, len(todo)) as threads:
                collect([threads.submit(_full, work, folder) for folder in todo], lambda: None)
        for folder in wave or left[:1]:
            result = folder.result(GATE)
            if result is None:
                place = f"number {order.index(folder) + 1} of {len(order)} by cost"
                folder.write_result(skipped("not_chosen", f"passed the quick tier; {place}, not built further"))
            elif result.passed:
                passed.append(folder)
        left = left[len(wave) or 1 :]
    return passed


def _wave(work: Work, left: Sequence[CandidateFolder], room: int) -> list[CandidateFolder]:
    """The next of them, as far as each has its place among the finalists however the others of the wave come out."""
    wave: list[CandidateFolder] = []
    for folder in left:
        result = folder.result(GATE)
        if not work.finished(result) and room <= 0:
            break
        room -= not work.finished(result) or (result is not None and result.passed)
        wave.append(folder)
    return wave


def _full(work: Work, folder: CandidateFolder) -> GateResult:
    """One finalist: the matrix, then its mutants for the model gate. Writes builds.json, then compile.json."""
    if why := work.ledger.time_for("full", work.seconds_left):
        result = skipped(OUT_OF_TIME, why)
        folder.write_result(result)
        return result
    candidate, before = folder.candidate(), work.seconds_left
    problems, mutants = matrix.full(work.op, work.settings), matrix.mutants(work.op, work.settings)
    total = len(problems) + len(mutants) * len(DEFECTS)
    work.stage(f"compile, full matrix of {folder.short_id}", total)
    report = _all(work, [partial(work.gate.run, candidate, problems)])[0]
    records, result = [a.record for a in report.artefacts], report.result
    if result.passed:
        mutated, said, broken = _mutants(work, candidate)
        folder.write_builds((*records, *mutated))
        evidence = {**result.evidence, "tier": "full", "mutants": said}
        result = broken or replace(result, evidence=evidence)
    work.ledger.took("full", before - work.seconds_left)
    folder.write_result(result)
    work.say(f"{folder.short_id}: {result.status}  {result.code}  {result.message.splitlines()[0][:160]}")
    return result


def _mutants(work: Work, candidate: Candidate) -> tuple[list[BuildRecord], dict[str, str], GateResult | None]:
    """Builds with a planted defect, what came of each defect, and an error of ours if there was one.

    A defect that cannot be planted at a point is no failure: the model gate says what that means for its proof.
    """
    records: list[BuildRecord] = []
    said: dict[str, str] = {}
    problems = matrix.mutants(work.op, work.settings)
    for defect in DEFECTS if problems else ():
        reports = _all(work, [partial(work.gate.run, candidate, (p,), defect) for p in problems])
        built = [a.record for report in reports for a in report.artefacts]
        failed = [r.result for r in reports if not r.result.passed]
        records += built
        said[defect] = f"{len(built)} of {len(problems)} built" + (f"; {failed[0].message[:400]}" if failed else "")
        if error := next((r for r in failed if r.status is Status.ERROR), None):
            return records, said, error
    return records, said, None


def _all(work: Work, calls: Sequence[Callable[[], CompileReport]]) -> list[CompileReport]:
    """Run the gate beside this thread, telling the watcher of every problem that is done."""
    before = work.gate.cached + work.gate.built

    def tick() -> None:
        nonlocal before
        now = work.gate.cached + work.gate.built
        for _ in range(now - before):
            work.step("")
        before = now

    with pool(work, len(calls)) as threads:
        futures = [threads.submit(call) for call in calls]
        collect(futures, tick)
        return [future.result() for future in futures]


def collect(futures: Sequence["Future[Any]"], tick: Callable[[], None]) -> None:
    """Wait for all, raising the first exception. Ctrl-C comes through at once."""
    left = set(futures)
    while left:
        done, left = wait(left, timeout=TICK_SECONDS, return_when=FIRST_COMPLETED)
        tick()
        for future in done:
            future.result()


@contextmanager
def pool(work: Work, workers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that end at once when this one is interrupted."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="kgen-loop")
    try:
        yield pool
    except BaseException:  # interrupted, or a worker raised: nothing may go on writing
        work.close(at_once=True)
        raise
    finally:
        pool.shutdown(cancel_futures=True)
