"""The XOR swizzles of shared memory that TMA and wgmma share.

A swizzle of 32, 64 or 128 bytes permutes the 16-byte atoms of each such stretch by the number of the 128-byte line:
bits 4.. of the address are XORed with bits 7.. (1, 2 or 3 bits). It is a function of the shared-memory address, so the
pattern repeats every 256, 512 or 1024 bytes of the address space, whatever the tile's start.
"""

import numpy as np
from numpy.typing import NDArray

ATOM = 16
MASKS = {0: 0, 32: 0x10, 64: 0x30, 128: 0x70}  # bytes -> bits of the address that change


def swizzle(addresses: NDArray[np.int64], width: int, first_line: int = 0) -> NDArray[np.int64]:
    """Shared-memory byte addresses -> where the hardware puts those bytes. `width`: 0 (none), 32, 64 or 128 bytes.

    `first_line`: number of the 128-byte line, modulo 8, that the pattern starts at.
    """
    lines = (addresses >> 7) - first_line
    return addresses ^ (lines << 4 & MASKS[width])
