"""Who takes part in a timed point: an artefact (its outputs kept) or a torch function, each over a rotation of sets.

Both offer `graph()`, `chained(source, target, first)` and `cold()`, each giving a timing.Side. Every call of an
artefact in a graph has workspaces and outputs of its own, the outputs poisoned before each replay; calls on the same
set must agree bit for bit, and no call may change what it reads. Outputs of all calls are kept; of the states, which
may be many times larger, those of a few calls that are chosen after they ran.
"""

import contextlib
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kgen.contract import Op, Role, Values
from kgen.gates import routing, timing
from kgen.gates.rows import pad, rows_of
from kgen.gates.runner import subject
from kgen.gates.runner.buffers import BufferSet, Workspaces, same_bits
from kgen.gates.runner.out import Out
from kgen.gates.runner.refill import refilled, refilled_names
from kgen.records import Problem

CANDIDATE = "candidate"


@dataclass(frozen=True)
class Rotation:
    """Buffer sets that take turns, with the values that they were first given."""

    op: Op
    problem: Problem
    sets: list[BufferSet]
    drawn: list[Values]
    seed: int
    rows: int
    family: str
    touched: int  # bytes that one call on each of the sets reads or writes
    trace: routing.Recorded | None = None

    @property
    def warm(self) -> str:
        """Which part L2 may hold from turn to turn, "" when it is too small for that."""
        reach = timing.L2_TIMES * timing.l2_bytes(self.sets[0].device)
        return f"{self.touched / 1e6:.3g} MB" if self.touched < reach else ""

    def refill(self, repetition: int) -> None:
        names = refilled_names(self.op, self.problem)
        for number, (buffers, values) in enumerate(zip(self.sets, self.drawn, strict=True)):
            buffers.load(refilled(values, names, self.seed, repetition, number))

    def changed(self, repetition: int) -> list[str]:
        """Refilled inputs that do not hold what this repetition put there."""
        inputs, names = self.sets[0].names(Role.IN, Role.WEIGHT), refilled_names(self.op, self.problem)
        wanted = [refilled(v, names, self.seed, repetition, number) for number, v in enumerate(self.drawn)]
        return self._differing(wanted, [n for n in names if n in inputs])

    def constants_changed(self) -> list[str]:
        """Inputs and weights that are never refilled, and are not what was drawn."""
        names = set(self.sets[0].names(Role.IN, Role.WEIGHT)) - set(refilled_names(self.op, self.problem))
        device, numbers = self.sets[0].device, range(len(self.sets))
        how = self.rows, device, self.trace
        drawn = (set_values(self.op, self.problem, self.family, self.seed, n, *how) for n in numbers)
        return self._differing(drawn, sorted(names))

    def _differing(self, wanted: Iterable[Values], names: Sequence[str]) -> list[str]:
        return [
            f"{name} of set {number}"
            for number, (buffers, values) in enumerate(zip(self.sets, wanted, strict=True))
            for name in names
            if isinstance(want := values[name], torch.Tensor) and not same_bits(buffers.buffers[name].tensor, want)
        ]


def set_seed(seed: int, number: int) -> int:
    return seed + number


def chain_seed(seed: int) -> int:
    return seed + 10_000  # past every set's


def set_values(
    op: Op,
    problem: Problem,
    family: str,
    seed: int,
    number: int,
    rows: int,
    device: str,
    trace: routing.Recorded | None = None,
) -> Values:
    """What set `number` holds first: `rows` tokens that count, padding behind them. `family` "": the op's first, and
    so for routing.RECORDED, with the experts of `trace`."""
    first, own = op.families[0].name, set_seed(seed, number)
    values = op.inputs(problem, first if family in ("", routing.RECORDED) else family, own, device)
    if family == routing.RECORDED and trace is not None:
        values = routing.with_ids(values, routing.ids_in(op), trace, own)
    pad(op, problem, values, rows)
    return values


def rotation(
    op: Op,
    problem: Problem,
    seed: int,
    device: str,
    workspaces: Workspaces = (),
    rows: int | None = None,
    family: str = "",
    trace: routing.Recorded | None = None,
) -> Rotation:
    """As many sets as a rotation needs; an op with states gets one set a call, so that each call starts fresh.

    `rows`: the true count of tokens (default: the problem's); `family` and `trace`: of the values, see `set_values`.
    """
    count = problem.tokens if rows is None else rows
    keep = refilled_names(op, problem)
    sets: list[BufferSet] = []
    drawn: list[Values] = []
    moved, wanted = 0, 1
    while len(sets) < wanted:
        values = set_values(op, problem, family, seed, len(sets), count, device, trace)
        buffers = BufferSet(op, problem, device, workspaces, values=values)
        moved += (now := min(op.cost_of(problem, values).bytes, buffers.nbytes))
        if not sets:
            wanted = timing.sets_needed(now, timing.l2_bytes(device), buffers.nbytes)
            wanted = max(wanted, timing.MIN_CALLS) if buffers.names(Role.STATE) else wanted
        buffers.load(values)
        sets.append(buffers)
        drawn.append({k: v for k, v in values.items() if k in keep or not isinstance(v, torch.Tensor)})
    return Rotation(op, problem, sets, drawn, seed, count, family, moved, trace)


class Sampler:
    """Picks `wanted` of `total` things as they pass, each as likely as any other.

    Asked after a call has run, so that nothing which ran before could know the answer.
    """

    def __init__(self, wanted: int, total: int) -> None:
        self.wanted, self.left = min(wanted, total), total
        self._random = random.SystemRandom()

    def take(self) -> bool:
        chosen = self._random.randrange(self.left) < self.wanted
        self.left, self.wanted = self.left - 1, self.wanted - chosen
        return chosen


def call_of_its_own(base: BufferSet, workspaces: Workspaces) -> BufferSet:
    """A call on these inputs and weights, with outputs and workspaces of its own.

    Calls on one set get the same input within a replay: a workspace that they shared could hold the answer.
    """
    return base.sibling(workspaces, own=base.names(Role.OUT))


class Contestant:
    """A loaded artefact (candidate or champion) over its rotation. Keeps what its timed calls wrote.

    `blame` says what a failing call is to be reported as; "" (the champion): as our own error. `state_bytes`: how much
    may be kept of the states, at least one call's, over that many `repetitions`.
    """

    def __init__(
        self,
        loaded: subject.Subject,
        turns: Rotation,
        rows: int,
        blame: str,
        out: Out,
        repetitions: int = 1,
        state_bytes: int = 0,
    ) -> None:
        self.loaded, self.turns, self.rows, self.blame, self.out = loaded, turns, rows, blame, out
        self.device = turns.sets[0].device
        self.outputs, self.states = turns.sets[0].names(Role.OUT), turns.sets[0].names(Role.STATE)
        self.repetitions, self.state_bytes = repetitions, state_bytes
        self.sampler = Sampler(0, 0)
        self.kept: list[list[dict[str, torch.Tensor]]] = []
        self.kept_states: list[tuple[int, int, dict[str, torch.Tensor]]] = []  # (repetition, number of the call, ...)
        self.findings: list[str] = []
        self.ran_on: list[BufferSet] = []

    def check_writes(self) -> None:
        """To be called after timing: the timed calls wrote nowhere but to outputs, states and workspaces."""
        self.findings += [f"changed its input {text}" for text in self.turns.constants_changed()]
        for number, buffers in enumerate(self.ran_on):
            for name in buffers.broken_guards():
                self.findings.append(f"call {number} wrote outside {name}")

    def _calls(self, sets: Sequence[BufferSet]) -> list[BufferSet]:
        """What one graph calls: whole rotations over the sets."""
        count, workspaces = timing.calls_for(len(sets)), self.loaded.spec.workspaces
        return [call_of_its_own(sets[k % len(sets)], workspaces) for k in range(count)]

    def _kept(self, calls: Sequence[BufferSet]) -> list[dict[str, torch.Tensor]]:
        return [{n: t.clone() for n, t in self._rows(c, self.outputs).items()} for c in calls]

    def _sample(self, calls_a_repetition: int) -> None:
        """To be called before timing: how many calls' states will be kept."""
        each = sum(self.turns.sets[0].buffers[n].tensor.nbytes for n in self.states)
        total = calls_a_repetition * self.repetitions if self.states else 0
        self.sampler = Sampler(max(1, self.state_bytes // max(1, each)), total)

    def _keep_states(self, repetition: int, calls: Sequence[BufferSet]) -> None:
        """After a repetition: whole states of those of its calls that are drawn now."""
        for number, call in enumerate(calls if self.states else ()):
            if self.sampler.take():
                written = {n: t.clone() for n, t in self._rows(call, self.states).items()}
                self.kept_states.append((repetition, number, written))

    def _check_inputs(self, repetition: int) -> None:
        """After a repetition whose calls read the sets' own refilled inputs."""
        self.findings += [
            f"repetition {repetition}: changed its input {text}" for text in self.turns.changed(repetition)
        ]

    def _rows(self, call: BufferSet, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """What a call wrote for the rows that count."""
        written = {n: call.buffers[n].tensor for n in names}
        return rows_of(self.turns.op, self.turns.problem, written, self.rows)

    def _captured(self, calls: Sequence[BufferSet]) -> timing.Call:
        self.ran_on = list(calls)
        blamed = self.out.candidate(self.blame, self.device) if self.blame else contextlib.nullcontext()
        with blamed:
            return timing.capture([self.loaded.bind(c) for c in calls], self.device)

    def graph(self) -> timing.Side:
        sets = self.turns.sets
        calls = self._calls(sets)
        replay = self._captured(calls)
        self._sample(len(sets))

        def before(repetition: int) -> None:
            self.turns.refill(repetition)
            for call in calls:
                call.poison()

        def after(repetition: int) -> None:
            self.kept.append(self._kept(calls[: len(sets)]))
            self._keep_states(repetition, calls[: len(sets)])
            self._check_inputs(repetition)
            for k in range(len(sets), len(calls)):
                for name in calls[k].names(Role.OUT):
                    if not same_bits(calls[k].buffers[name].tensor, calls[k % len(sets)].buffers[name].tensor):
                        self.findings.append(f"repetition {repetition}: call {k} of the graph left another {name}")

        return timing.Side(CANDIDATE, replay, len(calls), before, after)

    def chained(self, source: str, target: str, first: torch.Tensor) -> timing.Side:
        """Call k reads as `target` what call k-1 wrote as `source`; `first` is the first call's input as drawn."""
        sets = self.turns.sets
        calls = self._calls(sets)
        head = calls[0] = sets[0].sibling(self.loaded.spec.workspaces, own=[target, *sets[0].names(Role.OUT)])
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
        self._sample(1)
        now = [0]

        def before(repetition: int) -> None:
            now[0] = max(repetition, 0) % len(sets)
            self.turns.refill(repetition)
            sets[now[0]].poison()

        def after(repetition: int) -> None:
            self.kept.append(self._kept([sets[now[0]]]))
            self._keep_states(repetition, [sets[now[0]]])
            self._check_inputs(repetition)

        return timing.Side(CANDIDATE, lambda: bound[now[0]](), 1, before, after)

    def keep(self, out: Out) -> dict[str, Any]:
        """Write the kept outputs; the references by output name."""
        stacked = {n: torch.stack([torch.stack([c[n] for c in calls]) for calls in self.kept]) for n in self.outputs}
        return {name: out.tensor(tensor) for name, tensor in stacked.items()}

    def keep_states(self, out: Out) -> list[dict[str, Any]]:
        """Write the kept states; for each kept call its repetition, its number in there, and the references by name."""
        return [
            {"repetition": repetition, "call": number, "tensors": {n: out.tensor(t) for n, t in tensors.items()}}
            for repetition, number, tensors in self.kept_states
        ]


class Functional:
    """A baseline: a torch function from values to outputs, over its own rotation; `beside`: more values of each set."""

    def __init__(self, name: str, run: Callable[[Values], Any], turns: Rotation, beside: Sequence[Values] = ()) -> None:
        self.name, self.run, self.turns = name, run, turns
        self.device = turns.sets[0].device
        more = beside or [{}] * len(turns.sets)
        self.values = [{**s.values(), **own} for s, own in zip(turns.sets, more, strict=True)]

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
