"""Comparison and selection: setp, set, selp, slct."""

from collections.abc import Callable
from itertools import product

import numpy as np

from kgen.gates.ptx.arith.bits import COMBINE
from kgen.gates.ptx.arith.formats import F32, FORMATS, floats32, flush
from kgen.gates.ptx.arith.record import UNSIGNED, Array, Entries, Function, Pure, halves, joined, typed, width

Test = Callable[[Array, Array], Array]

ORDERED: dict[str, Test] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
ALIASES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
UNORDERED = {f"{name}u": name for name in ORDERED}
INTEGERS = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64")
FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
SELECTED = (*INTEGERS, "f32", "f64")


def _numbers(bits: Array, kind: str) -> Array:
    return bits.view(np.float64) if kind == "f64" else floats32(bits, kind)


def _float_test(name: str) -> Test:
    """Ordered comparisons are false on NaN, those with a final u true."""

    def run(a: Array, b: Array) -> Array:
        nan: Array = (a != a) | (b != b)
        if name in ("num", "nan"):
            return nan if name == "nan" else ~nan
        result = ORDERED[UNORDERED.get(name, name)](a, b)
        return np.logical_or(result, nan) if name in UNORDERED else result & ~nan

    return run


def comparisons(kind: str) -> tuple[str, ...]:
    """Names of the comparisons of a type."""
    if kind in FLOATS:
        return (*ORDERED, *UNORDERED, "num", "nan")
    if kind[0] == "b":
        return ("eq", "ne")
    return (*ORDERED, *ALIASES) if kind[0] == "u" else tuple(ORDERED)


def _compare(name: str, kind: str, ftz: bool) -> Callable[[Array, Array], Array]:
    """bool per element; an x2 kind has a last axis of two."""
    element, packed = kind.removesuffix("x2"), kind.endswith("x2")
    if kind not in FLOATS:
        test = ORDERED[ALIASES.get(name, name)]
        return lambda a, b: test(typed(a, kind), typed(b, kind))
    compare = _float_test(name)

    def run(a: Array, b: Array) -> Array:
        if packed:
            a, b = halves(a), halves(b)
        if ftz:
            a, b = flush(a, element), flush(b, element)
        with np.errstate(all="ignore"):
            return compare(_numbers(a, element), _numbers(b, element))

    return run


def _predicate(name: str, combine: str, kind: str, ftz: bool) -> Function:
    """The comparison and, but for f16 and bf16, its opposite; of an x2 kind those of the lower and the upper half."""
    compare, packed, results = _compare(name, kind, ftz), kind.endswith("x2"), 1 if kind in ("f16", "bf16") else 2

    def run(a: Array, b: Array, *c: Array) -> tuple[Array, ...]:
        found = compare(a, b)
        pair = (found[..., 0], found[..., 1]) if packed else (found, ~found)[:results]
        return tuple(COMBINE[combine](p, c[0]) for p in pair) if combine else pair

    return run


def _written(name: str, combine: str, into: str, kind: str, ftz: bool) -> Function:
    """All ones or 1.0 where the comparison holds, else zero."""
    compare, element = _compare(name, kind, ftz), into.removesuffix("x2")
    to = UNSIGNED[width(element)]
    yes = to(FORMATS[element].one if element in FORMATS else (1 << width(element)) - 1)

    def run(a: Array, b: Array, *c: Array) -> tuple[Array, ...]:
        found = compare(a, b)
        if combine:
            found = COMBINE[combine](found, c[0][..., None] if kind.endswith("x2") else c[0])
        result = np.where(found, yes, to(0))
        return (joined(result, 32) if kind.endswith("x2") else result,)

    return run


def _flushes(kind: str) -> tuple[str, ...]:
    return ("", "ftz") if kind in ("f32", "f16", "f16x2") else ("",)


def _setp() -> Entries:
    for kind in (*INTEGERS, *FLOATS):
        for name, combine, ftz in product(comparisons(kind), ("", *COMBINE), _flushes(kind)):
            operands = (kind, kind, "pred") if combine else (kind, kind)
            run = _predicate(name, combine, kind, bool(ftz))
            results = ("pred",) if kind in ("f16", "bf16") else ("pred", "pred")
            yield "setp", (name, combine, ftz, kind), Pure(operands, results, run)


def _destinations(kind: str) -> tuple[str, ...]:
    if kind.endswith("x2"):
        return (kind,)
    narrow = ("u16", "s16", "u32", "s32") if kind in ("f16", "bf16") else ("u32", "s32", "f32")
    return (*narrow, *(("f16",) if kind == "f16" else ()), *(("bf16",) if kind == "bf16" else ()))


def _set() -> Entries:
    for kind in (*INTEGERS, *FLOATS):
        for into, name, combine, ftz in product(_destinations(kind), comparisons(kind), ("", *COMBINE), _flushes(kind)):
            operands = (kind, kind, "pred") if combine else (kind, kind)
            run = _written(name, combine, into, kind, bool(ftz))
            yield "set", (name, combine, ftz, into, kind), Pure(operands, (into,), run)


def _selected(a: Array, b: Array, chosen: Array) -> tuple[Array, ...]:
    return (np.where(chosen, a, b),)


def _by_sign(kind: str, ftz: bool) -> Function:
    """`slct`: a where c >= 0 (-0 is, NaN is not), else b."""

    def run(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        if kind == "s32":
            return (np.where(c.view(np.int32) >= 0, a, b),)
        flushed = flush(c) if ftz else c
        number = (c & np.uint32(0x7FFFFFFF)) <= np.uint32(F32.infinity or 0)
        below = number & (flushed > np.uint32(1 << 31))
        return (np.where(number & ~below, a, b),)

    return run


def entries() -> Entries:
    """Every instruction of this file."""
    yield from _setp()
    yield from _set()
    for kind in SELECTED:
        yield "selp", (kind,), Pure((kind, kind, "pred"), (kind,), _selected)
        for ftz, by in (("", "s32"), ("", "f32"), ("ftz", "f32")):
            yield "slct", (ftz, kind, by), Pure((kind, kind, by), (kind,), _by_sign(by, bool(ftz)))
