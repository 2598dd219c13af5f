"""Float instructions that choose or edit bits instead of rounding: min, max, abs, neg, copysign, testp.

A NaN result of min, max, abs and neg is canonical for f16, bf16 and f32; f64 keeps sign and payload and makes it quiet
(what PTX leaves open here is what an H200 does).
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from kgen.gates.ptx.arith.formats import FORMATS, QUIET, flush, is_nan
from kgen.gates.ptx.arith.record import UNSIGNED, Array, Entries, Function, Pure, halves, joined, width

KINDS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
TESTS = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")


def _sign(kind: str) -> Any:
    return UNSIGNED[width(kind)](1 << (width(kind) - 1))


def _order(bits: Array, kind: str) -> Array:
    """Codes in an order that unsigned comparison follows; -0 before +0."""
    sign = _sign(kind)
    return np.where((bits & sign) != 0, ~bits, bits | sign)


def _pick32(a: Array, b: Array, larger: bool, with_nan: bool) -> Array:
    """`_pick` for plain f32, which is hot: NumPy's own but for the signs of zeros and the bits of NaN."""
    x, y = a.view(np.float32), b.view(np.float32)
    nan = (x != x) | (y != y)
    with np.errstate(all="ignore"):
        result = np.maximum(x, y) if larger else np.minimum(x, y)
    bits: Array = result.view(np.uint32)
    zeros = result == 0
    if zeros.any():
        bits = np.where(zeros & (x == y), a & b if larger else a | b, bits)
    return np.where(nan, _pick(a, b, "f32", larger, with_nan, False), bits) if nan.any() else bits


def _pick(a: Array, b: Array, kind: str, larger: bool, with_nan: bool, cross: bool) -> Array:
    """min or max of two: of magnitudes with the product's sign if `cross`; NaN if both are, or one and `with_nan`."""
    sign, nan = _sign(kind), UNSIGNED[width(kind)](FORMATS[kind].nan)
    crossed = (a ^ b) & sign
    if cross:
        a, b = a & ~sign, b & ~sign
    a_nan, b_nan = is_nan(a, kind), is_nan(b, kind)
    first = _order(a, kind) >= _order(b, kind) if larger else _order(a, kind) < _order(b, kind)
    chosen = np.where((first & ~a_nan) | b_nan, a, b)
    if cross:
        chosen = chosen | crossed
    return np.where((a_nan | b_nan) if with_nan else (a_nan & b_nan), b | QUIET if kind == "f64" else nan, chosen)


def _elementwise(kind: str, ftz: bool, function: Callable[..., Array]) -> Function:
    """A function on one element's bits for a scalar or packed kind."""
    element, packed = kind.removesuffix("x2"), kind.endswith("x2")

    def run(*operands: Array) -> tuple[Array, ...]:
        parts = [halves(a) for a in operands] if packed else list(operands)
        if ftz:
            parts = [flush(p, element) for p in parts]
        result = function(*parts)
        return (joined(result, 32) if packed else result,)

    return run


def _extremum(kind: str, larger: bool, with_nan: bool, cross: bool) -> Callable[..., Array]:
    element = kind.removesuffix("x2")

    def pick(first: Array, *others: Array) -> Array:
        for other in others:
            if kind == "f32" and not cross:
                first = _pick32(first, other, larger, with_nan)
                continue
            first = _pick(first, other, element, larger, with_nan, cross)
        return first

    return pick


def _extrema() -> Entries:
    for op, kind in product(("min", "max"), KINDS):
        if kind == "f64":
            pick = _extremum(kind, op == "max", False, False)
            yield op, (kind,), Pure((kind, kind), (kind,), _elementwise(kind, False, pick))
            continue
        flushes = ("",) if kind.startswith("bf16") else ("", "ftz")
        for ftz, nan, cross in product(flushes, ("", "NaN"), ("", "xorsign")):
            run = _elementwise(kind, bool(ftz), _extremum(kind, op == "max", bool(nan), bool(cross)))
            slots = (ftz, nan, cross, "abs" if cross else "", kind)
            yield op, slots, Pure((kind, kind), (kind,), run)


def threes() -> Entries:
    """min and max of three f32 (`sm_100` and newer); the two-operand forms have the same modifiers."""
    for op, ftz, nan, absolute in product(("min", "max"), ("", "ftz"), ("", "NaN"), ("", "abs")):
        pick = _extremum("f32", op == "max", bool(nan), False)

        def run(*operands: Array, pick: Callable[..., Array] = pick, absolute: str = absolute) -> Array:
            sign = np.uint32(1 << 31)
            return pick(*(a & ~sign for a in operands)) if absolute else pick(*operands)

        yield op, (ftz, nan, absolute, "f32"), Pure(("f32",) * 3, ("f32",), _elementwise("f32", bool(ftz), run))


def _changed_sign(kind: str, negate: bool) -> Callable[[Array], Array]:
    element = kind.removesuffix("x2")
    sign = _sign(element)

    def run(a: Array) -> Array:
        result: Array = a ^ sign if negate else a & ~sign
        nan = a | QUIET if element == "f64" else a.dtype.type(FORMATS[element].nan)
        return np.where(is_nan(a, element), nan, result)

    return run


def _tests(bits: Array, kind: str, test: str) -> Array:
    form, to = FORMATS[kind], bits.dtype.type
    magnitude, infinity = bits & ~_sign(kind), to(form.infinity or 0)
    least = to(1 << form.fraction)
    tests: dict[str, Callable[[], Array]] = {
        "finite": lambda: magnitude < infinity,
        "infinite": lambda: magnitude == infinity,
        "number": lambda: magnitude <= infinity,
        "notanumber": lambda: magnitude > infinity,
        "normal": lambda: (magnitude < infinity) & ((magnitude >= least) | (magnitude == 0)),
        "subnormal": lambda: (magnitude < least) & (magnitude > 0),
    }
    return tests[test]()


def entries() -> Entries:
    """Every instruction of this file but the three-operand forms."""
    yield from _extrema()
    for op, kind in product(("abs", "neg"), KINDS):
        for ftz in ("",) if kind.startswith("bf16") or kind == "f64" else ("", "ftz"):
            run = _elementwise(kind, bool(ftz), _changed_sign(kind, op == "neg"))
            yield op, (ftz, kind), Pure((kind,), (kind,), run)
    for kind in ("f32", "f64"):
        sign = _sign(kind)
        edit = _elementwise(kind, False, lambda a, b, sign=sign: (b & ~sign) | (a & sign))
        yield "copysign", (kind,), Pure((kind, kind), (kind,), edit)
        for test in TESTS:
            ask = _elementwise(kind, False, lambda a, kind=kind, test=test: _tests(a, kind, test))
            yield "testp", (test, kind), Pure((kind,), ("pred",), ask)
