"""Binary float formats on raw bits: exact decoding to float64, one rounding from float64, and sticky arithmetic.

The scheme for every operation without a native NumPy equal: decode exactly, compute in float64 rounded to odd (the last
bit of an inexact result is 1, so that it lies strictly between the values that a narrower format can tell apart), then
round once to the format. Holds for formats of at most 51 significant bits, so not for f64; `exact64` does that one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from kgen.gates.ptx.arith.record import UNSIGNED, Array

SIGN64 = np.uint64(1 << 63)
INFINITY64 = np.uint64(0x7FF << 52)
QUIET = np.uint64(1 << 51)
ROUNDINGS = ("rn", "rz", "rm", "rp", "rna")


@dataclass(frozen=True)
class Format:
    """A float format: bits, fraction bits, exponent of the smallest normal, and codes without sign.

    `infinity` is None where the format has none: then `nan` stands for NaN, or the largest value if it has no NaN.
    """

    bits: int
    fraction: int
    least: int
    largest: int
    infinity: int | None
    nan: int

    @property
    def one(self) -> int:
        """Code of 1.0."""
        return (1 - self.least) << self.fraction


F32 = Format(32, 23, -126, 0x7F7FFFFF, 0x7F800000, 0x7FFFFFFF)
F16 = Format(16, 10, -14, 0x7BFF, 0x7C00, 0x7FFF)
BF16 = Format(16, 7, -126, 0x7F7F, 0x7F80, 0x7FFF)
TF32 = Format(19, 10, -126, 0x3FBFF, 0x3FC00, 0x3FFFF)  # the upper 19 bits of a 32-bit register
E4M3 = Format(8, 3, -6, 0x7E, None, 0x7F)
E5M2 = Format(8, 2, -14, 0x7B, 0x7C, 0x7F)
E2M3 = Format(6, 3, 0, 0x1F, None, 0x1F)
E3M2 = Format(6, 2, -2, 0x1F, None, 0x1F)
E2M1 = Format(4, 1, 0, 0x7, None, 0x7)
F64 = Format(64, 52, -1022, 0x7FEF << 48 | (1 << 48) - 1, 0x7FF << 52, 0xFFF8 << 48)  # codes only: never encoded to
FORMATS = {"f64": F64, "f32": F32, "f16": F16, "bf16": BF16, "tf32": TF32}
SMALL = {"e4m3": E4M3, "e5m2": E5M2, "e2m3": E2M3, "e3m2": E3M2, "e2m1": E2M1}


@cache
def values(form: Format) -> Array:
    """float64 value of every code of a format of at most 8 bits, by code."""
    codes = np.arange(1 << form.bits)
    magnitude = codes & (1 << (form.bits - 1)) - 1
    exponent = np.maximum(magnitude >> form.fraction, 1)
    fraction = magnitude - ((exponent - 1) << form.fraction)
    result = np.ldexp(fraction.astype(np.float64), exponent - 1 + form.least - form.fraction)
    result[magnitude > form.largest] = np.nan
    if form.infinity is not None:
        result[magnitude == form.infinity] = np.inf
    return np.asarray(np.where(codes >> (form.bits - 1) != 0, -result, result))


def floats32(bits: Array, kind: str) -> Array:
    """f32, f16 or bf16 registers as a float32 array, exactly."""
    if kind == "f32":
        return bits.view(np.float32)
    if kind == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(all="ignore"):
        return bits.view(np.float16).astype(np.float32)


def decode(bits: Array, kind: str) -> Array:
    """Float registers as a float64 array, exactly. A signalling NaN may become quiet."""
    if kind == "f64":
        return bits.view(np.float64)
    with np.errstate(all="ignore"):
        return floats32(bits, kind).astype(np.float64)


def is_nan(bits: Array, kind: str) -> Array:
    """Which registers of a float type hold a NaN."""
    form = FORMATS[kind]
    magnitude: Array = bits & bits.dtype.type((1 << (form.bits - 1)) - 1)
    return np.asarray(magnitude > bits.dtype.type(form.infinity or 0))


def quiet64(bits: Array) -> Array:
    """f64 registers with every NaN quiet: sign and payload stay."""
    return np.where(is_nan(bits, "f64"), bits | QUIET, bits)


def flush(bits: Array, kind: str = "f32") -> Array:
    """`.ftz`: subnormal values become zeros of their sign."""
    form = FORMATS[kind]
    exponent, sign = bits.dtype.type(form.infinity or 0), bits.dtype.type(1 << (form.bits - 1))
    return np.where((bits & exponent) == 0, bits & sign, bits)


def flush_result(code: Array, exact: Callable[[], Array], kind: str, rounding: str) -> Array:
    """`.ftz` on a rounded result: zero where the exact value, rounded with exponents unlimited below, is subnormal.

    That differs from a subnormal code only where rounding has reached the smallest normal number from below.
    """
    form, to = FORMATS[kind], code.dtype.type
    sign = to(1 << (form.bits - 1))
    edge = (code & ~sign) == to(1 << form.fraction)
    if edge.any():
        x = np.abs(exact())
        smallest, unit = 2.0**form.least, 2.0 ** (form.least - form.fraction - 1)
        below = x < smallest - unit / 2 if rounding == "rn" else x <= smallest - unit
        code = np.where(edge & below, code & sign, code)
    return flush(code, kind)


def _whole(scaled: Array, negative: Array, rounding: str) -> Array:
    """Magnitudes rounded to whole numbers."""
    if rounding == "rn":
        return np.rint(scaled)
    below: Array = np.floor(scaled)
    if rounding == "rz":
        return below
    if rounding == "rna":
        return below + (scaled - below >= 0.5)
    away = negative if rounding == "rm" else ~negative
    return np.asarray(below + (away & (scaled != below)))


def encode(x: Array, form: Format, rounding: str = "rn", satfinite: bool = False) -> Array:
    """float64 rounded once to a format: codes in uint8/16/32 by its width, NaN canonical.

    Beyond the largest value: infinity or the largest, as the rounding says; always the largest with `satfinite`.
    """
    bits = x.view(np.uint64)
    negative, magnitude = (bits & SIGN64) != 0, bits & ~SIGN64
    exponent = np.maximum((magnitude >> np.uint64(52)).astype(np.int64) - 1023, form.least)
    scale = ((form.fraction + 1023 - exponent) << 52).view(np.float64)
    with np.errstate(all="ignore"):
        scaled = magnitude.view(np.float64) * scale
        code = _whole(np.where(scaled < 2.0**54, scaled, 0.0), negative, rounding).astype(np.int64)
    code += (exponent - form.least) << form.fraction
    code = np.where(code > form.largest, _overflow(negative, form, rounding, satfinite), code)
    if not satfinite and form.infinity is not None:
        code = np.where(magnitude == INFINITY64, form.infinity, code)
    code |= negative.astype(np.int64) << (form.bits - 1)
    code = np.where(magnitude > INFINITY64, form.nan, code)
    return code.astype(UNSIGNED[max(8, 1 << (form.bits - 1).bit_length())])


def _overflow(negative: Array, form: Format, rounding: str, satfinite: bool) -> Array | int:
    if satfinite or form.infinity is None or rounding == "rz":
        return form.largest
    if rounding in ("rn", "rna"):
        return form.infinity
    return np.where(negative == (rounding == "rm"), form.infinity, form.largest)


def _odd(nearest: Array, error: Array) -> Array:
    """Rounded-to-nearest values and the signs of (exact - rounded) -> the same values rounded to odd."""
    bits = nearest.view(np.int64)
    step = np.where((error > 0) == (nearest > 0), np.int64(1), np.int64(-1))
    move = (error != 0) & ((bits & 1) == 0) & np.isfinite(nearest)
    return np.where(move, bits + step, bits).view(np.float64)


def odd_sum(a: Array, b: Array) -> Array:
    """a + b rounded to odd; magnitudes below 2^1022."""
    total = a + b
    part = total - a
    return _odd(total, (a - (total - part)) + (b - part))


def _cut(values64: Array, bits: int) -> Array:
    return (values64.view(np.uint64) & ~np.uint64((1 << bits) - 1)).view(np.float64)


def _sticky(cut: Array, rest: Array) -> Array:
    """A value with free low bits, and the sign of (exact magnitude - it): the low bits say where the exact value is."""
    bits = cut.view(np.int64)
    moved = np.where(rest > 0, bits | 1, np.where(rest < 0, bits - 1, bits))
    return np.where(np.isfinite(cut) & (cut != 0), moved, bits).view(np.float64)


def odd_quotient(a: Array, b: Array) -> Array:
    """a / b for operands of at most 24 significant bits, with a sticky last bit."""
    quotient = _cut(a / b, 24)  # 29 bits: times b it is exact
    rest = a - quotient * b
    return _sticky(quotient, np.where((quotient < 0) != (b < 0), -rest, rest))


def odd_root(a: Array) -> Array:
    """sqrt(a) for operands of at most 24 significant bits, with a sticky last bit."""
    root = _cut(np.sqrt(a), 27)  # 26 bits: its square is exact
    return _sticky(root, a - root * root)


def negative_zero(x: Array, a: Array, b: Array, rounding: str) -> Array:
    """An exact zero sum a + b has the sign minus under `.rm` unless both operands are +0."""
    if rounding != "rm":
        return x
    both = ~(np.signbit(a) | np.signbit(b))
    return np.where((x == 0) & ~both, -0.0, x)
