"""What the judge makes of timed points: the table with its intervals, and every timed output against the references.

Used by kgen.gates.perf. A chained call is judged on the input that it really had: what the call before it wrote.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kgen.contract import Op, Values
from kgen.gates import judge
from kgen.gates.rates import Rates
from kgen.gates.rows import rows_of, with_tokens
from kgen.gates.runner.contestants import CANDIDATE, chain_seed, set_seed
from kgen.gates.runner.host import Outcome
from kgen.gates.runner.perf import CHAINED, GRAPH, PointJob
from kgen.gates.runner.refill import refilled, refilled_names
from kgen.gates.statistics import median, ratio_interval
from kgen.records import PerfPoint
from kgen.records.envelope import label


@dataclass
class Findings:
    """What the judge collects over all points."""

    points: list[PerfPoint] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    impossible: list[str] = field(default_factory=list)
    table: judge.Table = field(default_factory=judge.Table)


def name_of(job: PointJob, column: str = "") -> str:
    return f"{job.spec.problem.key}/n{job.tokens}" + (f"/{column}" if column else "")


@torch.no_grad()
def judge_outcome(op: Op, jobs: Sequence[PointJob], outcome: Outcome, device: str, limits: Rates | None) -> Findings:
    found = Findings()
    for record in outcome.records:
        job, column = jobs[int(record["point"])], str(record["column"])
        found.wrong += [f"{name_of(job, column)}: {text}" for text in record["findings"]]
        rows = _judge_outputs(op, job, record, outcome, device)
        found.table.add(rows)
        found.wrong += [f"{name_of(job, column)}: {row.complaint}" for row in rows if row.complaint]
        point = make_point(op, job, record, limits)
        found.points.append(point)
        if (said := impossible(op, job, point, limits)) != "":
            found.impossible.append(said)
        kept = ("samples", "sets", "calls", "rotation_bytes", "timer", "setup_s", "prepare_s")
        found.raw[name_of(job, column)] = {name: record[name] for name in kept}
    return found


def make_point(op: Op, job: PointJob, record: Mapping[str, Any], limits: Rates | None) -> PerfPoint:
    """One row of the perf table. The ratio is paired: sample i of both sides comes from the same repetition."""
    samples: Mapping[str, list[float]] = record["samples"]
    mine = samples[CANDIDATE]
    baselines = {name: median(times) for name, times in samples.items() if name != CANDIDATE}
    best = min(baselines, key=lambda name: baselines[name])
    ratio, low, high = ratio_interval(mine, samples[best], job.order_seed)
    cost = op.cost(with_tokens(job.spec.problem, job.tokens))
    floor = cost.floor_us(limits.read) if limits else 0.0
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
    )


def impossible(op: Op, job: PointJob, point: PerfPoint, limits: Rates | None) -> str:
    """A complaint when the memory could not have moved the op's bytes in that time. Chained calls may hit L2."""
    if limits is None or point.column == CHAINED:
        return ""
    least = op.cost(with_tokens(job.spec.problem, job.tokens)).floor_us(limits.nominal)
    if point.candidate_us >= least:
        return ""
    return f"{name_of(job, point.column)}: {point.candidate_us:.2f} us, but its bytes need {least:.2f} us at peak"


def _judge_outputs(op: Op, job: PointJob, record: Mapping[str, Any], outcome: Outcome, device: str) -> list[judge.Row]:
    """Every timed output of one point and column against the references of the values that call had."""
    outputs = judge.to_device({n: outcome.tensor(ref) for n, ref in record["outputs"].items()}, device)
    column, repetitions = str(record["column"]), next(iter(outputs.values())).shape[0]
    problem, names = job.spec.problem, refilled_names(op, job.spec.problem)
    sets = [op.inputs(problem, "normal", set_seed(job.seed, s), device) for s in range(int(record["sets"]))]
    if column == CHAINED:
        return _judge_chained(op, job, sets, outputs, device)
    groups: dict[int, list[tuple[Values, dict[str, torch.Tensor]]]] = {}
    for repetition in range(repetitions):
        timed = range(len(sets)) if column == GRAPH else (repetition % len(sets),)
        for position, number in enumerate(timed):
            fresh = refilled(sets[number], names, job.seed, repetition, number)
            got = {n: t[repetition, position] for n, t in outputs.items()}
            groups.setdefault(number, []).append(({**sets[number], **fresh}, got))
    rows: list[judge.Row] = []
    for number, calls in groups.items():
        rows += _judge_calls(op, job, column, set_seed(job.seed, number), calls)
    return rows


def _judge_chained(
    op: Op, job: PointJob, sets: Sequence[Values], outputs: Mapping[str, torch.Tensor], device: str
) -> list[judge.Row]:
    """Each call of a chain is judged on the input it really had: what the candidate's call before it wrote."""
    assert op.chain is not None
    source, target = op.chain
    first = op.inputs(job.spec.problem, op.chain_family, chain_seed(job.seed), device)
    groups: dict[int, list[tuple[Values, dict[str, torch.Tensor]]]] = {}
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


def _judge_calls(
    op: Op, job: PointJob, column: str, seed: int, calls: Sequence[tuple[Values, dict[str, torch.Tensor]]]
) -> list[judge.Row]:
    problem = job.spec.problem
    values = [rows_of(op, problem, v, job.tokens) for v, _ in calls]
    answers = judge.expected_many(op, problem, values)
    rows: list[judge.Row] = []
    for before, (_, got), answer in zip(values, calls, answers, strict=True):
        rows += judge.judge_outputs(op, problem, before, got, answer, f"timed {column} n={job.tokens}", seed)
    return rows
