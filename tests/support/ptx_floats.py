"""Float arithmetic, comparisons and selection of PTX on exact numbers, one lane at a time: a definition for tests.

`define` gives, for an opcode and its modifiers, a function from operand bits to a tuple of result bits, or None;
`approximation` gives the exact value of an approximate function as a Python float.
"""

import math
from collections.abc import Callable
from fractions import Fraction

from support.ptx_integers import BOOLEAN, Lane, mask, packed, parts, value
from support.ptx_numbers import (
    CANONICAL,
    LAYOUT,
    Number,
    bias,
    bits_of,
    exponent_of,
    flushed,
    product,
    quotient,
    read,
    root,
    signed,
    to_multiple,
    total,
    write,
)

MODES = ("rn", "rz", "rm", "rp")
FORMS = ("f16", "bf16", "f32", "f64")
ONE = Number(0, Fraction(1))


def _exact(opcode: str, numbers: list[Number], mode: str) -> Number:
    first, *rest = numbers
    if opcode in ("add", "sub"):
        other = rest[0]._replace(sign=rest[0].sign ^ (opcode == "sub"))
        return total(first, other, mode)
    if opcode in ("fma", "mad"):
        return total(product(first, rest[0]), rest[1], mode)
    if opcode == "rcp":
        return quotient(ONE, first)
    return {"mul": product, "div": quotient, "sqrt": lambda a: root(a)}[opcode](*numbers)


def _finished(code: int, form: str, modifiers: tuple[str, ...]) -> int:
    """`.ftz`, `.sat` and `.relu` on a result."""
    code = flushed(code, form) if "ftz" in modifiers else code
    number = read(code, form)
    if "sat" in modifiers:
        if number.size == "nan" or number.sign:
            return 0
        return code if isinstance(number.size, Fraction) and number.size <= 1 else write(ONE, form)
    return 0 if "relu" in modifiers and number.sign and number.size != "nan" else code


def quiet(code: int) -> int:
    return code | 1 << 51


def _payload(ranked: tuple[int, ...]) -> int:
    """Which NaN an f64 instruction gives, as seen on an H200: the first one there is, or the default."""
    return next((quiet(c) for c in ranked if read(c, "f64").size == "nan"), 0xFFF8 << 48)


def _arithmetic(opcode: str, modifiers: tuple[str, ...]) -> Lane:
    mixed = len(modifiers) > 1 and modifiers[-2] == "f32" and modifiers[-1] in ("f16", "bf16")
    form = "f32" if mixed else modifiers[-1]
    narrow = modifiers[-1]
    mode = next((m for m in modifiers if m in MODES), "rn")

    def run(*codes: int) -> tuple[int, ...]:
        kinds = [narrow] * (len(codes) - 1) + [form]
        if "ftz" in modifiers:
            codes = tuple(flushed(c, form) for c in codes)
        numbers = [read(c, k) for c, k in zip(codes, kinds, strict=True)]
        if form == "f64" and _exact(opcode, numbers, mode).size == "nan":
            return (_payload(codes if opcode == "div" else codes[1:] + codes[:1]),)
        exact = _exact(opcode, numbers, mode)
        if "ftz" in modifiers and isinstance(exact.size, Fraction) and exact.size:
            step = Fraction(2) ** (exponent_of(exact.size) - LAYOUT[form][1])
            if to_multiple(exact.size, step, exact.sign, mode) < Fraction(2) ** (1 - bias(form)):
                exact = exact._replace(size=Fraction(0))
        return (_finished(write(exact, form, mode), form, modifiers),)

    return run


def _extremum(opcode: str, modifiers: tuple[str, ...]) -> Lane:
    form = modifiers[-1]
    sign = 1 << (bits_of(form) - 1)

    def order(code: int) -> tuple[Fraction | float, int]:
        number = read(code, form)
        size = math.inf if number.size == "inf" else Fraction(number.size)
        return (-size if number.sign else size), -number.sign

    def two(a: int, b: int) -> int:
        if "ftz" in modifiers:
            a, b = flushed(a, form), flushed(b, form)
        crossed, second = (a ^ b) & sign, b
        if "abs" in modifiers:
            a, b = a & ~sign, b & ~sign
        numbers = [c for c in (a, b) if read(c, form).size != "nan"]
        if not numbers or (len(numbers) < 2 and "NaN" in modifiers):
            return quiet(second) if form == "f64" else CANONICAL[form]
        best = (min if opcode == "min" else max)(numbers, key=order)
        return best | crossed if "xorsign" in modifiers else best

    def run(first: int, *others: int) -> tuple[int, ...]:
        for other in others:
            first = two(first, other)
        return (first,)

    return run


def _sign(opcode: str, modifiers: tuple[str, ...]) -> Lane:
    form = modifiers[-1]

    def run(a: int) -> tuple[int, ...]:
        a = flushed(a, form) if "ftz" in modifiers else a
        top = 1 << (bits_of(form) - 1)
        if read(a, form).size == "nan":
            return (quiet(a) if form == "f64" else CANONICAL[form],)
        return (a ^ top if opcode == "neg" else a & (top - 1),)

    return run


def _tested(test: str, form: str) -> Lane:
    def run(a: int) -> tuple[int, ...]:
        size = read(a, form).size
        subnormal = isinstance(size, Fraction) and size > 0 and flushed(a, form) != a
        return (
            int(
                {
                    "finite": isinstance(size, Fraction),
                    "infinite": size == "inf",
                    "number": size != "nan",
                    "notanumber": size == "nan",
                    "normal": isinstance(size, Fraction) and not subnormal,
                    "subnormal": subnormal,
                }[test]
            ),
        )

    return run


def compared(name: str, kind: str, ftz: bool) -> Callable[[int, int], int]:
    """One comparison of two codes."""
    plain = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(name, name)

    def real(code: int) -> Fraction | float | None:
        if kind not in FORMS:
            return Fraction(value(code, kind))
        number = read(flushed(code, kind) if ftz else code, kind)
        if isinstance(number.size, Fraction):
            return signed(number)
        return None if number.size == "nan" else -math.inf if number.sign else math.inf

    def run(a: int, b: int) -> int:
        x, y = real(a), real(b)
        if x is None or y is None:
            return int(plain == "nan" or (len(plain) == 3 and plain.endswith("u")))
        if plain in ("num", "nan"):
            return int(plain == "num")
        tests = {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}
        return int(tests[plain[:2]])

    return run


def _setp(modifiers: tuple[str, ...]) -> Lane:
    name, kind = modifiers[0], modifiers[-1]
    form = kind.removesuffix("x2")
    test = compared(name, form, "ftz" in modifiers)
    combine = next((BOOLEAN[m] for m in modifiers if m in BOOLEAN), lambda p, _: p)

    def run(a: int, b: int, *c: int) -> tuple[int, ...]:
        if kind != form:
            found = [test(x, y) for x, y in zip(parts(a, 16, 32), parts(b, 16, 32), strict=True)]
        else:
            found = [test(a, b), 1 - test(a, b)][: 1 if kind in ("f16", "bf16") else 2]
        return tuple(combine(p, c[0] if c else 0) for p in found)

    return run


def _set(modifiers: tuple[str, ...]) -> Lane:
    name, into, kind = modifiers[0], modifiers[-2], modifiers[-1]
    test = compared(name, kind.removesuffix("x2"), "ftz" in modifiers)
    combine = next((BOOLEAN[m] for m in modifiers if m in BOOLEAN), lambda p, _: p)
    form = into.removesuffix("x2")
    yes = write(ONE, form) if form in FORMS else mask(int(form[1:]))

    def run(a: int, b: int, *c: int) -> tuple[int, ...]:
        pairs = [(a, b)] if into == form else list(zip(parts(a, 16, 32), parts(b, 16, 32), strict=True))
        found = [yes * combine(test(x, y), c[0] if c else 0) for x, y in pairs]
        return (found[0] if into == form else packed(found, 16),)

    return run


def _slct(modifiers: tuple[str, ...]) -> Lane:
    at_least = compared("ge", modifiers[-1], "ftz" in modifiers)
    return lambda a, b, c: (a if at_least(c, 0) else b,)


def _lanes(element: Lane, size: int, bits: int) -> Lane:
    """An instruction on each half of a packed register."""

    def run(*codes: int) -> tuple[int, ...]:
        split = zip(*(parts(c, size, bits) for c in codes), strict=True)
        return (packed([element(*row)[0] for row in split], size),)

    return run


def define(opcode: str, modifiers: tuple[str, ...]) -> Lane | None:
    """The definition of a float, comparison or selection instruction with exact results."""
    last = modifiers[-1]
    if opcode == "setp":
        return _setp(modifiers)
    if opcode == "set":
        return _set(modifiers)
    if opcode == "selp":
        return lambda a, b, p: (a if p else b,)
    if opcode == "slct":
        return _slct(modifiers)
    if "approx" in modifiers or "full" in modifiers:
        return None
    if last.endswith("x2") and last.removesuffix("x2") in FORMS:
        element = define(opcode, (*modifiers[:-1], last.removesuffix("x2")))
        form = last.removesuffix("x2")
        return _lanes(element, bits_of(form), 2 * bits_of(form)) if element else None
    if last not in FORMS:
        return None
    if opcode in ("min", "max"):
        return _extremum(opcode, modifiers)
    if opcode in ("abs", "neg"):
        return _sign(opcode, modifiers)
    if opcode == "testp":
        return _tested(modifiers[0], last)
    if opcode == "copysign":
        top = bits_of(last) - 1
        return lambda a, b: (a >> top << top | b & mask(top),)
    return (
        _arithmetic(opcode, modifiers) if opcode in ("add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt") else None
    )


def approximation(opcode: str) -> Callable[..., float]:
    """The mathematical function, on Python floats; ValueError and OverflowError where it has no finite value."""

    def ex2(x: float) -> float:
        return math.exp(x * math.log(2)) if abs(x) < 1 else 2.0**x

    functions: dict[str, Callable[..., float]] = {
        "rcp": lambda x: 1 / x,
        "sqrt": math.sqrt,
        "rsqrt": lambda x: 1 / math.sqrt(x),
        "ex2": ex2,
        "lg2": math.log2,
        "sin": math.sin,
        "cos": math.cos,
        "tanh": math.tanh,
        "div": lambda x, y: x / y,
    }
    return functions[opcode]
