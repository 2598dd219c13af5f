"""The 64-bit matrix descriptor of wgmma: which bytes of shared memory an operand is.

Bits 0-13 start address, 16-29 leading offset, 32-45 stride offset (all in units of 16 bytes), 49-51 base offset, 62-63
swizzle (0 none, 1 128 B, 2 64 B, 3 32 B). The operand is a grid of 16-byte atoms, s = bytes of swizzle / 16:

    K-major   atom of (row r, K atom c): none: (r % 8) 16 + (r / 8) stride + c leading
                                         else: (r % 8) 16 s + (r / 8) stride + 16 c
    MN-major  atom of (row atom m, k):   none: (k % 8) 16 + (k / 8) leading + m stride
                                         else: (k % 8) 16 s + (k / 8) stride + (m % s) 16 + (m / s) leading

after which the address is swizzled, the pattern starting at the 128-byte line that the base offset names. All of this
was compared with an H200. Not covered: a base offset with any swizzle but 128 bytes, and bits that are not used.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kgen.gates.ptx.matrix.swizzle import ATOM, swizzle

I64 = NDArray[np.int64]
SWIZZLES = (0, 128, 64, 32)
UNUSED = ~((0x3FFF) | (0x3FFF << 16) | (0x3FFF << 32) | (7 << 49) | (3 << 62)) & ((1 << 64) - 1)


@dataclass(frozen=True)
class Descriptor:
    """A decoded descriptor; offsets and the start in bytes, `swizzle` 0, 32, 64 or 128 bytes."""

    start: int
    leading: int
    stride: int
    base_offset: int
    swizzle: int

    def problem(self) -> str:
        """One line when this module cannot say which bytes are meant, else ""."""
        if self.base_offset and self.swizzle != 128:
            return f"a matrix descriptor with base offset {self.base_offset} and a swizzle of {self.swizzle} bytes"
        return ""

    def atoms(self, rows: int, row_bytes: int, trans: bool, size: int) -> I64:
        """Byte address of each 16-byte atom, swizzled.

        K-major (`trans` false): (rows, row_bytes / 16), `row_bytes` being the bytes of K.
        MN-major: (K, rows * size / 16) with K = row_bytes / size, `size` being the bytes of an element.
        """
        span = max(self.swizzle, ATOM)
        if trans:
            k, m = np.arange(row_bytes // size)[:, None], np.arange(rows * size // ATOM)[None, :]
            if self.swizzle:
                offsets = k % 8 * span + k // 8 * self.stride
                offsets = offsets + m % (span // ATOM) * ATOM + m // (span // ATOM) * self.leading
            else:
                offsets = k % 8 * ATOM + k // 8 * self.leading + m * self.stride
        else:
            r, c = np.arange(rows)[:, None], np.arange(row_bytes // ATOM)[None, :]
            across = ATOM if self.swizzle else self.leading
            offsets = r % 8 * span + r // 8 * self.stride + c * across
        return swizzle(self.start + offsets, self.swizzle, self.base_offset)


def decode(bits: int) -> Descriptor | None:
    """A descriptor register -> its fields; None when bits are set that the format does not use."""
    if bits & UNUSED:
        return None
    return Descriptor(
        start=(bits & 0x3FFF) << 4,
        leading=(bits >> 16 & 0x3FFF) << 4,
        stride=(bits >> 32 & 0x3FFF) << 4,
        base_offset=bits >> 49 & 7,
        swizzle=SWIZZLES[bits >> 62],
    )
