"""Element formats of matrix operands: register bits to numbers and back.

Every finite value of these formats is a float64 exactly, and so is the product of two of them; integers travel as
float64 too (exact below 2**53). Not covered: 4- and 6-bit floats and block scales, which sm_90a does not multiply.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

U32 = NDArray[np.uint32]
F64 = NDArray[np.float64]

BITS = {"bf16": 16, "f16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}
NAN_F32, NAN_F16 = 0x7FFFFFFF, 0x7FFF  # the one NaN that matrix instructions write
RAW: dict[int, np.dtype[np.unsignedinteger]] = {8: np.dtype("<u1"), 16: np.dtype("<u2"), 32: np.dtype("<u4")}


@cache
def table(kind: str) -> F64:
    """Value of every bit pattern of an 8- or 16-bit format, float64 of shape (2**bits,)."""
    codes = np.arange(1 << BITS[kind], dtype=np.uint32)
    with np.errstate(invalid="ignore"):  # widening a signalling NaN raises the flag
        if kind == "bf16":
            values = (codes << np.uint32(16)).view(np.float32).astype(np.float64)
        elif kind == "f16":
            values = codes.astype(np.uint16).view(np.float16).astype(np.float64)
        elif kind == "e5m2":  # the upper byte of an f16
            values = (codes << np.uint32(8)).astype(np.uint16).view(np.float16).astype(np.float64)
        elif kind == "e4m3":
            values = _e4m3(codes)
        elif kind == "s8":
            values = codes.astype(np.uint8).view(np.int8).astype(np.float64)
        else:
            values = codes.astype(np.float64)
    values.setflags(write=False)
    return values


def _e4m3(codes: U32) -> F64:
    """Bias 7, no infinity, NaN where all bits but the sign are set."""
    exponent, mantissa = ((codes >> 3) & 15).astype(np.int64), (codes & 7).astype(np.float64)
    size = np.ldexp(np.where(exponent > 0, 8 + mantissa, mantissa), np.maximum(exponent, 1) - 10)
    size = np.where((codes & 0x7F) == 0x7F, np.nan, size)
    return np.where(codes & 0x80, -size, size)


def values(kind: str, raw: NDArray[np.unsignedinteger]) -> F64:
    """Numbers of elements given as unsigned integers of the format's width; same shape.

    tf32 elements are 32 bits wide, of which the tensor core reads the upper 19.
    """
    if kind == "tf32":
        with np.errstate(invalid="ignore"):
            return (raw.astype(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    numbers: F64 = table(kind)[raw]
    return numbers


def unpack(kind: str, registers: U32) -> F64:
    """(...) 32-bit registers -> (..., 32 / bits) numbers, lowest bits first."""
    width = BITS[kind]
    raw = np.ascontiguousarray(registers, dtype="<u4")[..., None].view(RAW[width])
    return values(kind, raw)


def round_f32(numbers: F64) -> U32:
    """float64 -> bits of the nearest float32 (ties to even); every NaN becomes 0x7fffffff."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        bits = numbers.astype(np.float32).view(np.uint32)
    return np.where(np.isnan(numbers), np.uint32(NAN_F32), bits)


def round_f16(numbers: F64) -> NDArray[np.uint16]:
    """float64 -> bits of the nearest float16 (ties to even); every NaN becomes 0x7fff."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        bits = numbers.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(numbers), np.uint16(NAN_F16), bits)


def wrap_s32(numbers: NDArray[np.int64], saturate: bool) -> U32:
    """int64 -> 32 bits, clamped to the range of s32 or modulo 2**32."""
    if saturate:
        numbers = np.clip(numbers, -(1 << 31), (1 << 31) - 1)
    return (numbers & np.int64(0xFFFFFFFF)).astype(np.uint32)
