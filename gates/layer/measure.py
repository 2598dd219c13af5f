"""One point: draw the sets, build all sides, compare each with float64, then time them interleaved in CUDA graphs.

A graph holds whole rotations of layers with weights and states of their own, so that L2 holds none of a layer's bytes
when its turn comes. Every call has its running sum in a buffer of its own; before each replay, off the clock, sums and
recurrent states are put back. What a graph wrote last is compared with an eager step afterwards.

Where the time goes is read from the chain itself: it is cut behind one op after the other, on one stream, and each op
is given what the chain takes longer for it. Not covered: bounds of single ops (their own sweep has those).
"""

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from kgen.contract.op import Registry
from kgen.gates import timing
from kgen.gates.environment import device_arch, environment
from kgen.gates.layer import check
from kgen.gates.layer.bench import Bench, able, build, new_bench
from kgen.gates.layer.chain import cuda
from kgen.gates.layer.check import Built, Outputs, Refused
from kgen.gates.layer.columns import (
    CHAIN,
    COMPILED,
    NO_OVERLAP,
    NO_PREFETCH,
    PREFETCH,
    UNFUSED,
    WITHOUT,
    Column,
    Cut,
    Promoted,
    columns,
)
from kgen.gates.layer.points import Job
from kgen.gates.layer.profile import kernels
from kgen.gates.layer.record import Kernel, Measured, Part, Side, Switch
from kgen.gates.rates import rates
from kgen.gates.routing import Recorded
from kgen.gates.statistics import median, ratio_interval
from kgen.model.decoder.swap import STOCK, Seated

CUT_REPETITIONS = 20  # of the chains that are cut: medians of a share, not of a claim
COUNTED = (UNFUSED, COMPILED, CHAIN)  # sides whose launches are profiled: a second each
PLACES = 3  # of a kept sample, in µs
AHEAD_CYCLES = (
    2_000_000  # 1 ms of spinning before a replay: a graph of forks takes the host longer than the clock's own
)
Say = Callable[[str], None]


def measure(
    job: Job,
    registry: Registry,
    say: Say = lambda line: None,
    chosen: Sequence[Column] = (),
    trace: Recorded | None = None,
) -> Measured:
    """Raises Refused for a side that is not right, ValueError (one line) for a point that does not exist.

    `chosen`: other columns than the job's, the first of them unfused. `trace`: of routing, where the job names one.
    """
    started = time.monotonic()
    job = replace(job, arch=job.arch or device_arch())
    with torch.no_grad():
        bench = new_bench(job, registry, trace)
        bench.job, left_out = able(bench)
        build(bench, chosen or columns(bench.job, registry))
        if job.each and not chosen:
            build(bench, [c for c in columns(bench.job, registry, _serving(bench)) if c.name not in bench.sides])
        say(f"{job.point.key}: {len(bench.sets)} sets, {len(bench.sides)} sides")
        ratios, worst, eager = judge(bench)
        say(f"{job.point.key}: right; timing")
        samples = _timed(bench, eager)
        parts = _parts(bench)
        timelines = _timelines(bench)
    sides = tuple(_side(name, times, timelines.get(name), job.seed) for name, times in samples.items())
    here = environment()
    limits = rates(here.gpu)
    rate = limits.read if limits is not None and job.device != "cpu" else 0.0
    moved = sum(p.bytes for p in parts)
    return Measured(
        job=job,
        bytes=moved,
        floor_us=moved / rate * 1e6 if rate else 0.0,
        read_rate=rate,
        experts=sum(bench.experts) / len(bench.experts),
        sides=sides,
        parts=tuple(replace(p, floor_us=p.bytes / rate * 1e6 if rate else 0.0) for p in parts),
        switches=_switches(samples, job.seed),
        timeline=timelines.get(CHAIN) or (),
        ratios=ratios,
        worst=worst,
        left_out=left_out,
        sets=len(bench.sets),
        calls=bench.calls,
        timer=bench.clock.timer("graph"),
        environment=here,
        seconds=round(time.monotonic() - started, 1),
    )


def _seated(built: Built) -> dict[str, Seated]:
    inner = built.tap.inner
    return {s.seat: s for s in inner.swap.seated} if isinstance(inner, Promoted) else {}


def _serving(bench: Bench) -> dict[str, int]:
    """Ops of the chain that have a promoted kernel, with their seats."""
    found: dict[str, int] = {}
    for seated in _seated(bench.sides[CHAIN][0]).values():
        if seated.path != STOCK:
            op = seated.problem.split("/", 1)[0]
            found[op] = found.get(op, 0) + 1
    return found


Ratios = dict[str, dict[str, float]]


def judge(bench: Bench) -> tuple[Ratios, Ratios, dict[str, list[torch.Tensor]]]:
    """Ratios of medians and of the worst rows, by side and output; and each side's last delta in a graph's calls, by
    set. Raises Refused."""
    got: dict[str, list[Outputs]] = {name: [] for name in bench.sides}
    eager: dict[str, list[torch.Tensor]] = {name: [] for name in bench.sides}
    want: list[Outputs] = []
    for number, drawn in enumerate(bench.sets):
        ids: torch.Tensor | None = None
        for name, side in bench.sides.items():  # the unfused one first
            eager[name].append(check.after(side[number], drawn, bench.calls // len(bench.sets)))
            check.step(side[number], drawn)
            if breaches := [b for h in side[number].tap.heard for b in h.breaches]:
                raise Refused(f"{name}: the router breaks a rule of its op: {breaches[0]}")
            if ids is None:
                ids = check.chosen(side[number])
                bench.experts.append(len(set(ids.flatten().tolist())))
            got[name].append(check.step(side[number], drawn, ids))
        assert ids is not None
        _unchanged(bench, number, ids, got)
        want.append(check.exact(drawn, bench.registry, bench.job.arch, ids))
    far = {name: check.distances(outputs, want) for name, outputs in got.items()}
    ratios = {name: check.judged(name, d, far[UNFUSED]) for name, d in far.items()}
    return ratios, {name: check.worst_rows(d, far[UNFUSED]) for name, d in far.items()}, eager


def _unchanged(bench: Bench, number: int, ids: torch.Tensor, got: Mapping[str, list[Outputs]]) -> None:
    """What is pulled into L2 changes nothing. Raises Refused."""
    pulling = [n for n in got if n.startswith((CHAIN, PREFETCH)) and bench.sides[n][number].pulls]
    if pulling:
        plain = NO_PREFETCH if NO_PREFETCH in got else CHAIN
        again = check.step(bench.sides[plain][number], bench.sets[number], ids)
        for name in pulling:
            check.unchanged(name, got[name][number], got[plain][number], again)


def _calls(
    bench: Bench, side: Sequence[Built], keep: list[torch.Tensor], cut: int | None = None
) -> tuple[list[timing.Call], Callable[[int], None]]:
    """The calls of one graph in order, each `cut` behind so many seats, and what puts sums and states back.

    `keep` gets each call's delta.
    """
    count = len(bench.sets)
    sums = [bench.sets[k % count].prefix.clone() for k in range(bench.calls)]

    def call(k: int) -> None:
        drawn, built = bench.sets[k % count], side[k % count]
        built.tap.start()
        built.tap.cut = cut
        with contextlib.suppress(Cut):
            keep[k] = built.layer(drawn.residual(sums[k]), drawn.state)

    def restore(_: int) -> None:
        for k, own in enumerate(sums):
            own.copy_(bench.sets[k % count].prefix)
        for drawn in bench.sets:
            drawn.restore()
        if bench.job.device != "cpu":
            cuda._sleep(AHEAD_CYCLES)

    keep[:] = [bench.sets[0].delta] * bench.calls
    return [_bound(call, k) for k in range(bench.calls)], restore


def _bound(call: Callable[[int], None], k: int) -> timing.Call:
    return lambda: call(k)


def _ends(bench: Bench, side: Sequence[Built]) -> list[timing.Call]:
    """What ends a capture of this side."""
    return [bench.puller.join] if side[0].pulls and bench.puller is not None and bench.pulling else []


def _timelines(bench: Bench) -> dict[str, tuple[Kernel, ...] | None]:
    """What one call launches, of the sides that are looked at most. Behind the clock: a profiler leaves traces."""
    device, found = bench.job.device, dict[str, tuple[Kernel, ...] | None]()
    for name in COUNTED:
        if side := bench.sides.get(name):
            calls, _ = _calls(bench, side, [])
            found[name] = kernels(timing.capture([calls[0], *_ends(bench, side)], device), device)
    return found


def _timed(bench: Bench, eager: Mapping[str, list[torch.Tensor]]) -> dict[str, list[float]]:
    """Samples by side. Raises Refused."""
    device, sides, left = bench.job.device, [], {}
    for name, built in bench.sides.items():
        left[name] = [bench.sets[0].delta]
        calls, restore = _calls(bench, built, left[name])
        replay = timing.capture([*calls, *_ends(bench, built)], device)
        sides.append(timing.Side(name, replay, len(calls), before=restore))
    samples = timing.interleave(sides, bench.job.repetitions, bench.clock, random.Random(bench.job.seed))
    for side in sides:
        side.before(0)
        side.work()
        for number in range(len(bench.sets)):
            last = bench.calls - len(bench.sets) + number
            check.same(side.name, left[side.name][last], eager[side.name][number])
    return samples


def _parts(bench: Bench) -> tuple[Part, ...]:
    """What the chain takes longer for each op, seat by seat, on one stream and with nothing pulled into L2."""
    built, device, bench.pulling = bench.sides[NO_OVERLAP], bench.job.device, False
    rest = []
    for side, drawn in zip(built, bench.sets, strict=True):
        check.step(side, drawn)
        rest.append(side.tap.heard.copy())
    heard, sides = rest[0], []
    for behind in range(1, len(heard) + 1):
        calls, restore = _calls(bench, built, [], behind)
        sides.append(timing.Side(str(behind), timing.capture(calls, device), len(calls), before=restore))
    times = timing.interleave(sides, min(CUT_REPETITIONS, bench.job.repetitions), bench.clock, random.Random(1))
    for side in built:
        side.tap.cut = None
    bench.pulling = True
    upto = [0.0, *(median(times[str(n)]) for n in range(1, len(heard) + 1))]
    seated = _seated(built[0])
    found = []
    for number, h in enumerate(heard):
        who = seated.get(h.seat, Seated(h.seat, h.problem.key, STOCK))
        moved = round(sum(each[number].bytes for each in rest) / len(rest))
        us = round(upto[number + 1] - upto[number], PLACES)
        found.append(Part(h.seat, h.op, who.path, who.candidate, who.reason, us, moved, 0.0))
    return tuple(found)


def _side(name: str, samples: Sequence[float], timeline: tuple[Kernel, ...] | None, seed: int) -> Side:
    us, low, high = ratio_interval(samples, [1.0] * len(samples), seed)
    launches = -1 if timeline is None else len(timeline)
    return Side(name, us, low, high, launches, tuple(round(s, PLACES) for s in samples))


def _switches(samples: Mapping[str, list[float]], seed: int) -> tuple[Switch, ...]:
    """Each technique off in turn, over the whole chain in the same repetitions."""
    if CHAIN not in samples:
        return ()
    whole = samples[CHAIN]
    found = []
    for name, times in samples.items():
        if name.startswith(("no_", WITHOUT, PREFETCH)):
            ratio, low, high = ratio_interval(times, whole, seed)
            found.append(Switch(name, round(median(times) - median(whole), PLACES), ratio, low, high))
    return tuple(found)
