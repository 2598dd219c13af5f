"""Integer arithmetic: add, sub, mul, mad, mul24, mad24, sad, div, rem, abs, neg, min, max, carries, dp4a, dp2a.

Where PTX leaves a result open (division by zero), this gives what an H200 does: all ones, quotient and remainder.
"""

from collections.abc import Callable
from itertools import product

import numpy as np

from kgen.gates.ptx.arith.record import (
    SIGNED,
    UNSIGNED,
    Array,
    Entries,
    Function,
    Pure,
    halves,
    is_signed,
    joined,
    raw,
    typed,
    width,
)

KINDS = ("u16", "u32", "u64", "s16", "s32", "s64")
WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
LOW32, SHIFT32 = np.uint64(0xFFFFFFFF), np.uint64(32)


def _simple(function: Callable[..., Array]) -> Function:
    return lambda *operands: (function(*operands),)


def _signed_on(kind: str, function: Callable[..., Array]) -> Function:
    """A function of the operands as integers of their type, back to bits."""
    return lambda *operands: (raw(function(*(typed(a, kind) for a in operands))),)


def wide_product(a: Array, b: Array, kind: str) -> Array:
    """Full product of 16- or 32-bit operands, as bits of twice the width."""
    kind2 = WIDER[kind]
    to = SIGNED[width(kind2)] if is_signed(kind) else UNSIGNED[width(kind2)]
    return raw(typed(a, kind).astype(to) * typed(b, kind).astype(to))


def high_product(a: Array, b: Array, kind: str) -> Array:
    """Upper half of the full product."""
    bits = width(kind)
    if bits < 64:
        full = wide_product(a, b, kind)
        half: Array = (full >> full.dtype.type(bits)).astype(UNSIGNED[bits])
        return half
    a0, a1, b0, b1 = a & LOW32, a >> SHIFT32, b & LOW32, b >> SHIFT32
    middle = a1 * b0 + (a0 * b0 >> SHIFT32)
    other = a0 * b1 + (middle & LOW32)
    high: Array = a1 * b1 + (middle >> SHIFT32) + (other >> SHIFT32)
    if is_signed(kind):
        zero, top = np.uint64(0), np.uint64(63)
        high = high - np.where(a >> top != 0, b, zero) - np.where(b >> top != 0, a, zero)
    return high


def clamped_sum(a: Array, b: Array) -> Array:
    """s32 bits: a + b kept in range."""
    total = a.view(np.int32).astype(np.int64) + b.view(np.int32)
    return raw(np.clip(total, -(2**31), 2**31 - 1).astype(np.int32))


def clamped_difference(a: Array, b: Array) -> Array:
    """s32 bits: a - b kept in range."""
    total = a.view(np.int32).astype(np.int64) - b.view(np.int32)
    return raw(np.clip(total, -(2**31), 2**31 - 1).astype(np.int32))


def _magnitude(a: Array, kind: str) -> Array:
    return np.where(typed(a, kind) < 0, (~a) + a.dtype.type(1), a) if is_signed(kind) else a


def _negated(a: Array, where: Array) -> Array:
    return np.where(where, (~a) + a.dtype.type(1), a)


def quotient(a: Array, b: Array, kind: str) -> Array:
    """a / b rounded toward zero; all ones for b = 0."""
    one = a.dtype.type(1)
    whole = _magnitude(a, kind) // np.maximum(_magnitude(b, kind), one)
    if is_signed(kind):
        whole = _negated(whole, (typed(a, kind) < 0) != (typed(b, kind) < 0))
    result: Array = np.where(b == 0, ~a.dtype.type(0), whole)
    return result


def remainder(a: Array, b: Array, kind: str) -> Array:
    """a - b * quotient, of the sign of a; all ones for b = 0."""
    rest = _magnitude(a, kind) % np.maximum(_magnitude(b, kind), a.dtype.type(1))
    if is_signed(kind):
        rest = _negated(rest, typed(a, kind) < 0)
    return np.asarray(np.where(b == 0, ~a.dtype.type(0), rest))


def _absolute_difference(a: Array, b: Array, c: Array, kind: str) -> Array:
    x, y = typed(a, kind), typed(b, kind)
    return c + np.where(x < y, b - a, a - b)


def _product24(a: Array, b: Array, kind: str, high: bool) -> Array:
    """32 bits of the 48-bit product of the lower 24 bits of each."""
    if is_signed(kind):
        x, y = (v.view(np.int32).astype(np.int64) << 40 >> 40 for v in (a, b))
        full = (x * y).view(np.uint64)
    else:
        mask = np.uint64(0xFFFFFF)
        full = (a.astype(np.uint64) & mask) * (b.astype(np.uint64) & mask)
    return (full >> np.uint64(16 if high else 0)).astype(np.uint32)


def products(kind: str) -> dict[str, Callable[[Array, Array], Array]]:
    """Both halves of a product."""
    return {"lo": lambda a, b: a * b, "hi": lambda a, b: high_product(a, b, kind)}


def _basic() -> Entries:
    for kind in KINDS:
        two, three, one = (kind,) * 2, (kind,) * 3, (kind,)
        yield "add", ("", kind), Pure(two, one, _simple(lambda a, b: a + b))
        yield "sub", ("", kind), Pure(two, one, _simple(lambda a, b: a - b))
        yield "div", (kind,), Pure(two, one, _simple(lambda a, b, kind=kind: quotient(a, b, kind)))
        yield "rem", (kind,), Pure(two, one, _simple(lambda a, b, kind=kind: remainder(a, b, kind)))
        yield "min", ("", kind), Pure(two, one, _signed_on(kind, np.minimum))
        yield "max", ("", kind), Pure(two, one, _signed_on(kind, np.maximum))
        sad = _simple(lambda a, b, c, kind=kind: _absolute_difference(a, b, c, kind))
        yield "sad", (kind,), Pure((kind, kind, kind), one, sad)
        for half, times in products(kind).items():
            yield "mul", (half, kind), Pure(two, one, _simple(times))
            yield "mad", (half, "", kind), Pure(three, one, _simple(lambda a, b, c, times=times: times(a, b) + c))
        if is_signed(kind):
            yield "abs", (kind,), Pure(one, one, _simple(lambda a, kind=kind: _magnitude(a, kind)))
            yield "neg", (kind,), Pure(one, one, _simple(lambda a: (~a) + a.dtype.type(1)))


def _widening() -> Entries:
    for kind, kind2 in WIDER.items():
        times = _simple(lambda a, b, kind=kind: wide_product(a, b, kind))
        yield "mul", ("wide", kind), Pure((kind, kind), (kind2,), times)
        fused = _simple(lambda a, b, c, kind=kind: wide_product(a, b, kind) + c)
        yield "mad", ("wide", kind), Pure((kind, kind, kind2), (kind2,), fused)


def _clamped() -> Entries:
    two, one = ("s32", "s32"), ("s32",)
    yield "add", ("sat", "s32"), Pure(two, one, _simple(clamped_sum))
    yield "sub", ("sat", "s32"), Pure(two, one, _simple(clamped_difference))
    high = _simple(lambda a, b, c: clamped_sum(high_product(a, b, "s32"), c))
    yield "mad", ("hi", "sat", "s32"), Pure(("s32",) * 3, one, high)
    high24 = _simple(lambda a, b, c: clamped_sum(_product24(a, b, "s32", True), c))
    yield "mad24", ("hi", "sat", "s32"), Pure(("s32",) * 3, one, high24)
    for kind, half in product(("u32", "s32"), ("lo", "hi")):
        times = lambda a, b, kind=kind, half=half: _product24(a, b, kind, half == "hi")  # noqa: E731
        yield "mul24", (half, kind), Pure((kind,) * 2, (kind,), _simple(times))
        yield "mad24", (half, "", kind), Pure((kind,) * 3, (kind,), _simple(lambda a, b, c, f=times: f(a, b) + c))


def _rectified(op: str, kind: str) -> Function:
    pick, element = (np.minimum if op == "min" else np.maximum), kind.removesuffix("x2")

    def run(a: Array, b: Array) -> tuple[Array, ...]:
        x, y = (typed(halves(v) if kind.endswith("x2") else v, element) for v in (a, b))
        result = raw(np.maximum(pick(x, y), 0))
        return (joined(result, 32) if kind.endswith("x2") else result,)

    return run


def _pairs() -> Entries:
    for kind in ("u16x2", "s16x2"):
        two, element = (kind, kind), kind.removesuffix("x2")
        yield "add", ("", kind), Pure(two, (kind,), _simple(lambda a, b: joined(halves(a) + halves(b), 32)))
        for op, pick in (("min", np.minimum), ("max", np.maximum)):
            run = lambda a, b, pick=pick, k=element: joined(raw(pick(typed(halves(a), k), typed(halves(b), k))), 32)  # noqa: E731
            yield op, ("", kind), Pure(two, (kind,), _simple(run))
    for op, kind in product(("min", "max"), ("s32", "s16x2")):
        yield op, ("relu", kind), Pure((kind, kind), (kind,), _rectified(op, kind))


def _dots() -> Entries:
    for first, second in product(("u32", "s32"), repeat=2):
        out = "s32" if "s32" in (first, second) else "u32"

        def four(a: Array, b: Array, c: Array, first: str = first, second: str = second) -> Array:
            x, y = typed(halves(a, 8), first[0] + "8"), typed(halves(b, 8), second[0] + "8")
            return c + raw((x.astype(np.int64) * y).sum(-1)).astype(np.uint32)

        yield "dp4a", (first, second), Pure((first, second, out), (out,), _simple(four))
        for half in ("lo", "hi"):

            def two(a: Array, b: Array, c: Array, k: tuple[str, str] = (first, second), at: str = half) -> Array:
                part = slice(0, 2) if at == "lo" else slice(2, 4)
                x, y = typed(halves(a, 16), k[0][0] + "16"), typed(halves(b, 8), k[1][0] + "8")[..., part]
                return c + raw((x.astype(np.int64) * y).sum(-1)).astype(np.uint32)

            yield "dp2a", (half, first, second), Pure((first, second, out), (out,), _simple(two))


def entries() -> Entries:
    """Every instruction of this file."""
    for part in (_basic, _widening, _clamped, _pairs, _dots):
        yield from part()
