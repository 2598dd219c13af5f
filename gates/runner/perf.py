"""Runner side of perf-sweep: times candidate and baselines paired in one process, and keeps every timed output.

A job: {"points": [PointJob], "cache", "device", "compile": bool}, and "routing": {"path", "sha256"} of the trace that
points of recorded routing take their experts from. A record a point and column:
{"point": index, "column", "samples": {side: [µs]}, "outputs": {name: ref}, "sets", "calls", "findings", ...}.
Kept outputs have shape [repetitions, sets (graph), calls (chained) or 1 (cold), rows, ...]. An op with states adds
"state_bytes" to the job (bytes kept of one column's states) and "states" to its records: [{"repetition", "call",
"tensors": {name: ref}}]. "warm" is in a record whose rotation L2 may hold in part: the MB that it touches. A scenario
whose sets are too large for the memory gives {"point", "left_out": why}. "uncompiled" is in a record whose baselines
torch could not compile: {name: why}; stock then runs as it is, another one is not timed.
Baselines run on other seeds than the candidate and nothing here knows an expected answer.
"""

import random
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from kgen.contract import Op, Values
from kgen.gates import routing, timing
from kgen.gates.runner import subject
from kgen.gates.runner.contestants import Contestant, Functional, chain_seed, rotation, set_values
from kgen.gates.runner.job import LoadSpec
from kgen.gates.runner.out import Out
from kgen.model.bind import uncompiled
from kgen.ops import REGISTRY
from kgen.ops.baselines import BASELINES
from kgen.records import from_json
from kgen.records.codec import OPTIONAL

MACHINE = (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError, OSError, subprocess.SubprocessError)
GRAPH, CHAINED, COLD = "graph", "chained", "cold"
STOCK, COMPILE, CHAMPION = "stock", "compile", "champion"


@dataclass(frozen=True)
class PointJob:
    """One point. `tokens` is the true count; `seed` draws the candidate's values, `other_seed` the baselines'."""

    SCHEMA: ClassVar[str] = "kgen.perf-job/1"
    spec: LoadSpec
    tokens: int
    repetitions: Mapping[str, int]  # column -> repetitions
    baselines: tuple[str, ...]
    seed: int
    other_seed: int
    order_seed: int
    champion: LoadSpec | None = None
    scenario: str = field(default="", metadata=OPTIONAL)  # of the op's, or routing.RECORDED; "": its first family


def run(job: Mapping[str, Any], out: Out) -> dict[str, Any]:
    device = str(job["device"])
    if job["compile"]:
        _no_silent_fallback()
        _compiler_works(device)
    clock = timing.Clock(device)
    limited = timing.refuse_persisting_l2(device)
    given = job.get("routing")
    trace = routing.recorded(Path(given["path"]), given["sha256"]) if given else None
    for index, value in enumerate(job["points"]):
        _point(index, from_json(PointJob, value), job, out, clock, trace)
    return {"persisting_l2_refused": limited, "l2_bytes": timing.l2_bytes(device)}


def _no_silent_fallback() -> None:
    """torch.compile gives up after a few shapes and runs eagerly, quietly: a weaker baseline. Raise that limit."""
    import torch._dynamo.config as config

    for name, value in (
        ("recompile_limit", 1024),
        ("accumulated_recompile_limit", 4096),
        ("fail_on_recompile_limit_hit", True),
    ):
        if hasattr(config, name):
            setattr(config, name, value)


@torch.no_grad()
def _point(
    index: int,
    point: PointJob,
    job: Mapping[str, Any],
    out: Out,
    clock: timing.Clock,
    trace: routing.Recorded | None,
) -> None:
    started = time.monotonic()
    device, problem = clock.device, point.spec.problem
    op = REGISTRY.get(problem.op)
    blame = f"{problem.key} at {point.tokens} tokens" + (f" of {point.scenario}" if point.scenario else "")
    out.at(f"prepare {blame}")
    if point.scenario and (why := _too_large(op, point, device, trace)):
        out.record({"point": index, "left_out": why})
        return
    cache = Path(job["cache"])
    turns = rotation(op, problem, point.seed, device, point.spec.workspaces, point.tokens, point.scenario, trace)
    baselines, failed = _baselines(op, point, cache, device, bool(job["compile"]), out, trace)
    loaded = subject.load(point.spec, cache)
    setup = time.monotonic() - started
    for column, repetitions in point.repetitions.items():
        began = time.monotonic()
        budget = int(job.get("state_bytes", 0))
        contestant = Contestant(loaded, turns, point.tokens, f"{blame}, {column}", out, repetitions, budget)
        sides = [_side(contestant, op, point.seed, column), *(_named(b, op, point, column) for b in baselines)]
        prepared = time.monotonic() - began  # captures
        with out.candidate(f"{blame}, timing {column}", device):
            samples = timing.interleave(
                sides, repetitions, clock, random.Random(f"{point.order_seed}/{column}"), flush=column == COLD
            )
        contestant.check_writes()
        out.record(
            {
                "point": index,
                "column": column,
                "samples": samples,
                "outputs": contestant.keep(out),
                "sets": len(turns.sets),
                "calls": sides[0].calls,
                "rotation_bytes": len(turns.sets) * turns.sets[0].nbytes,
                "timer": clock.timer(column),
                "findings": contestant.findings[:10],
                "setup_s": round(setup, 3),
                "prepare_s": round(prepared, 3),
                **({"states": contestant.keep_states(out)} if contestant.states else {}),
                **({"warm": turns.warm} if turns.warm and column != COLD else {}),
                **({"uncompiled": failed} if failed else {}),
            }
        )


def _too_large(op: Op, point: PointJob, device: str, trace: routing.Recorded | None) -> str:
    """Why a scenario cannot be timed here, "" when it can."""
    try:
        values = set_values(op, point.spec.problem, point.scenario, point.seed, 0, point.tokens, device, trace)
    except torch.OutOfMemoryError:
        return "one set of its values does not fit into the GPU's memory"
    size = sum(v.nbytes for v in values.values() if isinstance(v, torch.Tensor))
    limit = timing.ROTATION_BYTES
    return f"one set takes {size / 1e6:.3g} MB, a rotation may take {limit / 1e6:.3g}" if size > limit else ""


def _baselines(
    op: Op, point: PointJob, cache: Path, device: str, compiled: bool, out: Out, trace: routing.Recorded | None
) -> tuple[list[tuple[str, "Contestant | Functional"]], dict[str, str]]:
    """Each baseline by name, run once so that it is compiled; and why torch could not compile which."""
    true_problem = replace(point.spec.problem, tokens=point.tokens)
    turns = rotation(op, true_problem, point.other_seed, device, family=point.scenario, trace=trace)
    made: list[tuple[str, Contestant | Functional]] = []
    failed: dict[str, str] = {}
    copies: dict[object, list[Values]] = {}  # by what made them: baselines share them
    for name in point.baselines:
        if name == STOCK:
            run: Any = op.stock(true_problem, torch.compile) if compiled else op.stock(true_problem)
            side = Functional(name, run, turns)
        elif name == COMPILE:
            if not compiled:
                continue
            side = Functional(name, torch.compile(op.stock(true_problem), dynamic=False), turns)
        else:
            more = BASELINES[op.name][name]
            if more.prepare is not None and more.prepare not in copies:
                copies[more.prepare] = [more.prepare(s.values()) for s in turns.sets]
            run = more.make(true_problem, torch.compile if compiled else None)
            side = Functional(name, run, turns, copies.get(more.prepare, ()))
        if why := uncompilable(side):
            failed[name] = why
            if name != STOCK:
                continue
            side = Functional(name, op.stock(true_problem, uncompiled), turns)  # as timed: states stay in place
        made.append((name, side))
    if point.champion is not None:
        champion, family = point.champion, point.scenario
        own = rotation(op, champion.problem, point.other_seed, device, champion.workspaces, point.tokens, family, trace)
        loaded = subject.load(point.champion, cache)
        made.append((CHAMPION, Contestant(loaded, own, point.tokens, "", out)))
    return made, failed


def uncompilable(side: Functional) -> str:
    """Why torch cannot compile a baseline for its shapes, "" when it can or has nothing to compile. Runs it once.

    Other errors are raised, a limit on compilations and what ails the machine (memory, files, its compiler, the device)
    among them: such a baseline would be weaker than it can be.
    """
    try:
        side.run(side.values[0])
    except _not_compiled() as error:
        if isinstance(error.inner_exception, MACHINE):
            raise
        return " ".join(str(error).split())[:200] or type(error).__name__
    return ""


def _compiler_works(device: str) -> None:
    """Compiles and runs a trivial function: a compiler that never works must not pass for one that fails on a shape."""
    torch.compile(lambda x: x * 2.0 + 1.0, dynamic=False)(torch.ones(64, device=device))


def _not_compiled() -> Any:
    """Looked at only where something was raised: importing it takes seconds, in every process that times or judges."""
    from torch._dynamo.exc import BackendCompilerFailed

    return BackendCompilerFailed


def _side(side: "Contestant | Functional", op: Op, seed: int, column: str) -> timing.Side:
    if column == GRAPH:
        return side.graph()
    if column == COLD:
        return side.cold()
    assert op.chain is not None
    source, target = op.chain
    turns = side.turns
    first = op.inputs(turns.problem, op.chain_family, chain_seed(seed), side.device)[target]
    assert isinstance(first, torch.Tensor)
    return side.chained(source, target, first)


def _named(named: tuple[str, "Contestant | Functional"], op: Op, point: PointJob, column: str) -> timing.Side:
    name, side = named
    made = replace(_side(side, op, point.other_seed, column), name=name)
    return replace(made, after=timing.nothing) if name == CHAMPION else made
