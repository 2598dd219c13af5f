"""Tensor maps: what a tiled bulk tensor copy (TMA) reads and writes, byte by byte.

Covered: tiled mode, ranks 1 to 5, traversal strides, swizzles of 32, 64 and 128 bytes, out-of-bounds boxes, loads,
stores, reductions and prefetches. Where the documents are silent this is what an H200 did: rows of a swizzled box are
padded to the swizzle's width, a store clips rows at 16-byte atoms and not at elements, and some coordinates fault.
Not covered: im2col, gather4/scatter4, interleaved layouts, element types that a load converts (tf32 and the flushing
ones), packed 4- and 6-bit elements, and the swizzles with larger atoms (sm_100 and later).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kgen.gates.ptx.matrix.swizzle import ATOM, MASKS, swizzle

I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]
# element type -> bytes
SIZES = {
    "u8": 1,
    "u16": 2,
    "u32": 4,
    "s32": 4,
    "u64": 8,
    "s64": 8,
    "f16": 2,
    "f32": 4,
    "f64": 8,
    "bf16": 2,
}
# element type -> bits that a load writes for elements outside the tensor when NaN was asked for
NAN_FILL = {"f16": 0x7FF7, "bf16": 0x7FF7, "f32": 0x7FF77FF7, "f64": 0x7FF77FF77FF77FF7}
MAX_RANK = 5


@dataclass(frozen=True)
class TensorMap:
    """A tensor in global memory and the box that one copy moves. Dimension 0 is the innermost one.

    `base`: address; `sizes`: elements; `strides`: bytes between neighbours in dimensions 1 .. rank - 1; `box`: elements
    of the tensor that the box spans; `element_strides`: every how many of them is copied (that of dimension 0 is
    ignored, every element is); `swizzle`: 0, 32, 64 or 128 bytes; `nan_fill`: elements outside the tensor read as NaN
    instead of zero.
    """

    dtype: str
    base: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int = 0
    nan_fill: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError, one line, for a map that cuTensorMapEncodeTiled refuses or that is not covered."""
        if problem := _problem(self):
            raise ValueError(f"tensor map: {problem}")

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return SIZES[self.dtype]

    @property
    def steps(self) -> tuple[int, ...]:
        """Element strides as the hardware takes them."""
        return (1, *self.element_strides[1:])

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements that one copy moves in each dimension."""
        return tuple(-(-box // step) for box, step in zip(self.box, self.steps, strict=True))

    @property
    def transaction_bytes(self) -> int:
        """What a load adds to the transaction count of its mbarrier: elements outside the tensor count, padding not."""
        return math.prod(self.counts) * self.size

    @property
    def row_bytes(self) -> int:
        """Bytes from one row of the box (dimension 0) to the next in shared memory."""
        return max(self.counts[0] * self.size, self.swizzle)

    @property
    def fill(self) -> int:
        """Bits of an element outside the tensor, as a load writes it."""
        return NAN_FILL[self.dtype] if self.nan_fill else 0

    def faults(self, coordinates: NDArray[np.integer], store: bool) -> Mask:
        """Coordinates (copies, rank) that raise an illegal instruction instead of copying, (copies,).

        They are: dimension 0 not at a multiple of 16 bytes; any negative one of a store or reduction.
        """
        start = np.asarray(coordinates, np.int64)
        wrong: Mask = start[:, 0] * self.size % ATOM != 0
        return wrong | np.any(start < 0, axis=1) if store else wrong

    def global_addresses(self, coordinates: NDArray[np.integer], store: bool = False) -> tuple[I64, Mask]:
        """Coordinates (copies, rank), innermost first -> element addresses and in-bounds mask, (copies, elements).

        Elements come in the order of the box: dimension 0 runs fastest. Those outside are filled by a load and left
        out by a store; their addresses mean nothing. With `store` (reductions too) a row ends where its last 16-byte
        atom ends: up to 15 bytes behind the tensor's last column are written too.
        """
        start = np.asarray(coordinates, np.int64)
        addresses = np.full((len(start), 1), self.base, np.int64)
        inside = np.ones((len(start), 1), bool)
        ends = list(self.sizes)
        if store:
            ends[0] = -(-self.sizes[0] * self.size // ATOM) * ATOM // self.size
        pitches = (self.size, *self.strides)
        for axis, count in enumerate(self.counts):
            index = start[:, axis, None] + np.arange(count) * self.steps[axis]
            valid = (index >= 0) & (index < ends[axis])
            place = np.where(valid, index, 0) * pitches[axis]
            addresses = (place[:, :, None] + addresses[:, None, :]).reshape(len(start), -1)
            inside = (valid[:, :, None] & inside[:, None, :]).reshape(len(start), -1)
        return addresses, inside

    def shared_addresses(self, start: NDArray[np.integer]) -> I64:
        """Shared-memory addresses of the box (copies,) -> element addresses (copies, elements), swizzled.

        `start` must be a multiple of 128 bytes. The swizzle goes by the address, not by the distance to `start`.
        """
        column = np.arange(self.counts[0], dtype=np.int64) * self.size
        row = np.arange(math.prod(self.counts[1:]), dtype=np.int64) * self.row_bytes
        offsets = (row[:, None] + column).reshape(-1)
        return swizzle(np.asarray(start, np.int64)[:, None] + offsets, self.swizzle)


def _problem(m: TensorMap) -> str:
    if m.dtype not in SIZES:
        return f"unknown element type {m.dtype!r}"
    if not 1 <= m.rank <= MAX_RANK or not len(m.box) == len(m.element_strides) == m.rank == len(m.strides) + 1:
        return "sizes, box and element strides must have 1 to 5 entries, and the strides one less"
    if m.swizzle not in MASKS:
        return f"a swizzle of {m.swizzle} bytes (0, 32, 64 and 128 exist)"
    if m.base % ATOM or not 0 <= m.base < 1 << 57:
        return f"the address {m.base:#x} is not a multiple of 16 below 2**57"
    if any(s % ATOM or not 0 <= s < 1 << 40 for s in m.strides):
        return f"strides {m.strides} are not multiples of 16 below 2**40"
    if not all(1 <= n <= 1 << 32 for n in m.sizes) or not all(1 <= n <= 256 for n in m.box):
        return f"sizes {m.sizes} outside 1 .. 2**32 or box {m.box} outside 1 .. 256"
    if not all(1 <= n <= 8 for n in m.element_strides):
        return f"element strides {m.element_strides} outside 1 .. 8"
    inner = m.box[0] * m.size
    if inner % ATOM or (m.swizzle and inner > m.swizzle):
        return f"{inner} bytes of the box in dimension 0: a multiple of 16 is needed, and no more than the swizzle"
    if m.nan_fill and m.dtype not in NAN_FILL:
        return f"NaN fill of {m.dtype} elements"
    return ""
