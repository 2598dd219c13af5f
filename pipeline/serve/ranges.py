"""Names in a profiler's timeline (NVTX): what kgen ran, around its launches. Nothing where there is no CUDA.

    with named("kgen moe_shared/nano/t8/sm_90a"): kernel(values)

A range lies on the thread that launches. Inside a captured CUDA graph it shows where the graph was captured. Replays
run no Python and carry no ranges: `nsys profile --cuda-graph-trace=node` shows their kernels by name instead.
"""

import contextlib
import functools
from collections.abc import Iterator

import torch
from torch.cuda import nvtx


@functools.cache
def _available() -> bool:
    """Asked at the first range, and not at import: a server may not touch CUDA before it forks."""
    if not torch.cuda.is_available():
        return False
    try:
        nvtx.mark("kgen")  # type: ignore[no-untyped-call]
    except RuntimeError:  # torch is built without NVTX
        return False
    return True


@contextlib.contextmanager
def named(text: str) -> Iterator[None]:
    if not _available():
        yield
        return
    nvtx.range_push(text)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        nvtx.range_pop()  # type: ignore[no-untyped-call]
