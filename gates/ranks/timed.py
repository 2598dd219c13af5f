"""One rank's side of the timing: candidate and baselines interleaved, every sample taken on all ranks at once.

Columns: `graph`: events round one replay of many calls over rotating sets, divided by the calls; `busy`: the same
beside another stream that multiplies matrices; `skew N`: events round a graph of one call, the last rank N us later
than the others. Before each sample the ranks' streams meet in a one-element NCCL all-reduce behind a spinning kernel,
so that they start within a few us of each other; where NCCL is not there they meet on the host (`aligned` says so).
Sets are few: rows of some 100 KB that a producer has just written lie in L2. What is compared afterwards are the very
outputs that were timed. The judge takes the largest sample over ranks. Not covered: cold L2.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from kgen.contract import Values
from kgen.gates import timing
from kgen.gates.environment import environment
from kgen.gates.ranks import baselines, check
from kgen.gates.ranks.job import RankedSpec
from kgen.gates.ranks.skew import delay
from kgen.gates.ranks.transport import join
from kgen.gates.ranks.worker import Bench
from kgen.gates.runner.buffers import BufferSet
from kgen.gates.runner.refill import refilled, refilled_names
from kgen.records import to_json

SETS = 4
CALLS = 48  # of a graph
SKEWS = (0, 2, 10, 100)  # us
CANDIDATE = "candidate"
BASELINE_SEED = 5000  # baselines never see the candidate's inputs
BUSY_SIZE, BUSY_PRODUCTS = 4096, 24  # products of about 0.2 ms each, more than a replay takes
WARM_REPLAYS = 3
LEAD_TIMES = 2  # the host queues more here than the gates of one rank do
cuda: Any = torch.cuda


@dataclass(frozen=True)
class Side:
    """One contestant on this rank."""

    name: str
    graph: timing.Call
    single: timing.Call
    before: Callable[[int], None]


class Clock:
    """Times a piece of queued work on this rank, in us, all ranks at the same time."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.aligned = bench, "host"
        self.gpu = bench.device != "cpu"
        if self.gpu:
            self._first, self._last = (cuda.Event(enable_timing=True) for _ in range(2))
            self._side = cuda.Stream()
            self._product = torch.randn(BUSY_SIZE, BUSY_SIZE, device=bench.device, dtype=torch.bfloat16)
            self._into = torch.empty_like(self._product)
            self._meet = torch.zeros(1, device=bench.device)

    def align_by_nccl(self) -> None:
        dist.all_reduce(self._meet)
        cuda.synchronize()
        self.aligned = "nccl"

    def measure(self, work: timing.Call, us: float = 0.0, busy: bool = False) -> float:
        """`us`: how much later than the others this rank starts."""
        if not self.gpu:
            self.bench.meeting.barrier()
            delay("cpu", us)
            return _host_us(work)
        if self.aligned != "nccl":
            self.bench.meeting.barrier()
        cuda._sleep(LEAD_TIMES * timing.LEAD_CYCLES)
        if self.aligned == "nccl":
            dist.all_reduce(self._meet)
        if busy:
            self._occupy()
        delay(self.bench.device, us)
        self._first.record()
        work()
        self._last.record()
        self._last.synchronize()
        elapsed = float(self._first.elapsed_time(self._last)) * 1e3
        if busy:
            cuda.synchronize()
        return elapsed

    def _occupy(self) -> None:
        self._side.wait_stream(cuda.current_stream())
        with cuda.stream(self._side):
            for _ in range(BUSY_PRODUCTS):
                torch.mm(self._product, self._product, out=self._into)


def _host_us(work: timing.Call) -> float:
    started = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - started) / 1e3


@torch.no_grad()
def run(bench: Bench) -> dict[str, Any]:
    transport, names = bench.transport(), list(bench.job["baselines"])
    clock = Clock(bench)
    if bench.device != "cpu" and bench.job["nccl"]:
        bench.out.at("NCCL group")
        join(bench.meeting)
        clock.align_by_nccl()
    for specs in by_problem(bench.specs()):
        _point(bench, specs, transport, clock, names)
    return {"environment": to_json(environment()), "aligned": clock.aligned}


def by_problem(specs: Sequence[RankedSpec]) -> list[list[RankedSpec]]:
    """The candidate of each problem, with the variants that are measured beside it."""
    found: dict[str, list[RankedSpec]] = {}
    for each in specs:
        found.setdefault(each.problem.key, []).append(each)
    return list(found.values())


@dataclass(frozen=True)
class Kernel:
    """A kernel on a rotation of sets, with the values that they were first given."""

    spec: RankedSpec
    sets: list[BufferSet]
    drawn: list[Values]
    side: Side


def _point(bench: Bench, specs: Sequence[RankedSpec], transport: Any, clock: Clock, names: Sequence[str]) -> None:
    """All columns of one problem."""
    seed = int(bench.job["seed"])
    opened = [check.opened(bench, spec, transport) for spec in specs]
    kernels, first = [_kernel(bench, each, seed) for each in opened], seed + BASELINE_SEED
    made = baselines.opened(bench, specs[0], names, first, lambda: _filled(opened[0], first)[0])
    sides = [*(k.side for k in kernels), *(_baseline(bench, each, specs[0].label) for each in made.values())]
    _times(bench, clock, sides, kernels, seed)


def _filled(ranked: check.Ranked, seed: int) -> tuple[list[BufferSet], list[Values]]:
    """The sets of a rotation, and what they hold."""
    spec = ranked.spec
    drawn = [ranked.inputs(spec.op.families[0].name, seed + number) for number in range(SETS)]
    sets = [BufferSet(spec.op, spec.problem, ranked.bench.device) for _ in drawn]
    for each, values in zip(sets, drawn, strict=True):
        each.load(values)
    return sets, drawn


def _kernel(bench: Bench, ranked: check.Ranked, seed: int) -> Kernel:
    sets, drawn = _filled(ranked, seed)
    calls = [ranked.subject.bind(each) for each in sets]
    with bench.out.candidate(f"{ranked.spec.label} capture", bench.device):
        graph = timing.capture(calls * (CALLS // SETS), bench.device)
        single = timing.Replay(calls[:1], bench.device)
    names = refilled_names(ranked.spec.op, ranked.spec.problem)

    def before(repetition: int) -> None:
        for number, (each, values) in enumerate(zip(sets, drawn, strict=True)):
            each.load(refilled(values, names, seed, repetition, number))
            each.poison()

    return Kernel(ranked.spec, sets, drawn, Side(ranked.spec.variant or CANDIDATE, graph, single, before))


def _baseline(bench: Bench, made: baselines.Baseline, key: str) -> Side:
    bench.out.at(f"capture of {made.name} {key}")
    calls = made.calls()
    graph = timing.capture(calls * (CALLS // SETS), bench.device)
    return Side(made.name, graph, timing.Replay(calls[:1], bench.device), lambda _: made.refill())


def _times(bench: Bench, clock: Clock, sides: list[Side], kernels: Sequence[Kernel], seed: int) -> None:
    key, repetitions = kernels[0].spec.label, int(bench.job["repetitions"])
    few = max(3, repetitions // 3)
    with bench.out.candidate(f"{key} timing", bench.device):
        samples = _column(clock, sides, repetitions, seed, CALLS, lambda s: s.graph)
    bench.out.record({"problem": key, "column": "graph", "samples": samples})
    for kernel in kernels:
        _keep(bench, kernel, repetitions - 1, seed)
    last = bench.rank == bench.ranks - 1
    for us in SKEWS:
        with bench.out.candidate(f"{key} skew {us}", bench.device):
            samples = _column(clock, sides, few, seed, 1, lambda s: s.single, us=us if last else 0)
        bench.out.record({"problem": key, "column": f"skew {us}", "samples": samples})
    if bench.device != "cpu":
        with bench.out.candidate(f"{key} busy", bench.device):
            samples = _column(clock, sides, few, seed, CALLS, lambda s: s.graph, busy=True)
        bench.out.record({"problem": key, "column": "busy", "samples": samples})


def _keep(bench: Bench, kernel: Kernel, repetition: int, seed: int) -> None:
    """The very outputs of the last timed replay, for the judge."""
    names = [t.name for t in kernel.spec.op.outputs(kernel.spec.problem)]
    kept = [{n: bench.out.tensor(each.buffers[n].tensor) for n in names} for each in kernel.sets]
    body = {"problem": kernel.spec.label, "timed": kept, "repetition": repetition, "rounds": CALLS // SETS}
    bench.out.record({**body, "seed": seed})


def _column(
    clock: Clock,
    sides: list[Side],
    repetitions: int,
    seed: int,
    calls: int,
    work: Callable[[Side], timing.Call],
    us: float = 0.0,
    busy: bool = False,
) -> Mapping[str, list[float]]:
    """us per call of each side on this rank; every rank draws the same order."""
    order, samples = random.Random(f"order/{seed}"), {side.name: list[float]() for side in sides}
    for repetition in range(-WARM_REPLAYS, repetitions):
        for side in order.sample(sides, len(sides)):
            side.before(max(repetition, 0))
            elapsed = clock.measure(work(side), us, busy) / calls
            if repetition >= 0:
                samples[side.name].append(elapsed)
    return samples
