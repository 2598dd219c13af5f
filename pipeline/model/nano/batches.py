"""Batches on a device, and a feed that draws them ahead of time in worker processes."""

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from kgen.model.nano.packing import Job, Packed, pack

AHEAD = 3  # batches per worker that are drawn or waiting


@dataclass(frozen=True)
class Batch:
    """ids int64 [rows, length]; positions (flat), targets, owners int64 [answer tokens]."""

    ids: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    owners: torch.Tensor


def to_device(packed: Packed, device: str) -> Batch:
    def place(raw: bytes, dtype: torch.dtype) -> torch.Tensor:
        host = torch.frombuffer(bytearray(raw), dtype=dtype)
        host = host.pin_memory() if device.startswith("cuda") else host
        return host.to(device, non_blocking=True).long()

    return Batch(
        place(packed.ids, torch.int16).view(packed.rows, packed.length),
        place(packed.positions, torch.int32),
        place(packed.targets, torch.int16),
        place(packed.owners, torch.int32),
    )


@contextmanager
def feed(workers: int, jobs: Callable[[], Job]) -> Iterator[Callable[[], Packed]]:
    """A function that gives the next batch of `jobs()`; with 0 workers each is drawn when it is asked for.

    Start it before CUDA is used: the workers are forks.
    """
    if workers == 0:
        yield lambda: pack(jobs())
        return
    waiting: deque[Any] = deque()
    with multiprocessing.get_context("fork").Pool(workers) as pool:

        def following() -> Packed:
            while len(waiting) < AHEAD * workers:
                waiting.append(pool.apply_async(pack, (jobs(),)))
            packed: Packed = waiting.popleft().get()
            return packed

        yield following
