"""f64 arithmetic that float64 itself cannot give: fused, and rounded in a direction. Exact integers, lane by lane.

Slow (microseconds per lane); kernels for decode hardly use f64.
"""

import math
from collections.abc import Callable, Iterable

import numpy as np

from kgen.gates.ptx.arith.formats import F64
from kgen.gates.ptx.arith.record import Array

NAN, INFINITY, SIGN, TOP = F64.nan, F64.infinity or 0, 1 << 63, F64.largest
FRACTION, LEAST = 52, -1074

Lane = Callable[..., int]


def split(bits: int) -> tuple[int, int]:
    """A finite code as signed integer times 2^exponent."""
    field, fraction = bits >> FRACTION & 0x7FF, bits & (1 << FRACTION) - 1
    magnitude = fraction | (1 << FRACTION if field else 0)
    return (-magnitude if bits & SIGN else magnitude), max(field, 1) - 1 + LEAST


def rounded(value: int, exponent: int, rounding: str, sticky: bool = False) -> int:
    """Code nearest to value * 2^exponent (its magnitude a bit more with `sticky`); an exact zero is +0."""
    if value == 0:
        return 0
    negative, magnitude = value < 0, abs(value)
    magnitude, exponent = magnitude << 2 | sticky, exponent - 2
    shift = max(magnitude.bit_length() - FRACTION - 1, LEAST - exponent)
    if shift > 0:
        kept, rest, half = magnitude >> shift, magnitude & (1 << shift) - 1, 1 << (shift - 1)
    else:
        kept, rest, half = magnitude << -shift, 0, 1
    up = {
        "rn": rest > half or (rest == half and kept & 1 == 1),
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[rounding]
    code = kept + up + ((exponent + shift - LEAST) << FRACTION)
    if code > TOP:
        code = INFINITY if rounding == "rn" or rounding == ("rm" if negative else "rp") else TOP
    return code | SIGN if negative else code


def _special(bits: int) -> bool:
    return bits & INFINITY == INFINITY


def _number(code: int) -> float:
    return float(np.array(code, np.uint64).view(np.float64))


def _code(value: float) -> int:
    code = int(np.array(value, np.float64).view(np.uint64))
    return NAN if math.isnan(value) else code


def fused(a: int, b: int, c: int, rounding: str) -> int:
    """a * b + c in codes, rounded once."""
    if _special(a) or _special(b) or _special(c):
        sign = (a ^ b) & SIGN
        if _special(a) or _special(b):
            zero = a & ~SIGN == 0 or b & ~SIGN == 0
            nan = a & ~SIGN > INFINITY or b & ~SIGN > INFINITY or zero
            product = math.nan if nan else _number(INFINITY | sign)
        else:
            product = _number(sign)
        return _code(product + _number(c))
    (ma, ea), (mb, eb), (mc, ec) = split(a), split(b), split(c)
    product, low = ma * mb, min(ea + eb, ec)
    total = (product << (ea + eb - low)) + (mc << (ec - low))
    if total == 0:
        signs = {(a ^ b) & SIGN, c & SIGN}
        exact = product == 0 and mc == 0 and len(signs) == 1
        return signs.pop() if exact else (SIGN if rounding == "rm" else 0)
    return rounded(total, low, rounding)


def product(a: int, b: int, rounding: str) -> int:
    """a * b in codes: with an addend of zero of the product's sign nothing changes."""
    return fused(a, b, (a ^ b) & SIGN, rounding)


def total(a: int, b: int, rounding: str) -> int:
    """a + b in codes."""
    return fused(a, F64.one, b, rounding)


def quotient(a: int, b: int, rounding: str) -> int:
    """a / b in codes."""
    sign, (ma, ea), (mb, eb) = (a ^ b) & SIGN, split(a), split(b)
    if a & ~SIGN > INFINITY or b & ~SIGN > INFINITY or (_special(a) and _special(b)) or (ma == 0 and mb == 0):
        return NAN
    if _special(a) or mb == 0:
        return INFINITY | sign
    if _special(b) or ma == 0:
        return sign
    whole, rest = divmod(abs(ma) << 120, abs(mb))
    return rounded(-whole if sign else whole, ea - eb - 120, rounding, rest != 0)


def root(a: int, rounding: str) -> int:
    """sqrt(a) in codes."""
    if a & ~SIGN == 0 or a == INFINITY:
        return a
    if a & SIGN or a > INFINITY:
        return NAN
    mantissa, exponent = split(a)
    shift = 120 + exponent % 2
    scaled = mantissa << shift
    whole = math.isqrt(scaled)
    return rounded(whole, (exponent - shift) // 2, rounding, whole * whole != scaled)


def lanes(function: Lane, rounding: str, operands: Iterable[Array]) -> Array:
    """A function of codes over arrays of codes."""
    columns = np.broadcast_arrays(*operands)
    found = [function(*row, rounding) for row in zip(*(c.ravel().tolist() for c in columns), strict=True)]
    return np.array(found, np.uint64).reshape(columns[0].shape)
