"""perf-sweep: is it faster, at which points, and did the timed calls compute the right thing?

    run(op, artefacts, *, cache, device="cuda", champion=(), ...) -> (GateResult, points, raw)

One runner process times every point (each served bin, and the padded counts against the stock op at the true count) in
three columns; then every timed output is compared with the references here, and the states of calls that were drawn
after they ran, as many as fit into STATE_BYTES (the record says which). `raw` holds all samples. Codes: perf.pass;
perf.wrong, .impossible, .no_win, .crash, .timeout (fail); perf.runner (error); perf.no_gpu, .other_gpu,
.no_baseline (skip).
The headline is the graph column: a bin stays in the envelope when the 95 % upper bound of candidate / best baseline is
at most 1.00 (win) or 1.03 (tie) there, at the bin itself, at every padded count that the bin serves, and in every
scenario of the op (contexts, routings, ...: at SCENARIO_BINS, without the chain, against stock and champion). Scenarios
whose values do not fit into memory are left out, and the evidence says so. A recorded routing trace is one more
scenario of an op that is told which experts tokens go to; the evidence says which trace it was. Where an op has more
baselines than its stock (kgen.ops.baselines), they are timed at every point that they fit.
Not covered: vLLM's own kernels as baselines, several GPUs.
"""

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kgen.contract import DTYPES, Op, Role
from kgen.gates import routing, timing
from kgen.gates.contract import GATE_CONTRACT
from kgen.gates.environment import device_arch, environment
from kgen.gates.gpu.lease import JUDGING_SECONDS, leased
from kgen.gates.numeric import SEED_BITS
from kgen.gates.perf_judge import Findings, judge_outcome, name_of
from kgen.gates.rates import rates
from kgen.gates.rows import with_tokens
from kgen.gates.runner.host import Outcome, running
from kgen.gates.runner.job import Built, LoadSpec, spec
from kgen.gates.runner.perf import CHAINED, COLD, COMPILE, GRAPH, STOCK, PointJob
from kgen.gates.skipping import fitting, skip_without
from kgen.ops import baselines
from kgen.records import GateResult, PerfPoint, Problem, Status, to_json
from kgen.records.envelope import HEADLINE, envelope

GATE = "perf-sweep"
DEADLINE_SECONDS = 900.0
STALL_SECONDS = 180.0  # torch.compile of one shape stays well below
REPETITIONS: Mapping[str, int] = {GRAPH: 40, CHAINED: 20, COLD: 40}
SCENARIO_BINS = (1, 8, 64)
STATE_BYTES = 2_000_000_000  # of the states that one runner process keeps, dealt evenly to its points and columns
SHOWN = 20


def run(
    op: Op,
    artefacts: Sequence[Built],
    *,
    cache: Path,
    device: str = "cuda",
    champion: Sequence[Built] = (),
    deadline: float = DEADLINE_SECONDS,
    next_command: str = "",
    trace: routing.Recorded | None = None,
) -> tuple[GateResult, tuple[PerfPoint, ...], dict[str, Any]]:
    """The sweep over the artefacts that are served and fit this GPU; `champion`: those of the kernel in place; `trace`:
    of routing, timed as a scenario of its own. Raises ValueError (one line) for a trace that does not fit the op."""
    return run_specs(
        op,
        [spec(a) for a in artefacts],
        cache=cache,
        device=device,
        champion=[spec(a) for a in champion],
        deadline=deadline,
        next_command=next_command,
        trace=trace,
    )


def run_specs(
    op: Op,
    specs: Sequence[LoadSpec],
    *,
    cache: Path,
    device: str = "cuda",
    champion: Sequence[LoadSpec] = (),
    dims: Sequence[str] | None = None,
    repetitions: Mapping[str, int] = REPETITIONS,
    deadline: float = DEADLINE_SECONDS,
    stall: float = STALL_SECONDS,
    next_command: str = "",
    trace: routing.Recorded | None = None,
) -> tuple[GateResult, tuple[PerfPoint, ...], dict[str, Any]]:
    """As `run`, over load specs. `dims`: those swept (default: the op's served ones)."""
    started = time.monotonic()
    if (skipped := skip_without(device, op, specs, GATE, "perf", next_command)) is not None:
        return skipped, (), {}
    served = op.served if dims is None else dims
    swept = [s for s in specs if s.problem.dims in served]
    chosen = fitting(swept, "" if device == "cpu" else device_arch())
    if not chosen:
        message = f"none of these artefacts has served dims ({', '.join(served)})"
        return GateResult(GATE, Status.FAIL, "perf.no_win", message, {}, 0.0, GATE_CONTRACT), (), {}
    if (message := next((why for s in chosen if (why := baselines.lacking(s.problem))), "")) != "":
        return GateResult(GATE, Status.SKIP, "perf.no_baseline", message, {}, 0.0, GATE_CONTRACT), (), {}
    if trace is not None and (why := routing.unfit(op, [s.problem for s in chosen], trace)):
        raise ValueError(why)
    with leased(device, f"{GATE} of {chosen[0].candidate[:12] or op.name}", deadline + JUDGING_SECONDS):
        jobs = make_jobs(op, chosen, champion, repetitions, trace is not None)
        return _timed(op, jobs, cache, device, deadline, stall, started, trace)


def _timed(
    op: Op,
    jobs: Sequence[PointJob],
    cache: Path,
    device: str,
    deadline: float,
    stall: float,
    started: float,
    trace: routing.Recorded | None,
) -> tuple[GateResult, tuple[PerfPoint, ...], dict[str, Any]]:
    """With the device to itself: no other kgen process computes there, and this one's judge does afterwards."""
    job = make_job(op, jobs, cache, device, trace)
    need = sum(_output_bytes(op, j, device, int(job.get("state_bytes", 0))) for j in jobs)
    with running("perf", job, deadline=deadline, stall=stall, need_bytes=need) as outcome:
        after = environment()  # now: the clocks are those of the run
        limits = rates(after.gpu)
        timed_seconds = time.monotonic() - started
        found = judge_outcome(op, jobs, outcome, device, limits, trace)
        result = _result(outcome, found)
    evidence = {
        **result.evidence,
        "envelope": dict(envelope(found.points)),
        "headline": HEADLINE,
        "rates": f"read {limits.read:.3g} B/s, nominal {limits.nominal:.3g} B/s ({limits.source})" if limits else "",
        "clocks_after": f"SM {after.sm_clock_mhz} MHz, memory {after.memory_clock_mhz} MHz, {after.power_limit_w} W",
        "timed_outputs": found.table.as_json(),
        **({"states_judged": found.states} if found.states else {}),
        **({"warm": found.warm} if found.warm else {}),
        **({"left_out": found.left_out} if found.left_out else {}),
        **({"uncompiled": found.uncompiled} if found.uncompiled else {}),
        **({"routing": [routing.facts(trace)]} if trace and _recorded(found) else {}),
        "seeds": {name_of(j): {"candidate": j.seed, "baselines": j.other_seed, "order": j.order_seed} for j in jobs},
        "runner": {name: str(value) for name, value in outcome.result.items()},
        "runner_seconds": round(timed_seconds, 2),
    }
    seconds = time.monotonic() - started
    final = GateResult(GATE, result.status, result.code, result.message, evidence, seconds, GATE_CONTRACT)
    return final, tuple(found.points), found.raw


def _recorded(found: Findings) -> bool:
    """Whether a trace that was given was timed with: only some bins are."""
    return any(p.scenario == routing.RECORDED for p in found.points)


def counts(op: Op, tokens: int, point: Problem | None = None) -> tuple[int, ...]:
    """The true counts that are timed for a bin: its own, and the padded ones that it serves.

    With the artefact's `point`, only those that the op does not refuse there.
    """
    padded = [n for n in op.pack.padded if n != tokens and op.bin_for(n) == tokens]
    return (tokens, *(n for n in padded if point is None or not op.refuses(with_tokens(point, n))))


def make_job(
    op: Op, jobs: Sequence[PointJob], cache: Path, device: str, trace: routing.Recorded | None = None
) -> dict[str, Any]:
    """What the runner process is told."""
    job = {"points": [to_json(j) for j in jobs], "cache": str(cache), "device": device, "compile": device != "cpu"}
    job |= {"routing": {"path": str(trace.path.resolve()), "sha256": trace.sha256}} if trace else {}
    columns = sum(len(j.repetitions) for j in jobs)
    stateful = any(t.role is Role.STATE for j in jobs for t in op.outputs(j.spec.problem))
    return {**job, "state_bytes": STATE_BYTES // columns} if stateful else job


def make_jobs(
    op: Op,
    specs: Sequence[LoadSpec],
    champion: Sequence[LoadSpec],
    repetitions: Mapping[str, int],
    traced: bool = False,
) -> list[PointJob]:
    """Each bin at its full count, then the padded counts it serves, then the scenarios; fresh secret seeds. `traced`:
    recorded routing is one of them."""
    champions = {c.problem.key: c for c in champion}
    compiled_at = {*op.pack.quick_bins, op.pack.bins[-1]}  # torch.compile of the whole op is slow: few points
    stock, jobs = (STOCK, COMPILE), []
    for each in specs:
        bin_ = each.problem.tokens
        known = [*(f.name for f in op.scenarios), *([routing.RECORDED] if traced else [])]
        scenarios = known if bin_ in SCENARIO_BINS else []
        points = [*((n, "") for n in counts(op, bin_, each.problem)), *((bin_, name) for name in scenarios)]
        for tokens, scenario in points:
            more = baselines.fitting(each.problem, tokens)
            jobs.append(
                PointJob(
                    spec=each,
                    tokens=tokens,
                    repetitions={c: n for c, n in repetitions.items() if c != CHAINED or (op.chain and not scenario)},
                    baselines=(*(stock if tokens in compiled_at and not scenario else stock[:1]), *more),
                    seed=secrets.randbits(SEED_BITS),
                    other_seed=secrets.randbits(SEED_BITS),
                    order_seed=secrets.randbits(SEED_BITS),
                    champion=champions.get(each.problem.key),
                    scenario=scenario,
                )
            )
    return jobs


def _output_bytes(op: Op, job: PointJob, device: str, state_bytes: int) -> int:
    """What the runner keeps of one point, about: the values of its calls may move other bytes than typical ones."""
    problem = job.spec.problem

    def size(roles: Sequence[Role]) -> int:
        kept, sizes = [t for t in op.present(problem) if t.role in roles], op.sizes(problem)
        return sum(math.prod(t.sizes(sizes)) * DTYPES[t.dtype].bytes for t in kept)

    allocated, states, written = size(tuple(Role)), size([Role.STATE]), size([Role.OUT])
    sets = timing.sets_needed(min(allocated, op.cost(problem).bytes), timing.l2_bytes(device), allocated)
    calls = {GRAPH: max(sets, timing.MIN_CALLS) if states else sets, CHAINED: timing.calls_for(sets), COLD: 1}
    outputs = sum(written * calls[column] * number for column, number in job.repetitions.items())
    return outputs + sum(min(max(states, state_bytes), calls[c] * n * states) for c, n in job.repetitions.items())


def _result(outcome: Outcome, found: Findings) -> GateResult:
    labels = list(envelope(found.points).values())
    wins, ties = labels.count("win"), labels.count("tie")
    left = len({p.problem for p in found.points}) - wins - ties
    evidence = {"wrong": found.wrong[:SHOWN], "impossible": found.impossible[:SHOWN]}

    def made(status: Status, code: str, message: str) -> GateResult:
        return GateResult(GATE, status, f"perf.{code}", message, evidence)

    if outcome.status in ("fault", "crashed"):
        return made(Status.FAIL, "crash", outcome.message)
    if outcome.status == "hung":
        return made(Status.FAIL, "timeout", outcome.message)
    if found.wrong:
        return made(Status.FAIL, "wrong", found.wrong[0])
    if found.impossible:
        return made(Status.FAIL, "impossible", found.impossible[0])
    if outcome.status == "error":
        return made(Status.ERROR, "runner", outcome.message)
    said = f"{wins} bins win, {ties} tie, {left} leave the envelope (graph column, best baseline)"
    if found.uncompiled:
        many = len(found.uncompiled)
        said += f"; torch could not compile {many} baseline{'s' if many > 1 else ''} (see uncompiled)"
    return made(Status.PASS, "pass", said) if wins else made(Status.FAIL, "no_win", said)
