"""What one register-only instruction means to the interpreter: operand types, result types, a function on raw bits.

Registers are NumPy arrays of raw bits, one element per lane, in any shape with at least one axis: bool for `.pred`,
uint8/16/32/64 by width, and for `.b128` one more axis of two uint64 words (low word first). Operands may broadcast.
Widths of registers are the caller's affair: `fit` narrows or extends where PTX lets a register differ from the type.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Function = Callable[..., tuple[Array, ...]]

WIDTHS = {
    **{f"{sign}{bits}": bits for sign in "busf" for bits in (8, 16, 32, 64) if (sign, bits) != ("f", 8)},
    **{"pred": 1, "b128": 128, "bf16": 16, "tf32": 32},
    **{"f16x2": 32, "bf16x2": 32, "u16x2": 32, "s16x2": 32, "f32x2": 64},
    **{"e4m3x2": 16, "e5m2x2": 16, "e2m3x2": 16, "e3m2x2": 16, "e2m1x2": 8, "ue8m0x2": 16},
}
UNSIGNED: dict[int, Any] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED: dict[int, Any] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


@dataclass(frozen=True)
class Pure:
    """Semantics of one opcode with its modifiers.

    `function` takes one array per entry of `operands` and gives one per entry of `results`, never masks lanes and
    never raises or warns on any bits. A `setp` has two results, p and q (f16 and
    bf16: only p); callers drop what the text does not name.
    `carry_in`: the last operand is the condition code CC.CF; `carry_out`: so is the last result.
    `approximate`: the error that the ISA documents for the hardware, in the unit `error` names ("ulp", "relative",
    "absolute"); None where the bits are exact.
    """

    operands: tuple[str, ...]
    results: tuple[str, ...]
    function: Function
    approximate: float | None = None
    error: str = ""
    carry_in: bool = False
    carry_out: bool = False


Entry = tuple[str, tuple[str, ...], Pure]  # opcode, modifiers in order with "" for each optional one left out
Entries = Iterator[Entry]


def width(kind: str) -> int:
    """Bits of a PTX type; KeyError for an unknown one."""
    return WIDTHS[kind]


def is_signed(kind: str) -> bool:
    return kind[0] == "s"


def typed(bits: Array, kind: str) -> Array:
    """The same bits as the integers of a type: signed for `.s*`, unsigned otherwise."""
    return bits.view(SIGNED[width(kind)]) if is_signed(kind) else bits


def raw(values: Array) -> Array:
    """Bits of an integer array."""
    return values.view(UNSIGNED[values.dtype.itemsize * 8])


def fit(bits: Array, kind: str, into: int) -> Array:
    """A value of type `kind` in a register of `into` bits: cut, or extended by its sign (`.s*`) or by zeros."""
    source = typed(bits, kind)
    return bits if width(kind) == into else raw(source.astype(SIGNED[into] if is_signed(kind) else UNSIGNED[into]))


def halves(packed: Array, size: int = 16) -> Array:
    """The elements of packed registers along a new last axis, lowest first."""
    return np.ascontiguousarray(packed)[..., None].view(UNSIGNED[size])


def joined(parts: Array, size: int) -> Array:
    """Inverse of `halves`: the last axis back into registers of `size` bits."""
    whole: Array = np.ascontiguousarray(parts).view(UNSIGNED[size])
    return whole[..., 0]


def unpack(value: Array, kind: str, count: int) -> tuple[Array, ...]:
    """`mov {d0, d1, ...}, a` for an `a` of type `kind` (b16 to b128): `count` equal parts, lowest first."""
    part = width(kind) // count
    split = np.ascontiguousarray(value).view(UNSIGNED[part]) if kind == "b128" else halves(value, part)
    return tuple(np.moveaxis(split, -1, 0))


def pack(*parts: Array) -> Array:
    """`mov d, {a0, a1, ...}`: equal parts, lowest first, into one register of b16 to b128."""
    stacked = np.stack(np.broadcast_arrays(*parts), axis=-1)
    size = parts[0].dtype.itemsize * 8 * len(parts)
    return stacked.view(np.uint64) if size == 128 else joined(stacked, size)
