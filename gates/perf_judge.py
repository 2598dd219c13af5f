"""What the judge makes of timed points: the table with its intervals, and every timed output against the references.

Used by kgen.gates.perf. A chained call is judged on the input that it really had: what the call before it wrote. States
are judged of the calls that the runner has drawn and kept them of; the other calls on their outputs alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kgen.contract import DTYPES, Op, Role, Values
from kgen.gates import judge, routing, timing
from kgen.gates.rates import Rates
from kgen.gates.rows import rows_of, with_tokens
from kgen.gates.runner.contestants import CANDIDATE, chain_seed, set_seed, set_values
from kgen.gates.runner.host import Outcome
from kgen.gates.runner.perf import CHAINED, COLD, GRAPH, PointJob
from kgen.gates.runner.refill import refilled, refilled_names
from kgen.gates.statistics import median, ratio_interval
from kgen.records import PerfPoint
from kgen.records.envelope import label

Tensors = dict[str, torch.Tensor]
Call = tuple[Values, Tensors]  # what a timed call was given, and what is kept of what it wrote
RAW = ("samples", "sets", "calls", "rotation_bytes", "timer", "setup_s", "prepare_s")


@dataclass(frozen=True)
class Moved:
    """Bytes that a call of a column moves at least, a mean; `soon`: of them, those that must pass by its last event."""

    bytes: float
    soon: float


@dataclass
class Findings:
    """What the judge collects over all points."""

    points: list[PerfPoint] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    impossible: list[str] = field(default_factory=list)
    table: judge.Table = field(default_factory=judge.Table)
    left_out: dict[str, str] = field(default_factory=dict)  # scenario points that did not fit, and why
    states: dict[str, str] = field(default_factory=dict)  # by point and column: of how many calls states were judged
    warm: dict[str, str] = field(
        default_factory=dict
    )  # by point and column: what a rotation touches, if L2 may hold it
    uncompiled: dict[str, str] = field(
        default_factory=dict
    )  # by point: baselines that torch could not compile, and why


def name_of(job: PointJob, column: str = "") -> str:
    return "/".join(part for part in (job.spec.problem.key, f"n{job.tokens}", job.scenario, column) if part)


@torch.no_grad()
def judge_outcome(
    op: Op,
    jobs: Sequence[PointJob],
    outcome: Outcome,
    device: str,
    limits: Rates | None,
    trace: routing.Recorded | None = None,
) -> Findings:
    found = Findings()
    for record in outcome.records:
        job = jobs[int(record["point"])]
        if "left_out" in record:
            found.left_out[name_of(job)] = str(record["left_out"])
            continue
        column, problem, numbers = str(record["column"]), job.spec.problem, range(int(record["sets"]))
        name = name_of(job, column)
        how = job.tokens, device, trace
        sets = [set_values(op, problem, job.scenario, job.seed, number, *how) for number in numbers]
        rows = _judge_outputs(op, job, record, sets, outcome, device)
        found.wrong += [f"{name}: {text}" for text in record["findings"]]
        found.table.add(rows)
        found.wrong += [f"{name}: {row.complaint}" for row in rows if row.complaint]
        moved = bytes_moved(op, job, record, sets, timing.l2_bytes(device))
        point = make_point(job, record, moved, limits)
        found.points.append(point)
        if (said := impossible(job, record, point, moved, limits)) != "":
            found.impossible.append(said)
        found.raw[name] = {key: record[key] for key in RAW}
        _note_states(op, job, record, found)
        if "warm" in record:
            found.raw[name]["warm"] = found.warm[name] = record["warm"]
        for baseline, why in record.get("uncompiled", {}).items():
            found.uncompiled[f"{name_of(job)}/{baseline}"] = str(why)
    return found


def _note_states(op: Op, job: PointJob, record: Mapping[str, Any], found: Findings) -> None:
    """Of which calls the states were kept, as (repetition, number of the call); a column without any is refused."""
    if not _states(op, job):
        return
    name, column = name_of(job, str(record["column"])), str(record["column"])
    kept = [(int(s["repetition"]), int(s["call"])) for s in record["states"]]
    timed = job.repetitions[column] * (1 if column == COLD else int(record["sets"]))
    found.raw[name]["states"] = [list(pair) for pair in kept]
    found.states[name] = f"{len(kept)} of {timed} calls"
    if not kept:
        found.wrong.append(f"{name}: the runner kept no state of a timed call")


def _states(op: Op, job: PointJob) -> list[str]:
    return [t.name for t in op.present(job.spec.problem) if t.role is Role.STATE]


def bytes_moved(op: Op, job: PointJob, record: Mapping[str, Any], sets: Sequence[Values], l2: int) -> Moved:
    """By the op's own count for the values of the calls. A replay runs whole rotations, a cold sample one set.

    What a call leaves in its states may still lie in L2 when the last event passes, up to all that L2 holds.
    """
    problem, column = job.spec.problem, str(record["column"])
    true_problem = with_tokens(problem, job.tokens)
    each = [op.cost_of(true_problem, rows_of(op, problem, values, job.tokens)).bytes for values in sets]
    if column == COLD:
        moved, calls = median([each[r % len(each)] for r in range(job.repetitions[column])]), 1
    else:
        moved, calls = sum(each) / len(each), int(record["calls"])
    sizes = op.sizes(problem)
    states = [t for t in op.present(problem) if t.role is Role.STATE]
    written = calls * sum(math.prod(t.sizes(sizes)) * DTYPES[t.dtype].bytes for t in states)
    return Moved(moved, max(0.0, moved - min(written, l2) / calls))


def make_point(job: PointJob, record: Mapping[str, Any], moved: Moved, limits: Rates | None) -> PerfPoint:
    """One row of the perf table. The ratio is paired: sample i of both sides comes from the same repetition."""
    samples: Mapping[str, list[float]] = record["samples"]
    mine = samples[CANDIDATE]
    baselines = {name: median(times) for name, times in samples.items() if name != CANDIDATE}
    best = min(baselines, key=lambda name: baselines[name])
    ratio, low, high = ratio_interval(mine, samples[best], job.order_seed)
    floor = moved.bytes / limits.read * 1e6 if limits else 0.0
    return PerfPoint(
        problem=job.spec.problem.key,
        tokens=job.tokens,
        column=str(record["column"]),
        timer=str(record["timer"]),
        candidate_us=median(mine),
        baselines_us=baselines,
        best_baseline=best,
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        roofline=floor / median(mine),
        floor_us=floor,
        samples=len(mine),
        label=label(high),
        scenario=job.scenario,
    )


def impossible(job: PointJob, record: Mapping[str, Any], point: PerfPoint, moved: Moved, limits: Rates | None) -> str:
    """A complaint when the memory could not have moved the op's bytes in that time.

    Chained calls, and those of a rotation that is called warm, may find them in L2.
    """
    if limits is None or point.column == CHAINED or "warm" in record:
        return ""
    least = moved.soon / limits.nominal * 1e6
    if point.candidate_us >= least:
        return ""
    return f"{name_of(job, point.column)}: {point.candidate_us:.2f} us, but its bytes need {least:.2f} us at peak"


def _judge_outputs(
    op: Op, job: PointJob, record: Mapping[str, Any], sets: Sequence[Values], outcome: Outcome, device: str
) -> list[judge.Row]:
    """Every timed output of one point and column against the references of the values that call had."""
    outputs = judge.to_device({n: outcome.tensor(ref) for n, ref in record["outputs"].items()}, device)
    column, names = str(record["column"]), refilled_names(op, job.spec.problem)
    if column == CHAINED:
        return _judge_chained(op, job, sets, outputs, device)
    states = {(int(s["repetition"]), int(s["call"])): s["tensors"] for s in record.get("states", ())}
    timed: dict[int, list[tuple[int, int]]] = {}  # by set
    for repetition in range(job.repetitions[column]):
        for position, number in enumerate(range(len(sets)) if column == GRAPH else (repetition % len(sets),)):
            if outputs or (repetition, position) in states:
                timed.setdefault(number, []).append((repetition, position))

    def call(number: int, repetition: int, position: int) -> Call:
        fresh = refilled(sets[number], names, job.seed, repetition, number)
        got = {n: t[repetition, position] for n, t in outputs.items()}
        kept = {n: outcome.tensor(ref) for n, ref in states.get((repetition, position), {}).items()}
        return {**sets[number], **fresh}, {**got, **judge.to_device(kept, device)}

    rows: list[judge.Row] = []
    for number, where in timed.items():
        seed, calls = set_seed(job.seed, number), (call(number, *at) for at in where)
        if _states(op, job) and not judge.joins(op, job.spec.problem):  # one at a time: they are large
            for each in calls:
                rows += _judge_calls(op, job, column, seed, [each])
        else:
            rows += _judge_calls(op, job, column, seed, list(calls))
    return rows


def _judge_chained(
    op: Op, job: PointJob, sets: Sequence[Values], outputs: Mapping[str, torch.Tensor], device: str
) -> list[judge.Row]:
    """Each call of a chain is judged on the input it really had: what the candidate's call before it wrote."""
    assert op.chain is not None
    source, target = op.chain
    first = op.inputs(job.spec.problem, op.chain_family, chain_seed(job.seed), device)
    groups: dict[int, list[Call]] = {}
    repetitions, calls = outputs[source].shape[:2]
    for repetition in range(repetitions):
        entry: Values = refilled(first, [target], job.seed, repetition, 0)
        for k in range(calls):
            got = {n: t[repetition, k] for n, t in outputs.items()}
            groups.setdefault(k % len(sets), []).append(({**sets[k % len(sets)], **entry}, got))
            entry = {target: got[source]}
    rows: list[judge.Row] = []
    for number, many in groups.items():
        rows += _judge_calls(op, job, CHAINED, set_seed(job.seed, number), many)
    return rows


def _judge_calls(op: Op, job: PointJob, column: str, seed: int, calls: Sequence[Call]) -> list[judge.Row]:
    """Rows of these calls. Where no state was kept the stock op's stands in for the hard rules, and has no row."""
    problem, what = job.spec.problem, f"timed {column} n={job.tokens} {job.scenario}".strip()
    values = [rows_of(op, problem, v, job.tokens) for v, _ in calls]
    answers = judge.expected_many(op, problem, values)
    rows: list[judge.Row] = []
    for before, (_, got), answer in zip(values, calls, answers, strict=True):
        absent = {n: answer.stock[n] for n in _states(op, job) if n not in got}
        judged = judge.judge_outputs(op, problem, before, {**absent, **got}, answer, what, seed)
        rows += [row for row in judged if row.output not in absent]
    return rows
