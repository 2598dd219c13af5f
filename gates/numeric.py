"""unit-numeric: is what the artefacts compute right, on every value family, at every point?

    run(op, artefacts, *, cache, device="cuda", deadline=600.0, next_command="") -> GateResult

Seeds are drawn here, after the candidate is fixed; one runner process runs all points; the references are computed
here, in float64, after the runner has ended; all of that under a lease of the GPU. On device "ptx" the kernels' PTX
runs in the interpreter instead, on the CPU and under several warp schedules: a pass there says so, supports staging
and never a promotion.

Codes: numeric.pass, .ptx_pass; numeric.error, .exact, .hard_rule, .guard, .inputs_written, .unwritten,
.nondeterministic, .graph, .padding, .crash, .timeout, .sanitizer, of the interpreter .memory, .race, .barrier, and of
several ranks in it .mailbox, .wait (fail); numeric.runner, .budget, .contract (error; budget: the interpreter gave up;
contract: the op's own reference is unfit to judge); numeric.no_gpu, .other_gpu, .few_gpus, .kit, .unsupported (skip;
unsupported names the instruction that the interpreter does not know). Not covered: speed, and what the values mean to a
model.
"""

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kgen.contract import DTYPES, Op, Values, selftest
from kgen.gates import judge, localise, sanitizer
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.environment import device_arch
from kgen.gates.gpu.lease import JUDGING_SECONDS, leased
from kgen.gates.rows import rows_of, with_tokens
from kgen.gates.runner import numeric as job_side
from kgen.gates.runner.host import Outcome, running
from kgen.gates.runner.job import PTX, Built, Interpretable, LoadSpec, ptx_spec, spec
from kgen.gates.runner.numeric import FAMILY, GRAPH, PADDED, Check
from kgen.gates.skipping import fitting, skip_without
from kgen.records import GateResult, Problem, Status, to_json

GATE = "unit-numeric"
DEADLINE_SECONDS = 600.0
STALL_SECONDS = 60.0  # one call that takes this long never ends
REPEATS = 2  # further runs of the first family, whose bits must agree; one for the others
PTX_STEPS = 3
UNDECIDED = {  # how an interpreted call ends without a verdict -> status and code
    "unsupported": (Status.SKIP, "numeric.unsupported"),  # an instruction that the interpreter does not know
    "budget": (Status.ERROR, "numeric.budget"),
}
SEED_BITS = 48
SHOWN = 20  # failures listed in the evidence
ORDER = (  # which code names the result when several checks failed: the most basic first
    "crash",
    "timeout",
    "memory",
    "barrier",
    "race",
    "mailbox",
    "wait",
    "guard",
    "inputs_written",
    "unwritten",
    "nondeterministic",
    "hard_rule",
    "exact",
    "padding",
    "graph",
    "error",
    "sanitizer",
)


@dataclass(frozen=True)
class Failure:
    code: str
    text: str


def run(
    op: Op,
    artefacts: Sequence[Built],
    *,
    cache: Path,
    device: str = "cuda",
    deadline: float = DEADLINE_SECONDS,
    sanitize: bool = True,
    next_command: str = "",
) -> GateResult:
    """The gate over all artefacts of one candidate that fit this GPU's arch; `sanitize`: compute-sanitizer too."""
    return run_specs(
        op,
        [spec(a) for a in artefacts],
        cache=cache,
        device=device,
        deadline=deadline,
        sanitize=sanitize,
        next_command=next_command,
    )


def interpret(
    op: Op, artefacts: Sequence[Interpretable], *, cache: Path, deadline: float = DEADLINE_SECONDS
) -> GateResult:
    """The gate over these artefacts' PTX, in the interpreter, for any arch; on this machine's CPU."""
    return run_specs(op, [ptx_spec(a) for a in artefacts], cache=cache, device=PTX, deadline=deadline)


def run_specs(
    op: Op,
    specs: Sequence[LoadSpec],
    *,
    cache: Path,
    device: str = "cuda",
    deadline: float = DEADLINE_SECONDS,
    stall: float = STALL_SECONDS,
    sanitize: bool = True,
    next_command: str = "",
) -> GateResult:
    """As `run`, over load specs: tests put the stock stand-in in the candidate's place, on device "cpu"."""
    started = time.monotonic()
    if (skipped := skip_without(device, op, specs, GATE, "numeric", next_command)) is not None:
        return skipped
    if unfit := selftest.complaints(op):
        return GateResult(GATE, Status.ERROR, "numeric.contract", "; ".join(unfit), {}, 0.0, GATE_CONTRACT)
    whose = f"{GATE} of {specs[0].candidate[:12] or op.name}"
    with leased(device, whose, deadline + sanitize * sanitizer.ALL_SECONDS + JUDGING_SECONDS):
        return _run_specs(op, specs, cache, device, deadline, stall, sanitize, started)


def _run_specs(
    op: Op,
    specs: Sequence[LoadSpec],
    cache: Path,
    device: str,
    deadline: float,
    stall: float,
    sanitize: bool,
    started: float,
) -> GateResult:
    """With the device to itself: its judge computes there too."""
    interpreted = device == PTX
    host = "cpu" if interpreted else device
    chosen = fitting(specs, "" if host == "cpu" else device_arch())
    plan = make_plan(op, chosen, interpreted)
    job = {
        "items": [{"spec": to_json(s), "checks": [to_json(c) for c in checks]} for s, checks in plan],
        "cache": str(cache),
        "device": host,
    }
    stall = deadline if interpreted else stall
    with running("numeric", job, deadline=deadline, stall=stall, need_bytes=output_bytes(op, plan)) as outcome:
        runner_seconds = time.monotonic() - started
        table, places = judge.Table(), localise.Places()
        failures = judge_outcome(op, plan, outcome, table, host, places)
        ended = [str(word) for word in outcome.result.get("ended", ())]
        error = outcome.message + _last_words(outcome) if outcome.status == "error" else ""
    wanted = sanitize and not failures and not error and not interpreted
    sanitized = sanitizer.run(op, chosen, cache=cache, device=device) if wanted else {}
    failures += [Failure("sanitizer", text) for text in sanitizer.complaints(sanitized)]
    evidence = {
        "device": device,
        "points": len(chosen),
        "families": [f.name for f in op.families],
        "seeds": {
            s.problem.key: {f"{c.kind} {c.family} {c.true_tokens}".strip(): c.seed for c in cs} for s, cs in plan
        },
        "table": table.as_json(),
        "failures": [f"numeric.{f.code}: {f.text}" for f in failures[:SHOWN]],
        **({"where": where} if (where := places.as_json()) else {}),
        "sanitizer": sanitized,
        "runner_seconds": round(runner_seconds, 2),
    }
    return verdict(failures, ended, error, evidence, len(chosen), time.monotonic() - started)


def _last_words(outcome: Outcome) -> str:
    tail = outcome.log.strip().splitlines()[-1:] if outcome.log.strip() else []
    return f" ({tail[0][:200]})" if tail else ""


def verdict(
    failures: Sequence[Failure],
    ended: Sequence[str],
    error: str,
    evidence: Mapping[str, Any],
    points: int,
    seconds: float,
) -> GateResult:
    """The verdict. `ended`: how an interpreted call ended before its end, and the words for it."""
    if ended and not failures:
        status, code = UNDECIDED[ended[0]]
        return GateResult(GATE, status, code, ended[1], evidence, seconds, GATE_CONTRACT)
    if failures:
        first = min(failures, key=lambda f: ORDER.index(f.code))
        status, code, message = Status.FAIL, f"numeric.{first.code}", first.text
    elif error:
        status, code, message = Status.ERROR, "numeric.runner", error
    else:
        where = " in the PTX interpreter, no finding" if evidence["device"] == PTX else ""
        code = "numeric.ptx_pass" if where else "numeric.pass"
        status, message = Status.PASS, f"{points} points, all families within the rule{where}"
    return GateResult(GATE, status, code, message, evidence, seconds, GATE_CONTRACT)


def make_plan(op: Op, specs: Sequence[LoadSpec], interpreted: bool = False) -> list[tuple[LoadSpec, list[Check]]]:
    """Every family at every point, padded counts where the bin has some, and the graph check; fresh secret seeds.

    Interpreted: no graphs, PTX_STEPS calls on a state at most, and repeats of the first family only.
    """
    plan: list[tuple[LoadSpec, list[Check]]] = []
    number = 0
    for each in specs:
        base = op.families[0].name
        drafts = [(FAMILY, f.name, min(f.steps, PTX_STEPS) if interpreted else f.steps, 0) for f in op.families]
        padded = [n for n in op.pack.padded if op.bin_for(n) == each.problem.tokens]
        drafts += [(PADDED, base, 1, n) for n in padded if not op.refuses(with_tokens(each.problem, n))]
        drafts += [] if interpreted else [(GRAPH, base, 1, 0)]
        checks = []
        for kind, family, steps, true_tokens in drafts:
            repeats = REPEATS if (kind, family) == (FAMILY, base) else 0 if interpreted else 1
            seed = secrets.randbits(SEED_BITS)
            checks.append(Check(number, kind, family, seed, steps, true_tokens, repeats))
            number += 1
        plan.append((each, checks))
    return plan


def written_bytes(op: Op, problem: Problem) -> int:
    """Bytes of what one call writes."""
    sizes = op.sizes(problem)
    return sum(math.prod(t.sizes(sizes)) * DTYPES[t.dtype].bytes for t in op.outputs(problem))


def output_bytes(op: Op, plan: Sequence[tuple[LoadSpec, list[Check]]]) -> int:
    """What the runner will leave in its folder."""
    replays = (job_side.GRAPH_ROUNDS + 1) * job_side.GRAPH_SETS
    return sum(
        written_bytes(op, each.problem) * (replays if check.kind == GRAPH else len(job_side.kept_steps(check.steps)))
        for each, checks in plan
        for check in checks
    )


@torch.no_grad()
def judge_outcome(
    op: Op,
    plan: Sequence[tuple[LoadSpec, list[Check]]],
    outcome: Outcome,
    table: judge.Table,
    device: str,
    places: localise.Places | None = None,
) -> list[Failure]:
    """What failed, from the runner's own findings and from its outputs against the references.

    `places` takes up where failing outputs are wrong; it changes nothing of what is said.
    """
    places = places or localise.Places()
    failures: list[Failure] = []
    if outcome.status in ("fault", "crashed"):
        failures.append(Failure("crash", outcome.message))
    elif outcome.status == "hung":
        failures.append(Failure("timeout", outcome.message))
    checks = {c.id: (s, c) for s, cs in plan for c in cs}
    for record in outcome.records:
        each, check = checks.pop(int(record["id"]))
        failures += [Failure(code, f"{each.problem.key}: {text}") for code, text in record["findings"]]
        for row in _judge_check(op, each.problem, check, record, outcome, device, places):
            table.add([row])
            if row.complaint:
                failures.append(Failure(row.code, f"{row.problem} {row.what}: {row.complaint}"))
    if outcome.result.get("ended") and (code := str(outcome.result["ended"][0])) in ORDER:
        failures.append(Failure(code, str(outcome.result["ended"][1])))
    if checks and outcome.status == "done" and not outcome.result.get("ended"):
        failures.append(Failure("unwritten", f"{len(checks)} checks left no record"))
    return failures


def _judge_check(
    op: Op,
    problem: Problem,
    check: Check,
    record: Mapping[str, Any],
    outcome: Outcome,
    device: str,
    places: localise.Places,
) -> list[judge.Row]:
    rows: list[judge.Row] = []
    kept = {tuple(sorted(o["at"].items())): o["tensors"] for o in record["outputs"]}

    def tensors(refs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return judge.to_device({n: outcome.tensor(ref) for n, ref in refs.items()}, device)

    if check.kind == FAMILY:
        by_step = {dict(at)["step"]: tensors(refs) for at, refs in kept.items()}
        return _judge_steps(op, problem, check, by_step, device, places)
    for at, refs in kept.items():
        where = dict(at)
        if check.kind == PADDED:
            values, what, seed = op.inputs(problem, check.family, check.seed, device), "padded", check.seed
            values = rows_of(op, problem, values, check.true_tokens)
            what = f"padded {check.true_tokens}"
        else:
            seed = job_side.graph_seed(check.seed, where["turn"], where["set"])
            values, what = op.inputs(problem, check.family, seed, device), "graph"
        answer = judge.expected(op, problem, values)
        got = tensors(refs)
        judged = judge.judge_outputs(op, problem, values, got, answer, what, seed)
        note(op, check.true_tokens or problem.tokens, judged, got, answer, 1, places)
        rows += judged
    return rows


def note(
    op: Op,
    tokens: int,
    rows: Sequence[judge.Row],
    got: Mapping[str, torch.Tensor],
    answer: judge.Expected,
    step: int,
    places: localise.Places,
    leading: Sequence[str] = (),
) -> None:
    """Remembers how these comparisons ended; where one failed, the places of its worst elements. `leading`: axes of
    the tensors before those that the op names."""
    shapes = {t.name: t.shape for t in op.tensors}
    for row in (r for r in rows if r.output):
        places.note(tokens, row.what, row.output, step, row.strain, bool(row.complaint))
        if row.complaint and places.wants(row.what, row.output):
            axes = [*leading, *(str(symbol) for symbol in shapes[row.output])]
            where = localise.localise(got[row.output], answer.rounded[row.output], row.allowed_rounded, axes)
            places.add(row.problem, row.what, row.output, step, where)


def _judge_steps(
    op: Op,
    problem: Problem,
    check: Check,
    kept: Mapping[int, dict[str, torch.Tensor]],
    device: str,
    places: localise.Places,
) -> list[judge.Row]:
    first: Values = op.inputs(problem, check.family, check.seed, device)
    chain = judge.Chain(op, problem, first)
    rows: list[judge.Row] = []
    for step in range(check.steps):
        seed = job_side.step_seed(check.seed, step)
        answer = chain.step(op.inputs(problem, check.family, seed, device) if step else None)
        if step in kept:
            what = check.family
            judged = judge.judge_outputs(op, problem, chain.before, kept[step], answer, what, seed, step + 1)
            note(op, problem.tokens, judged, kept[step], answer, step + 1, places)
            rows += judged
    return rows
