"""What the plan of the model gate costs on an H200, computed from counted kernels: no GPU took part.

    PYTHONPATH=tests python -m support.modelcost          prints the table of kgen.gates.modeleval.plan

A captured step takes GRAPH_US a kernel and an eager one EAGER_US a call that is a kernel or a view, or the time that
its bytes need at BANDWIDTH if that is more. Steps are counted at COUNTED rows and interpolated. Processes that share a
GPU take turns on it: the gate lasts at least as long as all their `busy` seconds together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from support.counting import Tally, counted
from support.decoders import exact, weights

from kgen.contract import Values
from kgen.contract.op import Op
from kgen.gates.modeleval import exercise as kinds
from kgen.gates.modeleval.census import Census
from kgen.gates.modeleval.exercise import EAGER, GRAPH, Exercise, Seeds
from kgen.gates.modeleval.perform import WIDE
from kgen.gates.modeleval.plan import SMALL, TABLE, Plan, plan
from kgen.gates.modeleval.questions import answer_room, questions
from kgen.gates.modeleval.sides import CANDIDATE, FLOAT64, MUTANT, OFF, STOCK, exercises_of
from kgen.gates.modeleval.stage import REPLAYS, ROUNDS, WARMUPS
from kgen.model.bind import Binder, OpCall, ReferenceBinder, StockBinder
from kgen.model.decoder.config import config
from kgen.model.decoder.prefill import CHUNK_VALUES, prefill
from kgen.model.decoder.session import Session
from kgen.model.decoder.step import DecodeStep
from kgen.model.decoder.weights import Weights, expected
from kgen.ops import PACK, REGISTRY, routing
from kgen.ops.dims_moe import EXPERT_WIDTH, EXPERTS, LATENT, TOP_K
from kgen.ops.moe_experts import AT_ONCE
from kgen.records import Problem

GRAPH_US, EAGER_US, BUSY_US = 2.2, 7.0, 2.2
BANDWIDTH = 4.0e12  # bytes a second
START, DRAW, READ = 10.0, 2.0, 0.5  # seconds: a process, the weights of a slice, those of the small model
TRACED_US = 40.0  # a traced kernel, read back
WAIT = 0.003  # seconds of Python in a step whose tokens the host chooses
COUNTED = (1, 4, 16, 64)
ARCH, SEEDS = "sm_90a", Seeds(1, 2, 3)


@dataclass(frozen=True)
class Work:
    """Of one step, or of any number of them."""

    kernels: float
    views: float
    bytes: float

    def __add__(self, other: "Work") -> "Work":
        return Work(self.kernels + other.kernels, self.views + other.views, self.bytes + other.bytes)

    def __mul__(self, factor: float) -> "Work":
        return Work(self.kernels * factor, self.views * factor, self.bytes * factor)

    @property
    def busy(self) -> float:
        return max(self.kernels * BUSY_US * 1e-6, self.bytes / BANDWIDTH + self.kernels * BUSY_US * 0.5e-6)

    @property
    def captured(self) -> float:
        return self.kernels * GRAPH_US * 1e-6 + self.bytes / BANDWIDTH

    @property
    def eager(self) -> float:
        return max((self.kernels + self.views) * EAGER_US * 1e-6, self.busy)


def work(tally: Tally) -> Work:
    return Work(tally.kernels, tally.views, tally.bytes)


@dataclass
class ByOp:
    """A binder that counts what each op launches."""

    inner: Binder
    found: dict[str, Work]

    def bind(self, op: Op, problem: Problem, seat: str) -> OpCall:
        call = self.inner.bind(op, problem, seat)

        def counting(values: Values) -> dict[str, torch.Tensor]:
            with Tally() as tally:
                got = call(values)
            self.found[op.name] = self.found.get(op.name, Work(0, 0, 0)) + work(tally)
            return got

        return counting


def _session(binder: Binder, own: Weights, name: str, rows: int, q: int) -> Session:
    return Session(DecodeStep(config(name), own, rows // q, q, "", binder, REGISTRY), rows // q, 256)


def _step(session: Session, device: str) -> None:
    ids = torch.zeros(session.step.rows, dtype=torch.int64, device=device)
    if device != "meta":
        ids = torch.randint(0, 512, ids.shape, generator=torch.Generator().manual_seed(int(session._used)))
    session.verify(ids)
    session.accept(torch.ones(session.count, dtype=torch.int32, device=device))


@cache
def _small(exactly: bool, rows: int, q: int) -> tuple[Work, Mapping[str, Work]]:
    """A step of the small model: all of it, and by op."""
    binder = ByOp(ReferenceBinder() if exactly else StockBinder(), {})
    session = _session(binder, exact(weights()) if exactly else weights(), "nano-random", rows, q)
    _step(session, "cpu")
    binder.found.clear()
    return work(counted(lambda: _step(session, "cpu"))), dict(binder.found)


@cache
def _slice(name: str, rows: int, q: int) -> Work:
    """A stock step of a slice, without any weights in memory."""
    shapes = expected(config(name), REGISTRY)
    hollow = {n: torch.empty(shape, dtype=dtype, device="meta") for n, (dtype, shape) in shapes.items()}
    session = _session(StockBinder(), Weights(hollow), name, rows, q)
    return work(counted(lambda: _step(session, "meta")))


@cache
def _exact_slice(name: str, rows: int, q: int) -> Work:
    """A float64 step of a slice: the small model's by op, experts by how many are read; bytes of the weights alone."""
    dims = config(name).dims
    census = Census(REGISTRY, ARCH)
    calls = [_by_op(census.calls(kinds.Way(n), rows // q, q)) for n in (name, "nano-random")]
    _, small = _small(True, rows, q)
    total = Work(0, 0, 0)
    for op, mine in small.items():
        each = Work(mine.kernels, mine.views, 0) * (calls[0].get(op, 0) / calls[1][op])
        experts = routing.expected_distinct(rows, EXPERTS[dims], TOP_K[dims])
        total += each * (-(-experts // AT_ONCE) if op == "moe_experts" else 1)
        if op == "moe_experts":
            total += Work(0, 0, calls[0][op] * experts * 3 * EXPERT_WIDTH[dims] * LATENT[dims] * 36)
    shapes = expected(config(name), REGISTRY)
    plain = sum(torch.Size(s).numel() for n, (d, s) in shapes.items() if d == torch.bfloat16 and n != "embed")
    return total + Work(0, 0, 18 * plain)  # read, widened, and read again


def _by_op(calls: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, n in calls.items():
        found[key.split("/")[0]] = found.get(key.split("/")[0], 0) + n
    return found


def step(model: str, side: str, rows: int, q: int) -> Work:
    """Between the two nearest row counts that are counted."""
    known = [n for n in COUNTED if n % q == 0] if q == 1 else [64]
    low = max((n for n in known if n <= rows), default=known[0])
    high = min((n for n in known if n >= rows), default=known[-1])
    a, b = (_counted(model, side, n, q) for n in (low, high))
    share = (rows - low) / (high - low) if high > low else 0.0
    return a * (1 - share) + b * share


def _counted(model: str, side: str, rows: int, q: int) -> Work:
    if model == SMALL:
        return _small(side == FLOAT64, rows, q)[0]
    return _exact_slice(model, rows, q) if side == FLOAT64 else _slice(model, rows, q)


@cache
def _chunk() -> tuple[Work, float]:
    """A chunk of a stock prefill of the small model: its calls, and bytes a row."""
    session = _session(StockBinder(), weights(), "nano-random", 4, 1)
    found = work(counted(lambda: prefill(session, torch.zeros(128, 4, dtype=torch.int64))))
    return Work(found.kernels, found.views, 0), found.bytes / 512


def read(count: int, length: int) -> Work:
    """A prefill of `count` prompts; attention beside it reads each score a few times."""
    calls, each = _chunk()
    chunks = -(-count * length * 256 // CHUNK_VALUES)
    scores = 2 * 2 * count * length * length / 2 * 4 * 6  # layers, heads, causal half, float32, passes
    return calls * chunks + Work(0, 0, each * count * length + scores)


@dataclass(frozen=True)
class Steps:
    """Steps of one batch shape in one mode; prompts that are read before, host choices in between."""

    number: int
    rows: int
    q: int
    mode: str
    batches: int = 1  # prepared
    prompts: tuple[tuple[int, int], ...] = ()  # (count, length) of each prefill
    chosen: bool = False  # the host waits for every step
    profiled: bool = False


def steps_of(e: Exercise, side: str) -> list[Steps]:
    """What a side does in an exercise, mode by mode."""
    modes = (EAGER,) if side == FLOAT64 else e.modes
    return [s for mode in modes for s in _steps(e, side, mode)]


def _steps(e: Exercise, side: str, mode: str) -> list[Steps]:
    rows, q = e.requests * e.q, e.q
    if e.kind in kinds.ROWS:
        return [Steps(e.steps, rows, q, mode, profiled=e.profiled and mode == GRAPH)]
    if e.kind == kinds.FREE:
        found = [Steps(e.prompt - 1 + e.steps, rows, 1, mode)]
        if e.other and side == STOCK:
            size = min(e.count, WIDE // e.other)
            windows = -(-(e.prompt - 1 + e.steps) // e.other) * -(-e.count // size)
            found.append(Steps(windows, size * e.other, e.other, mode))
        return found
    if e.kind in (kinds.TASKS, kinds.LONG):
        return [_answers(e, mode)]
    asked = questions(e, SEEDS)
    longest = max(len(i.prompt) for batch in asked for i in batch)
    if e.kind == kinds.VERIFY:
        drafted = -(-longest // q) + e.steps
        return [Steps(longest + e.steps, e.requests, 1, mode, chosen=True), Steps(drafted, rows, q, mode, chosen=True)]
    if e.kind == kinds.CONSTRAINED:
        return [Steps(len(asked) * (longest + e.steps), rows, 1, mode, chosen=True)]
    return [Steps(e.steps, rows, 1, mode, chosen=True)]  # sampling


def _answers(e: Exercise, mode: str) -> Steps:
    number, prompts = 0, []
    batches = questions(e, SEEDS)
    for items in batches:
        lengths = [len(i.prompt) for i in items]
        number += max(lengths) - min(lengths) + answer_room(items)
        prompts.append((e.count, min(lengths) - 1))
    return Steps(number, e.requests, 1, mode, len({i.length for b in batches for i in b}), tuple(prompts))


@dataclass(frozen=True)
class Time:
    """Seconds of a process that is alone on the GPU, and of the GPU for it."""

    wall: float = 0.0
    busy: float = 0.0

    def __add__(self, other: "Time") -> "Time":
        return Time(self.wall + other.wall, self.busy + other.busy)


def time_of(s: Steps, model: str, side: str) -> Time:
    one = step(model, side, s.rows, s.q)
    wait = WAIT * s.number if s.chosen else 0.0
    total = Time()
    for count, length in s.prompts:
        total += Time(read(count, length).eager, read(count, length).busy)
    if s.mode == EAGER:
        return total + Time(s.number * one.eager + wait, s.number * one.busy)
    ready = WARMUPS + 1  # and the capture, which runs nothing
    total += Time(s.number * one.captured + wait, s.number * one.captured)
    total += Time(s.batches * ready * one.eager, s.batches * WARMUPS * one.busy)
    if s.profiled:
        replays = ROUNDS * (REPLAYS + 1)
        read_back = ROUNDS * (0.3 + REPLAYS * one.kernels * TRACED_US * 1e-6)
        total += Time(replays * one.captured + read_back, replays * one.captured)
    return total


def exercise_time(e: Exercise, side: str) -> Time:
    return sum((time_of(s, e.way.config, side) for s in steps_of(e, side)), Time())


def starting(model: str) -> Time:
    return Time(START + (READ if model == SMALL else DRAW), 0.5)


def part_time(model: str, side: str, exercises: Sequence[Exercise]) -> Time:
    own = exercises_of(side, exercises)
    kind = CANDIDATE if side in (OFF, MUTANT) else side
    return sum((exercise_time(e, kind) for e in own), starting(model))


def planned(op: str = "moe_shared", dims: Iterable[str] = ("k3-tp8", "k3-tp16", "nano")) -> Plan:
    found = REGISTRY.get(op)
    problems = [found.problem(d, b, ARCH) for d in dims for b in PACK.bins]
    return plan(problems, PACK.small, TABLE["cuda"], "cuda", Census(REGISTRY, ARCH))


def label(e: Exercise) -> str:
    return "drift" if e.states else e.kind


def table(found: Plan) -> list[str]:
    """A line for each model and kind of exercise, then one for each process, then the whole."""
    lines = [f"{'':24}{'steps':>7}{'stock':>8}{'candidate':>11}{'float64':>9}"]
    totals: dict[str, Time] = {}
    for model, exercises in found.models.items():
        for kind in dict.fromkeys(label(e) for e in exercises):
            own = [e for e in exercises if label(e) == kind]
            number = sum(s.number for e in own for s in steps_of(e, CANDIDATE))
            walls = [
                sum(exercise_time(e, side).wall for e in own if e in exercises_of(side, own))
                for side in (STOCK, CANDIDATE, FLOAT64)
            ]
            cells = f"{walls[0]:8.1f}{walls[1]:11.1f}" + (f"{walls[2]:9.1f}" if walls[2] else "")
            lines.append(f"{model + ' ' + kind:24}{number:7}{cells}")
        for side in (STOCK, CANDIDATE, FLOAT64):
            if exercises_of(side, exercises):
                totals[f"{side} {model}"] = part_time(model, side, exercises)
    first = next(iter(found.models))
    totals[f"{OFF} {first}"] = part_time(first, OFF, found.models[first])
    for n in (1, 2):
        brief = [replace(e, modes=e.modes[-1:], profiled=False) for e in found.models[first]]
        totals[f"{MUTANT} {n} {first}"] = part_time(first, MUTANT, brief)
    lines.append("")
    lines += [f"{name:24}{t.wall:7.0f} s alone, GPU busy {t.busy:5.1f}" for name, t in totals.items()]
    busy, longest = sum(t.busy for t in totals.values()), max(t.wall for t in totals.values())
    lines.append(f"{'together':24}{busy:7.0f} s of GPU, longest process {longest:.0f} s")
    return lines


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("\n".join(table(planned())))
