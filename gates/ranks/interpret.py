"""unit-numeric of an op of several ranks on device ptx: the judge's side.

    interpret(op, artefacts, cache=..., deadline=...) -> GateResult

All ranks of one host run side by side in the interpreter (kgen.gates.ranks.interpreted), each family under several
orders of ranks and warps. Judged are the outputs of every call on all ranks by the op's rules, bits equal on all ranks
among them. Codes are those of unit-numeric and, besides, numeric.mailbox and numeric.wait. A pass stages a candidate
and promotes nothing. Not covered: GPUs (kgen.gates.ranks.plan), several launches a call.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kgen.contract import Op, selftest
from kgen.gates import judge, localise, numeric
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.numeric import Failure
from kgen.gates.ranks.interleaving import Interleaving, cut, drawn, plan
from kgen.gates.runner.host import Outcome, running
from kgen.gates.runner.job import PTX, Interpretable, LoadSpec, ptx_spec
from kgen.records import GateResult, Status, to_json

RESERVE = 0.9  # of the deadline: for the runner, before the judge and the runner's own start
Planned = list[tuple[LoadSpec, list[Interleaving]]]


def interpret(
    op: Op, artefacts: Sequence[Interpretable], *, cache: Path, deadline: float = numeric.DEADLINE_SECONDS
) -> GateResult:
    """The gate over these artefacts' PTX on all ranks, for any arch; on this machine's CPU."""
    started = time.monotonic()
    if unfit := selftest.complaints(op):
        return GateResult(numeric.GATE, Status.ERROR, "numeric.contract", "; ".join(unfit), {}, 0.0, GATE_CONTRACT)
    planned: Planned = []
    for each in map(ptx_spec, artefacts):
        planned.append((each, plan(op, each.problem, each.symmetric, sum(len(checks) for _, checks in planned))))
    job = {
        "items": [{"spec": to_json(s), "checks": [to_json(c) for c in checks]} for s, checks in planned],
        "cache": str(cache),
        "device": "cpu",
        "seconds": RESERVE * deadline,
    }
    table, places = judge.Table(), localise.Places()
    with running("ranked", job, deadline=deadline, stall=deadline, need_bytes=_bytes(op, planned)) as outcome:
        runner_seconds = time.monotonic() - started
        failures = judge_outcome(op, planned, outcome, table, places)
        code, *text = [str(word) for word in outcome.result.get("ended", ("",))]
        error = outcome.message if outcome.status == "error" else ""
    evidence = {
        "device": PTX,
        "points": len(planned),
        "families": [f.name for f in op.families],
        "seeds": {s.problem.key: {c.what: c.seed for c in checks} for s, checks in planned},
        "orders": {s.problem.key: {c.what: list(c.orders) for c in checks} for s, checks in planned},
        "table": table.as_json(),
        "failures": [f"numeric.{f.code}: {f.text}" for f in failures[: numeric.SHOWN]],
        **({"where": where} if (where := places.as_json()) else {}),
        "runner_seconds": round(runner_seconds, 2),
    }
    undecided = [code, *text] if code else []
    return numeric.verdict(failures, undecided, error, evidence, len(planned), time.monotonic() - started)


def _bytes(op: Op, planned: Planned) -> int:
    """What the runner will leave in its folder, about."""
    return sum(
        op.sizes(each.problem)["ranks"] * numeric.written_bytes(op, each.problem) * check.calls
        for each, checks in planned
        for check in checks
    )


@torch.no_grad()
def judge_outcome(
    op: Op, planned: Planned, outcome: Outcome, table: judge.Table, places: localise.Places
) -> list[Failure]:
    """What failed: the interpreter's findings, then the outputs of all ranks against the references."""
    failures: list[Failure] = []
    if outcome.status in ("fault", "crashed"):
        failures.append(Failure("crash", outcome.message))
    elif outcome.status == "hung":
        failures.append(Failure("timeout", outcome.message))
    checks = {c.id: (s, c) for s, cs in planned for c in cs}
    for record in outcome.records:
        each, check = checks.pop(int(record["id"]))
        failures += [Failure(code, f"{each.problem.key}: {text}") for code, text in record["findings"]]
        for row in _rows(op, each, check, record, outcome, places):
            table.add([row])
            if row.complaint:
                failures.append(Failure(row.code, f"{row.problem} {row.what}: {row.complaint}"))
    if checks and outcome.status == "done" and not outcome.result.get("ended"):
        failures.append(Failure("unwritten", f"{len(checks)} checks left no record"))
    return failures


def _rows(
    op: Op,
    spec: LoadSpec,
    check: Interleaving,
    record: Mapping[str, Any],
    outcome: Outcome,
    places: localise.Places,
) -> list[judge.Row]:
    """Of every call that is judged, in order: of those on one state the last."""
    if not record["outputs"]:
        return []
    problem, steps = spec.problem, drawn(op, spec.problem, check)
    kept = {int(o["at"]["call"]): {n: outcome.tensor(r) for n, r in o["tensors"].items()} for o in record["outputs"]}
    chain = judge.Chain(op, problem, steps[0])
    rows: list[judge.Row] = []
    for call, values in enumerate(steps):
        if check.one_state:
            answer, before, made = chain.step(values if call else None), chain.before, call + 1
            if made < check.calls:
                continue
        else:
            before, made = cut(op, problem, values, check.true_tokens), 1
            answer = judge.expected(op, problem, before)
        judged = judge.judge_outputs(op, problem, before, kept[call], answer, check.what, check.seed, made)
        tokens = check.true_tokens or problem.tokens
        numeric.note(op, tokens, judged, kept[call], answer, made, places, leading=("rank",))
        rows += judged
    return rows
