"""What is right over all ranks: references, bits equal among ranks, mailboxes armed, digests of long runs, times.

Inputs are drawn anew here from the seeds; the ranks knew no answer. Each function takes the parts' outcomes in rank
order and returns rows; one with a complaint fails the candidate.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from kgen.contract import Role, Values, relative_l2
from kgen.contract.ranks import in_rank_order, stacked
from kgen.gates import judge
from kgen.gates.ranks import baselines, endure, timed
from kgen.gates.ranks.digest import digest
from kgen.gates.ranks.job import RankedSpec, buffer
from kgen.gates.ranks.record import CheckRow, TimedPoint
from kgen.gates.runner.host import Outcome
from kgen.gates.runner.numeric import step_seed
from kgen.gates.runner.refill import refilled, refilled_names
from kgen.gates.statistics import median, ratio_interval

Records = tuple[Mapping[str, Any], ...]
BASELINE_FAR = 2e-2  # relL2 of a baseline's sum in bf16: farther, it did something else


def together(outcomes: Sequence[Outcome], *names: str) -> Iterator[Records]:
    """The ranks' records that have these fields, one of each rank at a time, in rank order."""
    each = [[r for r in o.records if all(n in r for n in names)] for o in outcomes]
    return iter(list(zip(*each, strict=False)))


def _tensors(outcome: Outcome, refs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: outcome.tensor(ref) for name, ref in refs.items()}


def _findings(records: Records, problem: str, what: str, calls: int, seed: int) -> list[CheckRow]:
    return [
        CheckRow(problem, what, calls, seed, code, f"rank {rank}: {text}")
        for rank, record in enumerate(records)
        for code, text in record["findings"]
    ]


def sequences(spec: RankedSpec, outcomes: Sequence[Outcome]) -> list[CheckRow]:
    """Every family: kept outputs of all ranks against the references, and the hard rules over ranks."""
    rows: list[CheckRow] = []
    for records in together(outcomes, "outputs", "what"):
        first = records[0]
        if first["problem"] != spec.label:
            continue
        what, steps, seed = str(first["what"]), int(first["steps"]), int(first["seed"])
        rows += _findings(records, spec.label, what, steps, seed)
        kept: dict[int, list[dict[str, torch.Tensor]]] = {}
        for outcome, record in zip(outcomes, records, strict=True):
            for output in record["outputs"]:
                kept.setdefault(int(output["step"]), []).append(_tensors(outcome, output["tensors"]))
        wrong = _apart(spec, records) or _against_reference(spec, str(first["family"]), seed, steps, kept)
        rows.append(CheckRow(spec.label, what, steps, seed, *wrong))
    return rows


def _apart(spec: RankedSpec, records: Records) -> tuple[str, str] | None:
    """The first step after which ranks do not hold the same bits of what must be the same, kept or not."""
    for name in spec.op.same:
        for rank, record in enumerate(records[1:], 1):
            for step, (one, other) in enumerate(zip(records[0]["every"][name], record["every"][name], strict=True)):
                if one != other:
                    return judge.HARD_RULE, f"step {step}: {name} of rank {rank} differs from rank 0's"
    return None


def _against_reference(
    spec: RankedSpec, family: str, seed: int, steps: int, kept: Mapping[int, list[dict[str, torch.Tensor]]]
) -> tuple[str, str]:
    """Code and text of the first thing that is wrong."""
    op, problem = spec.op, spec.problem
    chain = judge.Chain(op, problem, op.inputs(problem, family, seed, "cpu"))
    for step in range(steps):
        answer = chain.step(op.inputs(problem, family, step_seed(seed, step), "cpu") if step else None)
        if step not in kept:
            continue
        got = stacked(kept[step])
        for row in judge.judge_outputs(op, problem, chain.before, got, answer, family, seed, step + 1):
            if row.complaint:
                return row.code or "numeric", f"step {step}: {row.complaint}"
    return "", ""


def mailboxes(spec: RankedSpec, outcomes: Sequence[Outcome]) -> list[CheckRow]:
    """After all ranks returned: every mailbox armed as declared."""
    rows: list[CheckRow] = []
    buffers = {d.name: buffer(d) for d in spec.symmetric}
    for records in together(outcomes, "contents"):
        if records[0]["problem"] != spec.label:
            continue
        calls, what = int(records[0]["calls"]), str(records[0]["what"])
        found = [
            line
            for rank, (outcome, record) in enumerate(zip(outcomes, records, strict=True))
            for name, ref in record["contents"]
            for line in buffers[name].unarmed(outcome.tensor(ref), calls, rank)
        ]
        named = f"mailboxes {what}".strip()
        rows.append(CheckRow(spec.label, named, calls, 0, "mailbox" if found else "", "; ".join(found)[:500]))
    return rows


def endured(spec: RankedSpec, outcomes: Sequence[Outcome]) -> list[CheckRow]:
    """Long runs: the digest of every output of every call against the reference's."""
    rows: list[CheckRow] = []
    answers: dict[int, list[dict[str, list[int]]]] = {}
    for records in together(outcomes, "digests"):
        first = records[0]
        if first["problem"] != spec.label:
            continue
        seed, replays, sets, what = int(first["seed"]), int(first["replays"]), int(first["sets"]), str(first["what"])
        if not answers:
            answers = _digests(spec, seed, sets, sorted(set(endure.variants(seed, replays))))
        rows += _findings(records, spec.label, what, replays * sets, seed)
        wrong = _first_digest(records, endure.variants(seed, replays), answers)
        rows.append(CheckRow(spec.label, what, replays * sets, seed, "endurance" if wrong else "", wrong))
    return rows


def _digests(spec: RankedSpec, seed: int, sets: int, wanted: Sequence[int]) -> dict[int, list[dict[str, list[int]]]]:
    """variant -> rank -> output -> a digest for each set, from the reference."""
    op, problem = spec.op, spec.problem
    names, outputs = refilled_names(op, problem), [t for t in op.outputs(problem) if t.role in (Role.OUT, Role.STATE)]
    drawn = [op.inputs(problem, op.families[0].name, endure.set_seed(seed, n), "cpu") for n in range(sets)]
    found: dict[int, list[dict[str, list[int]]]] = {}
    for variant in wanted:
        answers = [_answer(spec, {**v, **refilled(v, names, seed, variant, n)}) for n, v in enumerate(drawn)]
        ranks = range(answers[0][outputs[0].name].shape[0])
        found[variant] = [
            {t.name: digest(torch.stack([a[t.name][rank] for a in answers])).tolist() for t in outputs}
            for rank in ranks
        ]
    return found


def _answer(spec: RankedSpec, values: Values) -> dict[str, torch.Tensor]:
    """The rounded reference as a kernel would write it."""
    answer = spec.op.reference(spec.problem, values, rounded=True)
    return {name: value.to(torch.bfloat16) for name, value in answer.items()}


def _first_digest(records: Records, order: Sequence[int], answers: Mapping[int, list[dict[str, list[int]]]]) -> str:
    for rank, record in enumerate(records):
        for name, digests in record["digests"].items():
            for replay, (variant, got) in enumerate(zip(order, digests, strict=True)):
                want = answers[variant][rank][name]
                if got != want:
                    at = next(i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b)
                    return f"{name} of rank {rank} is wrong in replay {replay}, call {at} of it"
    return ""


def timed_outputs(spec: RankedSpec, outcomes: Sequence[Outcome]) -> list[CheckRow]:
    """The very outputs of the last timed replay, and what each baseline summed."""
    rows: list[CheckRow] = []
    for records in together(outcomes, "timed"):
        if records[0]["problem"] == spec.label:
            rows.append(_timed_row(spec, outcomes, records))
    for records in together(outcomes, "sum"):
        if records[0]["problem"] == spec.label:
            rows.append(_baseline_row(spec, outcomes, records))
    return rows


def _timed_row(spec: RankedSpec, outcomes: Sequence[Outcome], records: Records) -> CheckRow:
    op, problem, first = spec.op, spec.problem, records[0]
    seed, rounds = int(first["seed"]), int(first["rounds"])
    names = refilled_names(op, problem)
    states = [t.name for t in op.present(problem) if t.role is Role.STATE]
    for number in range(len(first["timed"])):
        drawn = op.inputs(problem, op.families[0].name, seed + number, "cpu")
        values = {**drawn, **refilled(drawn, names, seed, int(first["repetition"]), number)}
        got = stacked([_tensors(o, r["timed"][number]) for o, r in zip(outcomes, records, strict=True)])
        chain = judge.Chain(op, problem, values)
        answer = [chain.step(None) for _ in range(rounds)][-1]
        for row in judge.judge_outputs(op, problem, chain.before, got, answer, "timed", seed, rounds):
            if row.complaint:
                return CheckRow(spec.label, "timed", rounds, seed, row.code, f"set {number}: {row.complaint}")
    return CheckRow(spec.label, f"timed ({', '.join(states)} through {rounds} calls)", rounds, seed)


def _baseline_row(spec: RankedSpec, outcomes: Sequence[Outcome], records: Records) -> CheckRow:
    """A baseline that computes something else is no baseline: its row complains, and its times do not count."""
    op, problem, name = spec.op, spec.problem, str(records[0]["baseline"])
    seed = int(records[0]["seed"])
    want = in_rank_order(list(_part(op.inputs(problem, op.families[0].name, seed, "cpu"))), torch.float32)
    far = max(relative_l2(o.tensor(r["sum"]), want) for o, r in zip(outcomes, records, strict=True))
    text = f"relL2 {far:.2e} from the sum over ranks" if far > BASELINE_FAR else ""
    return CheckRow(spec.label, f"baseline {name}", 1, seed, "baseline" if text else "", text)


def _part(values: Values) -> torch.Tensor:
    part = values["part"]
    assert isinstance(part, torch.Tensor)
    return part


def points(spec: RankedSpec, outcomes: Sequence[Outcome], seed: int) -> list[TimedPoint]:
    """Times of one problem, column by column."""
    found = []
    for records in together(outcomes, "column"):
        if records[0]["problem"] == spec.label:
            samples = {s: tuple(tuple(r["samples"][s]) for r in records) for s in records[0]["samples"]}
            found.append(_point(spec, str(records[0]["column"]), samples, seed))
    return found


def _point(
    spec: RankedSpec, column: str, samples: Mapping[str, tuple[tuple[float, ...], ...]], seed: int
) -> TimedPoint:
    slowest = {side: [max(each) for each in zip(*of, strict=True)] for side, of in samples.items()}
    us = {side: median(of) for side, of in slowest.items()}
    others = [side for side in us if side in baselines.REDUCES]
    best = min(others, key=lambda side: us[side], default="")
    ratio = ratio_interval(slowest[timed.CANDIDATE], slowest[best], seed) if best else (0.0, 0.0, 0.0)
    late = {side: median(of[-1]) for side, of in samples.items()}
    return TimedPoint(spec.label, spec.problem.tokens, column, us, late, best, *ratio, samples)


def distinct(rows: Sequence[CheckRow]) -> list[CheckRow]:
    """Rows with complaints first."""
    return sorted(rows, key=lambda row: not row.complaint)
