"""The 128 bytes of a CUtensorMap, as a launcher passes them to a kernel.

No document gives their layout. The one below is what cuTensorMapEncodeTiled (driver 580) wrote for 279 descriptions
that covered every field, and what the launchers of CuTe DSL 4.8 write, which make the bytes without calling the driver:

    0    u64  address of the tensor
    8    u32  bits 4-6 rank - 1, 7-10 format, 11-12 interleave, 13-14 swizzle, 15 NaN fill, 16 tf32, 17-18 L2 promotion
    12   4 u32  strides of dimensions 1 .. 4, in units of 16 bytes, low 32 bits
    28   u16  their upper bits, 4 each
    32   5 u32  sizes - 1
    52   u16  element strides - 1, 3 bits each
    55   5 u8   box - 1
    64   the driver's own notes; a launcher of CuTe DSL leaves whatever its stack held

Not covered: interleaved layouts, im2col maps, elements that a load converts, and every bit whose meaning is not known:
ValueError names it.
"""

import struct

from kgen.gates.ptx.matrix.tma import TensorMap

BYTES = 128
HEAD = 64  # bytes that mean something
FORMATS = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32.ftz", "f64", "bf16")
SWIZZLES = (0, 32, 64, 128)
# Bits of the u32 at 8: those above, and 1 and 21, which the compiler sets (caching, it seems: the copies are the same).
KNOWN = 0x7FFF0 | 1 << 1 | 1 << 21


def decode(data: bytes) -> TensorMap:
    """The bytes of a launch argument -> the tensor map. ValueError, one line, when they cannot be read reliably."""
    if len(data) != BYTES:
        raise ValueError(f"tensor map: {BYTES} bytes expected, {len(data)} given")
    base, word, *numbers = struct.unpack_from("<QI4IH", data)
    rank, dtype = (word >> 4 & 7) + 1, _format(word)
    if word & ~KNOWN or rank > 5:
        raise ValueError(f"tensor map: unknown bits {word & ~KNOWN:#x} or rank {rank} in its description")
    if word >> 11 & 3:
        raise ValueError("tensor map: interleaved layouts are not covered")
    strides = tuple(16 * (low | (numbers[4] >> 4 * i & 15) << 32) for i, low in enumerate(numbers[:4]))
    sizes = tuple(n + 1 for n in struct.unpack_from("<5I", data, 32))
    steps = struct.unpack_from("<H", data, 52)[0]
    box = tuple(n + 1 for n in data[55:60])
    if any(data[30:32]) or data[54] or any(data[60:64]) or steps >> 15:
        raise ValueError("tensor map: bytes are set whose meaning is not known")
    element_strides = tuple((steps >> 3 * i & 7) + 1 for i in range(5))
    if any(strides[rank - 1 :]) or {*sizes[rank:], *box[rank:], *element_strides[rank:]} - {1}:
        raise ValueError(f"tensor map: dimensions beyond its rank of {rank} are described")
    return TensorMap(
        dtype=dtype,
        base=base,
        sizes=sizes[:rank],
        strides=strides[: rank - 1],
        box=box[:rank],
        element_strides=element_strides[:rank],
        swizzle=SWIZZLES[word >> 13 & 3],
        nan_fill=bool(word >> 15 & 1),
    )


def _format(word: int) -> str:
    code = word >> 7 & 15
    if code >= len(FORMATS):
        raise ValueError(f"tensor map: unknown element format {code}")
    if word >> 16 & 1:
        raise ValueError("tensor map: tf32 elements, which a load rounds, are not covered")
    return FORMATS[code]
