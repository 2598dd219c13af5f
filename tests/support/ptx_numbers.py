"""Float formats from their definition, in exact fractions: what the tests of PTX arithmetic compare with.

Written without NumPy and without looking at how the code under test does it. A number is a sign and a size, the size
a Fraction or one of the words "inf" and "nan".
"""

from fractions import Fraction
from math import isqrt
from typing import NamedTuple


class Number(NamedTuple):
    """sign 0 or 1, and magnitude."""

    sign: int
    size: Fraction | str


NAN = Number(0, "nan")
LAYOUT = {  # exponent bits, fraction bits
    "f64": (11, 52),
    "f32": (8, 23),
    "tf32": (8, 10),
    "bf16": (8, 7),
    "f16": (5, 10),
    "e5m2": (5, 2),
    "e4m3": (4, 3),
    "e3m2": (3, 2),
    "e2m3": (2, 3),
    "e2m1": (2, 1),
}
CANONICAL = {
    "f64": 0x7FF8 << 48,
    "f32": 0x7FFFFFFF,
    "tf32": 0x3FFFF,
    "bf16": 0x7FFF,
    "f16": 0x7FFF,
    "e5m2": 0x7F,
    "e4m3": 0x7F,
}
LARGEST = {"e4m3": Fraction(448), "e3m2": Fraction(28), "e2m3": Fraction(15, 2), "e2m1": Fraction(6)}
TWO = Fraction(2)


def bits_of(form: str) -> int:
    exponent, fraction = LAYOUT[form]
    return 1 + exponent + fraction


def bias(form: str) -> int:
    return 2 ** (LAYOUT[form][0] - 1) - 1


def largest(form: str) -> Fraction:
    """The largest finite value."""
    return LARGEST.get(form) or (2 - TWO ** -LAYOUT[form][1]) * TWO ** bias(form)


def read(code: int, form: str) -> Number:
    """The number that a code stands for."""
    exponent_bits, fraction_bits = LAYOUT[form]
    sign = code >> (exponent_bits + fraction_bits) & 1
    exponent = code >> fraction_bits & (1 << exponent_bits) - 1
    fraction = code & (1 << fraction_bits) - 1
    if form == "e4m3" and exponent == 15 and fraction == 7:
        return Number(sign, "nan")
    if form not in LARGEST and exponent == (1 << exponent_bits) - 1:
        return Number(sign, "nan" if fraction else "inf")
    if exponent == 0:
        return Number(sign, fraction * TWO ** (1 - bias(form) - fraction_bits))
    return Number(sign, (1 + Fraction(fraction, 1 << fraction_bits)) * TWO ** (exponent - bias(form)))


def exponent_of(x: Fraction) -> int:
    """The e with 2^e <= x < 2^(e+1)."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if TWO**e <= x else e - 1


def to_multiple(x: Fraction, step: Fraction, sign: int, mode: str) -> Fraction:
    """x >= 0 rounded to a multiple of a step; the sign tells the directed modes where down is."""
    count, rest = divmod(x, step)
    up = {
        "n": rest * 2 > step or (rest * 2 == step and count % 2 == 1),
        "na": rest * 2 >= step,
        "z": False,
        "m": sign == 1 and rest > 0,
        "p": sign == 0 and rest > 0,
    }[mode.removeprefix("r").removesuffix("i")]
    return (count + up) * step


def write(number: Number, form: str, mode: str = "rn", satfinite: bool = False) -> int:
    """The code of a number rounded to a format."""
    exponent_bits, fraction_bits = LAYOUT[form]
    size, top = number.size, largest(form)
    minus = number.sign << (exponent_bits + fraction_bits)
    if size == "nan":
        return CANONICAL.get(form, (1 << (exponent_bits + fraction_bits)) - 1)
    least = 1 - bias(form)
    if isinstance(size, Fraction) and size:
        size = to_multiple(size, TWO ** (max(exponent_of(size), least) - fraction_bits), number.sign, mode)
        away = mode in ("rn", "rna") or mode == ("rm" if number.sign else "rp")
        if size > top:
            size = "inf" if away else top
    if size == "inf":
        if not (satfinite or form in LARGEST):
            return minus | ((1 << exponent_bits) - 1) << fraction_bits
        size = top
    assert isinstance(size, Fraction)
    if size < TWO**least:
        return minus | int(size / TWO ** (least - fraction_bits))
    e = exponent_of(size)
    return minus | (e - least + 1) << fraction_bits | int(size / TWO ** (e - fraction_bits)) - (1 << fraction_bits)


def flushed(code: int, form: str) -> int:
    """Subnormal codes become zeros of their sign."""
    number = read(code, form)
    small = isinstance(number.size, Fraction) and number.size < TWO ** (1 - bias(form))
    return code >> (bits_of(form) - 1) << (bits_of(form) - 1) if small else code


def signed(number: Number) -> Fraction:
    assert isinstance(number.size, Fraction)
    return -number.size if number.sign else number.size


def total(a: Number, b: Number, mode: str) -> Number:
    """a + b, exact; the sign of an exact zero follows the rounding mode."""
    if "nan" in (a.size, b.size) or (a.size == b.size == "inf" and a.sign != b.sign):
        return NAN
    if "inf" in (a.size, b.size):
        return a if a.size == "inf" else b
    x = signed(a) + signed(b)
    if x:
        return Number(int(x < 0), abs(x))
    if a.size == 0 and a.sign == b.sign:
        return Number(a.sign, x)
    return Number(int(mode == "rm"), x)


def product(a: Number, b: Number) -> Number:
    """a * b, exact."""
    sign, sizes = a.sign ^ b.sign, (a.size, b.size)
    if "nan" in sizes or ("inf" in sizes and 0 in sizes):
        return NAN
    if "inf" in sizes:
        return Number(sign, "inf")
    return Number(sign, Fraction(a.size) * Fraction(b.size))


def quotient(a: Number, b: Number) -> Number:
    """a / b, exact."""
    sign, sizes = a.sign ^ b.sign, (a.size, b.size)
    if "nan" in sizes or sizes in (("inf", "inf"), (0, 0)):
        return NAN
    if a.size == "inf" or b.size == 0:
        return Number(sign, "inf")
    if b.size == "inf":
        return Number(sign, Fraction(0))
    return Number(sign, Fraction(a.size) / Fraction(b.size))


def root(a: Number) -> Number:
    """sqrt(a) to 400 bits, where inexact with a further bit: rounds as the exact root does to any shorter format."""
    if a.size == 0 or a == Number(0, "inf"):
        return a
    if a.sign or a.size == "nan":
        return NAN
    size = Fraction(a.size)
    scaled = size.numerator * size.denominator << 2400
    whole = isqrt(scaled)
    exact = Fraction(whole if whole * whole == scaled else 2 * whole + 1, 1 if whole * whole == scaled else 2)
    return Number(0, exact / (size.denominator << 1200))
