"""What the device ran in one replay: kernels with start, duration and stream, as torch's profiler saw them.

A profiler may lose records, mostly in its first round: rounds go on until two in a row show the same kernels. Not
covered: a CPU, where nothing is launched; copies and fills are counted as launches, for they are.
"""

from typing import Any

import torch

from kgen.gates.layer.record import Kernel
from kgen.gates.timing import Call

ROUNDS = 4


def kernels(replay: Call, device: str) -> tuple[Kernel, ...] | None:
    """In order of their start; None on a CPU, or where no two rounds agree."""
    if device == "cpu":
        return None
    found = [_round(replay)]
    while len(found) < ROUNDS:
        found.append(_round(replay))
        if found[-1] and sorted(k.name for k in found[-1]) == sorted(k.name for k in found[-2]):
            return found[-1]
    return None


def _round(replay: Call) -> tuple[Kernel, ...]:
    seen: list[Any] = []

    def collect(profiler: Any) -> None:
        seen.extend(e for e in profiler.events() if e.device_type.name == "CUDA" and not e.is_user_annotation)

    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    cycle = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)  # a cold profiler misses kernels
    with torch.profiler.profile(activities=kinds, schedule=cycle, on_trace_ready=collect) as profiler:
        for _ in range(2):
            replay()
            torch.cuda.synchronize()
            profiler.step()
    seen.sort(key=lambda e: e.time_range.start)
    first = seen[0].time_range.start if seen else 0
    return tuple(
        Kernel(e.name[:120], round(e.time_range.start - first, 2), round(e.time_range.elapsed_us(), 2), _stream(e))
        for e in seen
    )


def _stream(event: Any) -> int:
    return int(getattr(event, "device_resource_id", 0))
