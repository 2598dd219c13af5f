"""The one timing module: every time that kgen reports is taken here.

    replay = capture(calls, device)      a CUDA graph of these calls (on CPU: the calls themselves)
    times = interleave(sides, reps, ...) paired samples, sides in random order within each repetition
    sets_needed(touched, l2_bytes, ...)  how many buffer sets make a rotation that L2 cannot hold

Columns (TIMERS names the timer of each): `graph` one replay of many independent calls over rotating sets, `chained`
the same with each call reading what the call before wrote, `cold` one call after the L2 was flushed. All three are
event pairs on the device; the host is kept ahead by a spinning kernel in front of the first event, so that launch
gaps of the host are not timed. An event pair costs 4-5 µs by itself: it is spread over a graph's calls, and is part
of every cold sample, for all sides alike.
Not covered: clocks (read by environment.py), other processes on the GPU.
"""

import ctypes
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[], object]
cuda: Any = torch.cuda  # parts of it carry no types

TIMERS: Mapping[str, str] = {
    "graph": "CUDA events round one graph replay, divided by its calls; rotating buffer sets",
    "chained": "CUDA events round one graph replay, divided by its calls; each reads the one before",
    "cold": "CUDA events round one call after an L2 flush (includes 4-5 us of the event pair)",
}
CPU_TIMER = "perf_counter round the plain calls (no GPU: not evidence)"
L2_TIMES = 3  # a rotation moves at least so many times the L2
MIN_SETS = 3
MAX_SETS = 64
ROTATION_BYTES = 16 << 30  # of memory for one contestant's sets: there may be three contestants, and a set being drawn
MIN_CALLS = 24  # of a graph: spreads the event pair and the graph launch
FLUSH_TIMES = 4  # bytes read by a flush, in L2 sizes
SETTLE = 3  # repetitions before the first kept one
WARM_SECONDS = 0.05  # of work before that: clocks rise
LEAD_CYCLES = 600_000  # about 0.3 ms of spinning while the host queues what is timed
CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 0x06


def sets_needed(touched: int, l2_bytes: int, allocated: int = 0) -> int:
    """Sets of a rotation whose calls touch L2_TIMES the L2 before they come back to the first set.

    `touched`: bytes that one call reads or writes; `allocated`: those that its set takes, which may be many times more.
    At most MAX_SETS (what is smaller stays warm), and no more than ROTATION_BYTES hold, but at least one.
    """
    wanted = max(MIN_SETS, min(MAX_SETS, -(-L2_TIMES * l2_bytes // max(1, touched))))
    return max(1, min(wanted, ROTATION_BYTES // allocated)) if allocated else wanted


def calls_for(sets: int) -> int:
    """Calls of one graph: whole rotations, at least MIN_CALLS."""
    return sets * -(-MIN_CALLS // sets)


def l2_bytes(device: str) -> int:
    return int(torch.cuda.get_device_properties(device).L2_cache_size) if device != "cpu" else 0


def refuse_persisting_l2(device: str) -> bool:
    """Leave no room for persisting L2 lines, which a flush would not evict. True when the driver agreed.

    Needs this thread's CUDA context: call it after something was allocated.
    """
    if device == "cpu":
        return False
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    limited = driver.cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, ctypes.c_size_t(0)) == 0
    return bool(driver.cuCtxResetPersistingL2Cache() == 0 and limited)


class Replay:
    """These calls in order: a CUDA graph on a GPU, the calls themselves on CPU. Keeps what they run on alive."""

    def __init__(self, calls: Sequence[Call], device: str) -> None:
        self.calls = list(calls)
        self.graph: Any = cuda.CUDAGraph() if device != "cpu" else None
        if self.graph is not None:
            cuda.synchronize()
            with cuda.graph(self.graph, capture_error_mode="thread_local"):
                self._run()

    def _run(self) -> None:
        for call in self.calls:
            call()

    def __call__(self) -> None:
        if self.graph is None:
            self._run()
        else:
            self.graph.replay()


def capture(calls: Sequence[Call], device: str) -> Replay:
    """A replay of these calls. Each distinct call runs once before, so that nothing loads during the capture."""
    for call in dict.fromkeys(calls):
        call()
    return Replay(calls, device)


class Clock:
    """Times one piece of queued work on the device, in µs."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.on_gpu = device != "cpu"
        if self.on_gpu:
            self._first, self._last = (cuda.Event(enable_timing=True) for _ in range(2))
            size = max(FLUSH_TIMES * l2_bytes(device), 1 << 26)
            self._dirty = torch.zeros(size // 4, dtype=torch.float32, device=device)
            self._clean = torch.zeros(size // 4, dtype=torch.float32, device=device)

    def timer(self, column: str) -> str:
        return TIMERS[column] if self.on_gpu else CPU_TIMER

    def flush(self) -> None:
        """Evict everything from L2; the last pass reads, so that no write-back is left to the timed call."""
        if self.on_gpu:
            self._dirty.zero_()
            self._clean.sum()

    def warm(self, works: Sequence[Call]) -> None:
        end = time.monotonic() + (WARM_SECONDS if self.on_gpu else 0.0)
        while time.monotonic() < end:
            for work in works:
                work()
            torch.cuda.synchronize()

    def measure(self, work: Call) -> float:
        if not self.on_gpu:
            started = time.perf_counter_ns()
            work()
            return (time.perf_counter_ns() - started) / 1e3
        cuda._sleep(LEAD_CYCLES)
        self._first.record()
        work()
        self._last.record()
        self._last.synchronize()
        return float(self._first.elapsed_time(self._last)) * 1e3


def nothing(repetition: int) -> None:
    """The default of a side's hooks."""


@dataclass(frozen=True)
class Side:
    """One contestant. `before` refills inputs and `after` saves outputs, both off the clock."""

    name: str
    work: Call
    calls: int
    before: Callable[[int], None] = nothing
    after: Callable[[int], None] = nothing


def interleave(
    sides: Sequence[Side], repetitions: int, clock: Clock, order: random.Random, flush: bool = False
) -> dict[str, list[float]]:
    """µs per call of each side, sample i of all sides taken in the same repetition. `before`/`after` get i >= 0;
    the settling repetitions pass -1."""
    samples: dict[str, list[float]] = {side.name: [] for side in sides}
    clock.warm([side.work for side in sides])
    for repetition in range(-SETTLE, repetitions):
        number = max(repetition, -1)
        for side in order.sample(list(sides), len(sides)):
            side.before(number)
            if flush:
                clock.flush()
            elapsed = clock.measure(side.work) / side.calls
            if number >= 0:
                samples[side.name].append(elapsed)
                side.after(number)
    return samples
