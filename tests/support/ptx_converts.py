"""`cvt` of PTX on exact numbers, one lane at a time: an independent definition for tests."""

from collections.abc import Callable
from fractions import Fraction

from support.ptx_integers import Lane, clamp, mask, packed, parts, value
from support.ptx_numbers import LAYOUT, NAN, Number, bits_of, flushed, read, to_multiple, write

FLOATS = ("f16", "bf16", "f32", "f64")
WHOLE = ("rni", "rzi", "rmi", "rpi")
PAIRS = ("f16x2", "bf16x2", "e4m3x2", "e5m2x2", "e3m2x2", "e2m3x2", "e2m1x2")


def is_integer(kind: str) -> bool:
    return kind[0] in "us" and kind[1:].isdigit()


def limits(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (-(1 << (bits - 1)), mask(bits - 1)) if kind[0] == "s" else (0, mask(bits))


def whole(number: Number, mode: str) -> Number:
    """A number rounded to an integer, keeping its sign."""
    if not isinstance(number.size, Fraction):
        return number
    return number._replace(size=to_multiple(number.size, Fraction(1), number.sign, mode))


def _to_integer(into: str, source: str, mode: str) -> Callable[[int], int]:
    low, high = limits(into)
    bits = int(into[1:])

    def run(code: int) -> int:
        number = whole(read(code, source), mode)
        if number.size == "nan":
            return 1 << (bits - 1) if source == "f64" or bits == 64 else 0
        size = 1 << 4000 if number.size == "inf" else int(number.size)
        return clamp(-size if number.sign else size, low, high) & mask(bits)

    return run


def _nan(code: int, into: str, source: str, changed: bool) -> int:
    """NaN to NaN, as seen on an H200: f32, and f64 wherever it occurs, keep sign and payload; the rest is canonical."""
    canonical = write(NAN, into)
    if source == into:
        keeps = source == "f64" or (source == "f32" and not changed)
        return code | (1 << 51 if source == "f64" and changed else 0) if keeps else canonical
    if "f64" not in (into, source):
        return code << 16 if (into, source, changed) == ("f32", "bf16", False) else canonical
    if source == "f32" and changed:
        code = 0x7FFFFFFF  # `.ftz` has made it so
    (exponent, fraction), (exponent2, fraction2) = LAYOUT[source], LAYOUT[into]
    payload = code & mask(fraction) | 1 << (fraction - 1)
    payload = payload << (fraction2 - fraction) if fraction2 > fraction else payload >> (fraction - fraction2)
    return code >> (exponent + fraction) << (exponent2 + fraction2) | mask(exponent2) << fraction2 | payload


def _scalar(modifiers: tuple[str, ...]) -> Callable[[int], int]:
    into, source = modifiers[-2], modifiers[-1]
    mode = next((m for m in modifiers if m in (*WHOLE, "rn", "rz", "rm", "rp", "rna")), "")
    relu, satfinite, sat, ftz = (name in modifiers for name in ("relu", "satfinite", "sat", "ftz"))

    def to_float(code: int) -> int:
        if is_integer(source):
            exact = value(code, source)
            return write(Number(int(exact < 0), Fraction(abs(exact))), into, mode)
        if read(code, source).size == "nan":
            return _nan(code, into, source, mode in WHOLE or ftz)
        if mode not in WHOLE and into == source:
            return code
        number = read(code, source)
        return write(whole(number, mode) if mode in WHOLE else number, into, mode or "rn", satfinite)

    def run(code: int) -> int:
        code = flushed(code, source) if ftz and source == "f32" else code
        if is_integer(into):
            if not is_integer(source):
                return _to_integer(into, source, mode)(code)
            low, high = limits(into)
            exact = value(code, source)
            return (clamp(exact, low, high) if sat else exact) & mask(int(into[1:]))
        result = to_float(code)
        result = flushed(result, into) if ftz and into == "f32" else result
        number = read(result, into)
        if sat:
            if number.size == "nan" or number.sign:
                return 0
            return (
                result
                if isinstance(number.size, Fraction) and number.size <= 1
                else write(Number(0, Fraction(1)), into)
            )
        return 0 if relu and number.sign and number.size != "nan" else result

    return run


def _tf32(modifiers: tuple[str, ...]) -> Lane:
    convert = _scalar(modifiers)

    def run(a: int) -> tuple[int, ...]:
        if modifiers[0] == "rna" and "satfinite" not in modifiers and read(a, "f32").size == "nan":
            return (a >> 13 << 13,)  # seen on an H200
        return (convert(a) << 13,)

    return run


def _pairs(modifiers: tuple[str, ...]) -> Lane:
    into, source = modifiers[-2], modifiers[-1]
    one = _scalar((*modifiers[:-2], into.removesuffix("x2"), source.removesuffix("x2")))
    form, given = into.removesuffix("x2"), source.removesuffix("x2")
    size = 4 if form == "e2m1" else 16 if form in FLOATS else 8

    def run(*codes: int) -> tuple[int, ...]:
        if len(codes) == 2:
            elements = [codes[1], codes[0]]
        else:
            held = 4 if given == "e2m1" else 16 if given in FLOATS else 8
            elements = [c & mask(bits_of(given)) for c in parts(codes[0], held, 2 * held)]
        return (packed([one(c) for c in elements], size),)

    return run


def _scale(a: int) -> tuple[int, ...]:
    out = [0x7FFF if c == 255 else write(Number(0, Fraction(2) ** (c - 127)), "bf16") for c in parts(a, 8, 16)]
    return (packed(out, 16),)


def _packed_integers(modifiers: tuple[str, ...]) -> Lane:
    kind = modifiers[2]
    bits, (low, high) = int(kind[1:]), limits(kind)

    def run(a: int, b: int, c: int = 0) -> tuple[int, ...]:
        x, y = (clamp(value(v, "s32"), low, high) & mask(bits) for v in (a, b))
        return ((c << 2 * bits | x << bits | y) & mask(32),)

    return run


def define(opcode: str, modifiers: tuple[str, ...]) -> Lane | None:
    """The definition of a conversion."""
    if opcode != "cvt":
        return None
    if modifiers[0] == "pack":
        return _packed_integers(modifiers)
    into, source = modifiers[-2], modifiers[-1]
    if source == "ue8m0x2":
        return _scale
    if into == "tf32":
        return _tf32(modifiers)
    if into in PAIRS:
        return _pairs(modifiers)
    known = all(is_integer(k) or k in FLOATS for k in (into, source))
    convert = _scalar(modifiers)
    return (lambda a: (convert(a),)) if known else None
