"""Where matrix elements sit in the registers of a warp: the fragments of mma.sync and wgmma.

In every shape, lane l stands in group g = l / 4 with t = l % 4, and a register holds e = 32 / bits neighbouring
elements of K (one pair of columns for accumulators). Registers come as arrays (registers, warps, 32) of uint32;
matrices as (warps, rows, columns).

    A  register r: row g + 8 (r % 2), columns e t + i + 4 e (r / 2)
    B  register r: rows e t + i + 4 e r of column g
    C  register r: row g + 8 (r / 2 % 2), column 2 t + r % 2 + 8 (r / 4); as f16, one register holds the pair
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kgen.gates.ptx.matrix import formats
from kgen.gates.ptx.matrix.formats import F64, U32

Registers = Sequence[U32]


def stack(registers: Registers, count: int, what: str) -> U32:
    """List of (warps, 32) registers -> (count, warps, 32). ValueError when their number is not `count`."""
    if len(registers) != count:
        raise ValueError(f"{what}: {count} registers expected, {len(registers)} given")
    return np.ascontiguousarray(np.stack([np.asarray(r, np.uint32) for r in registers]))


def a_matrix(kind: str, registers: U32) -> F64:
    """(2 or 4, warps, 32) -> numbers (warps, 16, K)."""
    numbers = formats.unpack(kind, registers)
    warps, per = numbers.shape[1], numbers.shape[-1]
    split = numbers.reshape(-1, 2, warps, 8, 4, per)  # column half, row half, warp, g, t, i
    return split.transpose(2, 1, 3, 0, 4, 5).reshape(warps, 16, -1)


def b_matrix(kind: str, registers: U32) -> F64:
    """(1 or 2, warps, 32) -> numbers (warps, K, 8)."""
    numbers = formats.unpack(kind, registers)
    warps, per = numbers.shape[1], numbers.shape[-1]
    split = numbers.reshape(-1, warps, 8, 4, per)  # row half, warp, g, t, i
    return split.transpose(1, 0, 3, 4, 2).reshape(warps, -1, 8)


def c_matrix(registers: NDArray[np.unsignedinteger], packed: bool) -> NDArray[np.unsignedinteger]:
    """Accumulator registers (n, warps, 32) -> bits (warps, 16, N): uint32, or uint16 when `packed`."""
    warps = registers.shape[1]
    if packed:
        pairs = np.ascontiguousarray(registers, dtype="<u4")[..., None].view("<u2")
        split = pairs.reshape(-1, 2, warps, 8, 4, 2)  # column block, row half, warp, g, t, c
        return split.transpose(2, 1, 3, 0, 4, 5).reshape(warps, 16, -1)
    split = registers.reshape(-1, 2, 2, warps, 8, 4)  # column block, row half, c, warp, g, t
    return split.transpose(3, 1, 4, 0, 5, 2).reshape(warps, 16, -1)


def c_registers(matrix: NDArray[np.unsignedinteger], packed: bool) -> list[U32]:
    """Bits (warps, 16, N) -> list of accumulator registers (warps, 32); the inverse of c_matrix."""
    warps = matrix.shape[0]
    split = matrix.reshape(warps, 2, 8, -1, 4, 2)  # warp, row half, g, column block, t, c
    if packed:
        pairs = np.ascontiguousarray(split.transpose(3, 1, 0, 2, 4, 5), dtype="<u2")
        return list(pairs.view("<u4").reshape(-1, warps, 32))
    return list(np.ascontiguousarray(split.transpose(3, 1, 5, 0, 2, 4), dtype=np.uint32).reshape(-1, warps, 32))


def accumulate(kind: str, saturate: bool, products: F64, c: NDArray[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
    """products + c, rounded once. `kind` f32, f16 or s32; `c`: bits of the accumulator, as in the result.

    A float sum is made in float64: exact unless the addends span more than 2**53, and rounded to nearest even. PTX
    leaves the order and the rounding of the sum open, so hardware differs (see mma.Mma.unit). Integers are exact.
    """
    if kind == "s32":
        return formats.wrap_s32(products.astype(np.int64) + c.view(np.int32).astype(np.int64), saturate)
    with np.errstate(over="ignore", invalid="ignore"):
        if kind == "f32":
            return formats.round_f32(products + c.view(np.float32).astype(np.float64))
        return formats.round_f16(products + c.view(np.float16).astype(np.float64))


def multiply(a: F64, b: F64) -> F64:
    """Matrix product in float64, quiet about infinities: 0 * inf is NaN, as in hardware."""
    with np.errstate(over="ignore", invalid="ignore"):
        product: F64 = np.matmul(a, b)
        return product
