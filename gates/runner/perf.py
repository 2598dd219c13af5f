"""Runner side of perf-sweep: times candidate and baselines paired in one process, and keeps every timed output.

A job: {"points": [PointJob], "cache", "device", "compile": bool}. A record a point and column:
{"point": index, "column", "samples": {side: [µs]}, "outputs": {name: ref}, "sets", "calls", "findings", "setup_s"}.
Kept outputs have shape [repetitions, sets (graph), calls (chained) or 1 (cold), rows, ...].
Baselines run on other seeds than the candidate and nothing here knows an expected answer.
"""

import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from kgen.contract import Op, Role, Values
from kgen.gates import timing
from kgen.gates.runner import subject
from kgen.gates.runner.buffers import BufferSet, same_bits
from kgen.gates.runner.job import LoadSpec
from kgen.gates.runner.out import Out
from kgen.gates.runner.refill import refilled, refilled_names
from kgen.ops import REGISTRY
from kgen.records import Problem, from_json

GRAPH, CHAINED, COLD = "graph", "chained", "cold"
CANDIDATE, STOCK, COMPILE, CHAMPION = "candidate", "stock", "compile", "champion"


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


@dataclass(frozen=True)
class Rotation:
    """Buffer sets that take turns, with the values that they were first given."""

    op: Op
    problem: Problem
    sets: list[BufferSet]
    drawn: list[Values]
    seed: int

    def refill(self, repetition: int) -> None:
        names = refilled_names(self.op, self.problem)
        for number, (buffers, values) in enumerate(zip(self.sets, self.drawn, strict=True)):
            buffers.load(refilled(values, names, self.seed, repetition, number))


def set_seed(seed: int, number: int) -> int:
    return seed + number


def chain_seed(seed: int) -> int:
    return seed + 10_000  # past every set's


def rotation(op: Op, problem: Problem, seed: int, device: str, workspaces: Any = ()) -> Rotation:
    """As many sets as a rotation needs; an op with states gets one set a call, so that each call starts fresh."""
    first = BufferSet(op, problem, device, workspaces)
    count = timing.sets_needed(first.nbytes, timing.l2_bytes(device))
    if first.names(Role.STATE):
        count = max(count, timing.MIN_CALLS)
    sets = [first, *(BufferSet(op, problem, device, workspaces) for _ in range(count - 1))]
    keep = refilled_names(op, problem)
    drawn: list[Values] = []
    for number, buffers in enumerate(sets):
        values = op.inputs(problem, "normal", set_seed(seed, number), device)
        buffers.load(values)
        drawn.append({k: v for k, v in values.items() if k in keep or not isinstance(v, torch.Tensor)})
    return Rotation(op, problem, sets, drawn, seed)


def with_own_outputs(base: BufferSet) -> BufferSet:
    """A call of its own on these inputs, weights and workspaces, with outputs of its own."""
    other = base.sibling((), own=base.names(Role.OUT))
    other.work = base.work
    return other


class Contestant:
    """A loaded artefact (candidate or champion) over its rotation. Keeps what its timed calls wrote."""

    def __init__(self, loaded: subject.Subject, turns: Rotation, rows: int, blame: str, out: Out) -> None:
        self.loaded, self.turns, self.rows, self.blame, self.out = loaded, turns, rows, blame, out
        self.device = turns.sets[0].device
        self.outputs = turns.sets[0].names(Role.OUT, Role.STATE)
        self.row_outputs = {t.name for t in turns.op.outputs(turns.problem) if t.shape and t.shape[0] == "tokens"}
        self.kept: list[list[dict[str, torch.Tensor]]] = []
        self.findings: list[str] = []
        self.ran_on: list[BufferSet] = []

    def check_guards(self) -> None:
        """To be called after timing: the timed calls wrote nowhere else."""
        for number, buffers in enumerate(self.ran_on):
            for name in buffers.broken_guards():
                self.findings.append(f"call {number} wrote outside {name}")

    def _kept(self, calls: Sequence[BufferSet]) -> list[dict[str, torch.Tensor]]:
        return [{n: self._rows(n, c.buffers[n].tensor).clone() for n in self.outputs} for c in calls]

    def _rows(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor[: self.rows] if name in self.row_outputs else tensor

    def _captured(self, calls: Sequence[BufferSet]) -> timing.Call:
        self.ran_on = list(calls)
        with self.out.candidate(self.blame, self.device):
            return timing.capture([self.loaded.bind(c) for c in calls], self.device)

    def graph(self) -> timing.Side:
        sets = self.turns.sets
        calls = [with_own_outputs(sets[k % len(sets)]) for k in range(timing.calls_for(len(sets)))]
        replay = self._captured(calls)

        def before(repetition: int) -> None:
            self.turns.refill(repetition)
            for call in calls:
                call.poison()

        def after(repetition: int) -> None:
            self.kept.append(self._kept(calls[: len(sets)]))
            for k in range(len(sets), len(calls)):
                for name in calls[k].names(Role.OUT):
                    if not same_bits(calls[k].buffers[name].tensor, calls[k % len(sets)].buffers[name].tensor):
                        self.findings.append(f"repetition {repetition}: call {k} of the graph left another {name}")

        return timing.Side(CANDIDATE, replay, len(calls), before, after)

    def chained(self, source: str, target: str, first: torch.Tensor) -> timing.Side:
        """Call k reads as `target` what call k-1 wrote as `source`; `first` is the first call's input as drawn."""
        sets = self.turns.sets
        calls = [with_own_outputs(sets[k % len(sets)]) for k in range(timing.calls_for(len(sets)))]
        head = calls[0].sibling((), own=[target])
        head.work = calls[0].work
        calls[0] = head
        for one, two in itertools.pairwise(calls):
            two.buffers[target] = one.buffers[source]
        head.load({target: first})
        replay = self._captured(calls)

        def before(repetition: int) -> None:
            for call in calls:
                call.poison()
            head.load(refilled({target: first}, [target], self.turns.seed, repetition, 0))

        return timing.Side(
            CANDIDATE, replay, len(calls), before, lambda repetition: self.kept.append(self._kept(calls))
        )

    def cold(self) -> timing.Side:
        sets = self.ran_on = self.turns.sets
        bound = [self.loaded.bind(s) for s in sets]
        now = [0]

        def before(repetition: int) -> None:
            now[0] = max(repetition, 0) % len(sets)
            self.turns.refill(repetition)
            sets[now[0]].poison()

        def after(repetition: int) -> None:
            self.kept.append(self._kept([sets[now[0]]]))

        return timing.Side(CANDIDATE, lambda: bound[now[0]](), 1, before, after)

    def keep(self, out: Out) -> dict[str, Any]:
        """Write the kept outputs; the references by output name."""
        stacked = {n: torch.stack([torch.stack([c[n] for c in calls]) for calls in self.kept]) for n in self.outputs}
        return {name: out.tensor(tensor) for name, tensor in stacked.items()}


class Functional:
    """A baseline: a torch function from values to outputs, over its own rotation."""

    def __init__(self, name: str, run: Callable[[Values], Any], turns: Rotation) -> None:
        self.name, self.run, self.turns = name, run, turns
        self.device = turns.sets[0].device
        self.values = [s.values() for s in turns.sets]

    def graph(self) -> timing.Side:
        count = timing.calls_for(len(self.values))
        calls = [lambda v=v: self.run(v) for v in self.values] * (count // len(self.values))
        return timing.Side(self.name, timing.capture(calls, self.device), count, self.turns.refill)

    def chained(self, source: str, target: str, first: torch.Tensor) -> timing.Side:
        count = timing.calls_for(len(self.values))
        start = first.clone()

        def whole() -> None:
            current = start
            for k in range(count):
                current = self.run({**self.values[k % len(self.values)], target: current})[source]

        def before(repetition: int) -> None:
            start.copy_(torch.as_tensor(refilled({target: first}, [target], self.turns.seed, repetition, 0)[target]))

        return timing.Side(self.name, timing.capture([whole], self.device), count, before)

    def cold(self) -> timing.Side:
        now = [0]

        def before(repetition: int) -> None:
            now[0] = max(repetition, 0) % len(self.values)
            self.turns.refill(repetition)

        self.run(self.values[0])
        return timing.Side(self.name, lambda: self.run(self.values[now[0]]), 1, before)


def run(job: Mapping[str, Any], out: Out) -> dict[str, Any]:
    device = str(job["device"])
    if job["compile"]:
        _no_silent_fallback()
    clock = timing.Clock(device)
    limited = timing.refuse_persisting_l2(device)
    for index, value in enumerate(job["points"]):
        _point(index, from_json(PointJob, value), job, out, clock)
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
def _point(index: int, point: PointJob, job: Mapping[str, Any], out: Out, clock: timing.Clock) -> None:
    started = time.monotonic()
    device, problem = clock.device, point.spec.problem
    op = REGISTRY.get(problem.op)
    blame = f"{problem.key} at {point.tokens} tokens"
    out.at(f"prepare {blame}")
    cache = Path(job["cache"])
    turns = rotation(op, problem, point.seed, device, point.spec.workspaces)
    loaded = subject.load(point.spec, cache)
    baselines = _baselines(op, point, cache, device, bool(job["compile"]), out)
    setup = time.monotonic() - started
    for column, repetitions in point.repetitions.items():
        contestant = Contestant(loaded, turns, point.tokens, f"{blame}, {column}", out)
        sides = [_side(contestant, op, point.seed, column), *(_named(b, op, point, column) for b in baselines)]
        with out.candidate(f"{blame}, timing {column}", device):
            samples = timing.interleave(
                sides, repetitions, clock, random.Random(f"{point.order_seed}/{column}"), flush=column == COLD
            )
        contestant.check_guards()
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
            }
        )


def _baselines(
    op: Op, point: PointJob, cache: Path, device: str, compiled: bool, out: Out
) -> list[tuple[str, "Contestant | Functional"]]:
    true_problem = replace(point.spec.problem, tokens=point.tokens)
    turns = rotation(op, true_problem, point.other_seed, device)
    made: list[tuple[str, Contestant | Functional]] = []
    for name in point.baselines:
        if name == STOCK:
            run = op.stock(true_problem, torch.compile) if compiled else op.stock(true_problem)
            made.append((name, Functional(name, run, turns)))
        elif name == COMPILE and compiled:
            whole: Any = torch.compile(op.stock(true_problem), dynamic=False)
            made.append((name, Functional(name, whole, turns)))
    if point.champion is not None:
        own = rotation(op, point.champion.problem, point.other_seed, device, point.champion.workspaces)
        loaded = subject.load(point.champion, cache)
        made.append((CHAMPION, Contestant(loaded, own, point.tokens, f"champion {point.champion.label}", out)))
    return made


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
