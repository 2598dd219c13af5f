"""Accesses of some lanes to one block of memory."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx.memory import ADDRESS_BITS, RANK_BITS, SHARED_START, Block, Space, Tensor
from kgen.gates.ptx.shadow import Region

Array = npt.NDArray[Any]


@dataclass
class Target:
    """Accesses of some lanes (`index`) to one block of bytes. `at`: positions in the group's vector, None for all."""

    block: Block
    region: Region | None
    tensor: Tensor | None
    offsets: Array
    index: Array
    addresses: Array
    at: Array | None
    stride: int = 0  # of shared and local memory: bytes of one CTA or lane

    def name(self) -> str:
        return self.tensor.name if self.tensor else "shared" if self.region else "local"

    def keep(self, chosen: Array) -> "Target":
        """Those at positions `chosen` (a mask or numbers) alone."""
        at = np.arange(len(self.offsets)) if self.at is None else self.at
        parts = (self.offsets[chosen], self.index[chosen], self.addresses[chosen], at[chosen])
        return Target(self.block, self.region, self.tensor, *parts, self.stride)


def place(space: Space, target: Target, position: int) -> tuple[str, tuple[int, ...], int]:
    """Tensor name, element index and address of one access, for a finding."""
    address = int(target.addresses[position])
    if target.tensor is not None:
        return target.tensor.name, target.tensor.index(int(target.offsets[position])), address
    if target.region is not None:
        return "shared", ((address & ((1 << RANK_BITS) - 1)) - SHARED_START,), address
    tensor, offset = space.at(address) if address >> ADDRESS_BITS else (None, 0)
    return (tensor.name, tensor.index(offset), address) if tensor else ("", (), address)
