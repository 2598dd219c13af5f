"""Memory that lanes read and write by vectors of offsets: named global tensors, shared memory, local memory.

A tensor's address says which one it is: tensor i starts at (i + 1) << 40, so that an access near one is named after it.
Not covered: what an access means to other threads (shadow.py) and which faults are reported (access.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

ADDRESS_BITS = 40
SHARED_START = 1024  # shared addresses below belong to the system, as on the hardware
RANK_BITS = 24  # a shared::cluster address: (rank + 1) << 24 | address within that CTA
SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW = 1 << 62, 1 << 61, 1 << 60  # of generic addresses
WRITABLE = ("out", "state", "workspace")
WORD: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass
class Block:
    """Bytes that are gathered and scattered at a width. `data` is uint8, a multiple of 16 long."""

    data: Array

    def view(self, width: int) -> Array:
        """Elements of `width` bytes; of more than 8: rows of 32-bit words."""
        if width <= 8:
            return self.data.view(WORD[width])
        rows = self.data[: len(self.data) // width * width]
        return rows.view(np.uint32).reshape(-1, width // 4)

    def load(self, offsets: Array, width: int) -> Array:
        """(n,) words or (n, width / 4) uint32 rows at byte offsets that are multiples of `width`."""
        return np.take(self.view(width), offsets // width, axis=0)

    def store(self, offsets: Array, width: int, values: Array) -> None:
        self.view(width)[offsets // width] = values


def padded(data: Array, multiple: int = 32) -> Array:
    """The same bytes, copied only when their number is not a multiple."""
    if len(data) % multiple == 0 and data.ctypes.data % 16 == 0 and len(data):
        return data
    out = np.zeros(max(-(-len(data) // multiple), 1) * multiple, np.uint8)
    out[: len(data)] = data
    return out


@dataclass
class Tensor(Block):
    """A named array in global memory. `init`: a byte flag per byte where some are not initialised, else None."""

    name: str = ""
    role: str = "in"
    itemsize: int = 1
    shape: tuple[int, ...] = ()
    nbytes: int = 0
    base: int = 0
    init: Array | None = None
    borrowed: bool = True  # `data` may be the caller's: copied before the first write
    strides: tuple[int, ...] = ()  # in elements; () where compact

    @property
    def writable(self) -> bool:
        return self.role in WRITABLE

    def own(self) -> None:
        if self.borrowed:
            self.data, self.borrowed = self.data.copy(), False

    def index(self, offset: int) -> tuple[int, ...]:
        """Index of the element at a byte offset; of one dimension where the offset is outside or in a gap."""
        element = offset // self.itemsize
        strides = self.strides or tuple(math.prod(self.shape[i + 1 :]) for i in range(len(self.shape)))
        found = []
        rest = element
        for size, stride in zip(self.shape, strides, strict=True):
            at = rest // stride if stride else 0
            if not 0 <= at < size:
                return (element,)
            found.append(at)
            rest -= at * stride
        return tuple(found) if found and not rest else (element,)


@dataclass
class Space:
    """Global memory: tensors by number."""

    tensors: list[Tensor] = field(default_factory=list)

    def add(self, tensor: Tensor) -> Tensor:
        tensor.base = (len(self.tensors) + 1) << ADDRESS_BITS
        self.tensors.append(tensor)
        return tensor

    def named(self, name: str) -> Tensor | None:
        return next((t for t in self.tensors if t.name == name), None)

    def at(self, address: int) -> tuple[Tensor | None, int]:
        """The tensor that an address belongs to or lies near, and the byte offset from its start."""
        number = (address + (1 << (ADDRESS_BITS - 1))) >> ADDRESS_BITS
        if 1 <= number <= len(self.tensors):
            return self.tensors[number - 1], address - (number << ADDRESS_BITS)
        below = address >> ADDRESS_BITS
        if 1 <= below <= len(self.tensors):
            return self.tensors[below - 1], address - (below << ADDRESS_BITS)
        return None, address

    def number(self, addresses: Array) -> Array:
        """Index of the tensor of each address, rounded to the nearest start; wrong ones are out of range."""
        return ((addresses + np.uint64(1 << (ADDRESS_BITS - 1))) >> np.uint64(ADDRESS_BITS)).astype(np.int64) - 1

    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors)


def tensor(
    name: str,
    data: Array,
    role: str,
    shape: Sequence[int],
    itemsize: int,
    initialised: bool,
    strides: Sequence[int] = (),
) -> Tensor:
    """A tensor over the caller's bytes (uint8, flat); they are never written."""
    size = len(data)
    init = None if initialised else np.zeros(len(padded(data)), np.uint8)
    return Tensor(padded(data), name, role, itemsize, tuple(shape), size, 0, init, True, tuple(strides))
