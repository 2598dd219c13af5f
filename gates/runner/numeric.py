"""Runner side of unit-numeric: runs every check of every artefact, keeps outputs, and looks at what needs no answer.

Here, on the device: guards, written inputs, unwritten outputs, repeat runs, padding, graph against plain calls.
The judge does the rest from the kept bytes. A job:

    {"items": [{"spec": LoadSpec, "checks": [Check, ...]}], "cache": path, "device": "cuda" | "cpu",
     "inputs_on": device that draws the inputs, "guard": bytes}

and a record a check: {"id", "problem", "outputs": [{"at": {...}, "tensors": {name: ref}}], "findings": [[code, text]]}.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from kgen.contract import Op, Role, Values
from kgen.gates import timing
from kgen.gates.rows import pad, rows_of
from kgen.gates.runner import subject
from kgen.gates.runner.buffers import GUARD, POISON, SECOND_POISON, BufferSet, same_bits
from kgen.gates.runner.job import LoadSpec
from kgen.gates.runner.out import Out
from kgen.ops import REGISTRY
from kgen.records import Problem, from_json

FAMILY, PADDED, GRAPH = "family", "padded", "graph"
KEEP_EVERY = 16  # of a long run of steps, every 16th and the last go to the judge
GRAPH_SETS = 3
GRAPH_ROUNDS = 2  # replays of the first capture; the capture on new allocations gets one more
ROUND_STRIDE = 1000  # between the seeds of two rounds: must exceed sets and steps

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Check:
    """One thing to run. `true_tokens` > 0: that many rows count, the rest of the bin is garbage."""

    SCHEMA: ClassVar[str] = "kgen.check/1"
    id: int
    kind: str
    family: str
    seed: int
    steps: int = 1
    true_tokens: int = 0
    repeats: int = 1


@dataclass
class Bench:
    """What the checks of one artefact share."""

    op: Op
    spec: LoadSpec
    loaded: subject.Subject
    out: Out
    device: str
    inputs_on: str
    guard: int
    findings: list[tuple[str, str]] = field(default_factory=list)

    @property
    def problem(self) -> Problem:
        return self.spec.problem

    def fresh_set(self) -> BufferSet:
        return BufferSet(self.op, self.problem, self.device, self.spec.workspaces, self.guard)

    def inputs(self, family: str, seed: int) -> Values:
        self.out.at(f"{self.problem.key} inputs of {family}")
        values = self.op.inputs(self.problem, family, seed, self.inputs_on)
        return {k: v.to(self.device) if isinstance(v, torch.Tensor) else v for k, v in values.items()}

    def call(self, buffers: BufferSet, what: str) -> None:
        with self.out.candidate(f"{self.problem.key} {what}", self.device):
            self.loaded.bind(buffers)()
        self.findings += self.loaded.findings()

    def found(self, code: str, text: str) -> None:
        self.findings.append((code, text))


def step_seed(seed: int, step: int) -> int:
    """The seed of the inputs of one step; weights and the first state come from step 0."""
    return seed + step


def graph_seed(seed: int, turn: int, number: int) -> int:
    """The seed of set `number` in replay `turn`."""
    return seed + ROUND_STRIDE * turn + number


def kept_steps(steps: int) -> list[int]:
    return sorted({*range(KEEP_EVERY - 1, steps, KEEP_EVERY), steps - 1})


def run(job: Mapping[str, Any], out: Out) -> dict[str, Any]:
    for item in job["items"]:
        spec = from_json(LoadSpec, item["spec"])
        out.at(f"load {spec.problem.key}")
        bench = Bench(
            op=REGISTRY.get(spec.problem.op),
            spec=spec,
            loaded=subject.load(spec, Path(job["cache"])),
            out=out,
            device=str(job["device"]),
            inputs_on=str(job.get("inputs_on", job["device"])),
            guard=int(job.get("guard", GUARD)),
        )
        try:
            _run_artefact(bench, [from_json(Check, value) for value in item["checks"]])
        except subject.Ended as ended:
            return {"ended": [ended.code, str(ended)]}
    return {}


@torch.no_grad()
def _run_artefact(bench: Bench, checks: list[Check]) -> None:
    buffers = bench.fresh_set()  # one for all families: what a call leaves in its workspaces meets the next one
    for check in checks:
        bench.findings.clear()
        outputs = CHECKS[check.kind](bench, buffers, check)
        kept = [{"at": at, "tensors": {n: bench.out.tensor(t) for n, t in got.items()}} for at, got in outputs]
        bench.out.record(
            {"id": check.id, "problem": bench.problem.key, "outputs": kept, "findings": list(bench.findings)}
        )


def _steps(bench: Bench, buffers: BufferSet, check: Check) -> list[Values]:
    """All inputs of step 0, and what moves of the later steps': drawn once for all runs of a check."""
    moving = buffers.names(Role.IN)
    later = (bench.inputs(check.family, step_seed(check.seed, step)) for step in range(1, check.steps))
    return [bench.inputs(check.family, check.seed), *(_only(values, moving) for values in later)]


def _sequence(
    bench: Bench, buffers: BufferSet, check: Check, drawn: Sequence[Values], poison: int
) -> dict[int, Tensors]:
    """Consecutive calls on one state; the outputs and states after the kept steps."""
    values = drawn[0]
    buffers.load(values)
    buffers.poison(poison)
    kept: dict[int, Tensors] = {}
    for step, fresh in enumerate(drawn):
        if step:
            values = {**values, **fresh}
            buffers.load(fresh)
        bench.call(buffers, f"family {check.family} step {step}")
        if step in kept_steps(check.steps):
            kept[step] = buffers.written()
    for name in buffers.changed_inputs(values):
        bench.found("inputs_written", f"family {check.family}: the call changed its input {name}")
    for name in buffers.broken_guards():
        bench.found("guard", f"family {check.family}: the call wrote outside {name}")
    return kept


def _only(values: Values, names: list[str]) -> Values:
    """The named inputs, and the scalars."""
    return {k: v for k, v in values.items() if k in names or not isinstance(v, torch.Tensor)}


def _family(bench: Bench, buffers: BufferSet, check: Check) -> list[tuple[dict[str, int], Tensors]]:
    drawn = _steps(bench, buffers, check)
    first = _sequence(bench, buffers, check, drawn, POISON)
    for repeat in range(check.repeats):
        again = _sequence(bench, buffers, check, drawn, SECOND_POISON if repeat == 0 else POISON)
        for step, got in again.items():
            for name, tensor in got.items():
                _compare_runs(bench, check, name, step, first[step][name], tensor, poisoned=repeat == 0)
    return [({"step": step}, got) for step, got in first.items()]


def _compare_runs(
    bench: Bench, check: Check, name: str, step: int, one: torch.Tensor, two: torch.Tensor, poisoned: bool
) -> None:
    if same_bits(one, two):
        return
    missing = int(_poison_left(one, POISON).logical_and(_poison_left(two, SECOND_POISON)).sum()) if poisoned else 0
    if missing:
        bench.found(
            "unwritten", f"family {check.family}: {missing} of {one.numel()} elements of {name} were not written"
        )
    else:
        bench.found("nondeterministic", f"family {check.family}: two runs differ in {name} (step {step})")


def _poison_left(tensor: torch.Tensor, byte: int) -> torch.Tensor:
    data = tensor.contiguous().view(-1).view(torch.uint8).view(-1, tensor.element_size())
    return (data == byte).all(dim=1)


def _padded(bench: Bench, buffers: BufferSet, check: Check) -> list[tuple[dict[str, int], Tensors]]:
    """The first rows count, the rest of the bin holds NaN: what the rows give must not depend on the rest."""
    count = check.true_tokens
    got: list[Tensors] = []
    values = bench.inputs(check.family, check.seed)
    for garbage in (False, True):
        pad(bench.op, bench.problem, values, count, garbage)
        buffers.load(values)
        buffers.poison()
        bench.call(buffers, f"padded {count}")
        got.append(rows_of(bench.op, bench.problem, buffers.written(), count))
        for name in buffers.broken_guards():
            bench.found("guard", f"{count} tokens in the bin of {bench.problem.tokens}: wrote outside {name}")
    for name, tensor in got[1].items():
        if not same_bits(got[0][name], tensor):
            text = f"{count} tokens in the bin of {bench.problem.tokens}: garbage rows change {name}"
            bench.found("padding", text)
    return [({"true_tokens": count}, got[1])]


def _graph(bench: Bench, buffers: BufferSet, check: Check) -> list[tuple[dict[str, int], Tensors]]:
    """Rotating sets in a CUDA graph, refilled between replays; captured again on new allocations."""
    outputs: list[tuple[dict[str, int], Tensors]] = []
    turn = 0
    apart: list[torch.Tensor] = []
    for rounds in (GRAPH_ROUNDS, 1):
        apart.append(torch.empty(1 << 20, dtype=torch.uint8, device=bench.device))  # moves what is allocated next
        sets = [bench.fresh_set() for _ in range(GRAPH_SETS)]
        drawn = _sets(bench, check, turn)
        for each, values in zip(sets, drawn, strict=True):
            each.load(values)
        with bench.out.candidate(f"{bench.problem.key} capture", bench.device):
            replay = timing.capture([bench.loaded.bind(each) for each in sets], bench.device)
        for round_ in range(rounds):
            drawn = _sets(bench, check, turn) if round_ else drawn
            outputs += _replay(bench, buffers, drawn, sets, replay, turn)
            turn += 1
    return outputs


def _sets(bench: Bench, check: Check, turn: int) -> list[Values]:
    """What the rotating sets hold in one replay."""
    return [bench.inputs(check.family, graph_seed(check.seed, turn, number)) for number in range(GRAPH_SETS)]


def _replay(
    bench: Bench, plain: BufferSet, drawn: list[Values], sets: list[BufferSet], replay: timing.Call, turn: int
) -> list[tuple[dict[str, int], Tensors]]:
    for each, values in zip(sets, drawn, strict=True):
        each.load(values)
        each.poison()
    with bench.out.candidate(f"{bench.problem.key} replay {turn}", bench.device):
        replay()
    outputs: list[tuple[dict[str, int], Tensors]] = []
    for number, (each, values) in enumerate(zip(sets, drawn, strict=True)):
        got = each.written()
        plain.load(values)
        plain.poison()
        bench.call(plain, f"plain call beside replay {turn}")
        for name, want in plain.written().items():
            if not same_bits(got[name], want):
                bench.found("graph", f"replay {turn}, set {number}: {name} differs from a plain call")
        for name in each.broken_guards():
            bench.found("guard", f"replay {turn}, set {number}: wrote outside {name}")
        for name in each.changed_inputs(values):
            bench.found("inputs_written", f"replay {turn}, set {number}: changed its input {name}")
        outputs.append(({"turn": turn, "set": number}, got))
    return outputs


CHECKS = {FAMILY: _family, PADDED: _padded, GRAPH: _graph}
