"""Arithmetic of f32, f16, bf16 (also x2, and f32 with narrow operands) and f64: add, sub, mul, fma, div, rcp, sqrt.

One rounding per instruction, subnormals kept unless `.ftz`, NaN results canonical (0x7fffffff, 0x7fff). PTX leaves
the payload of f64 NaN open; here it is what an H200 gives: that of one NaN operand, made quiet, or
0xfff8000000000000. Not here: approximate forms (`approximate`), `fma.oob`.
"""

from collections.abc import Callable

import numpy as np

from kgen.gates.ptx.arith import exact64
from kgen.gates.ptx.arith.formats import (
    F32,
    FORMATS,
    QUIET,
    decode,
    encode,
    floats32,
    flush,
    flush_result,
    is_nan,
    negative_zero,
    odd_quotient,
    odd_root,
    odd_sum,
)
from kgen.gates.ptx.arith.record import Array, Entries, Function, Pure, halves, joined

Wide = Callable[..., Array]  # float64 operands, rounding -> float64 with a sticky last bit

MODES = ("rn", "rz", "rm", "rp")
MIDPOINT, BELOW = np.uint64(0x10000000), np.uint64(0x1FFFFFFF)  # bits of a float64 under the last bit of a float32
TINY = 2.0**-126
BLOCK = 1 << 15  # lanes of a fused multiply-add at a time
NAN32 = np.uint32(F32.nan)


def saturated(bits: Array, kind: str) -> Array:
    """`.sat`: into [+0, 1], NaN to +0."""
    form, to = FORMATS[kind], bits.dtype.type
    low = (bits >> to(form.bits - 1) != 0) | is_nan(bits, kind)
    return np.asarray(np.where(low, to(0), np.minimum(bits, to(form.one))))


def rectified(bits: Array, kind: str) -> Array:
    """`.relu` on results whose NaN is canonical: below zero, and -0, become +0."""
    to = bits.dtype.type
    return np.where(bits >> to(FORMATS[kind].bits - 1) != 0, to(0), bits)


def canonical(result: Array) -> Array:
    """float32 results as bits, every NaN the canonical one."""
    nan = result != result
    bits: Array = result.view(np.uint32)
    return np.where(nan, NAN32, bits) if nan.any() else bits


def fused32(a: Array, b: Array, c: Array) -> Array:
    """float32 a * b + c with one rounding to nearest."""
    if not (a.shape == b.shape == c.shape and a.size > 2 * BLOCK):
        return _fused(a, b, c)
    result = np.empty(a.shape, np.float32)  # in blocks that stay in the processor's cache
    rows = max(1, BLOCK * len(a) // a.size)
    for first in range(0, len(a), rows):
        part = slice(first, first + rows)
        result[part] = _fused(a[part], b[part], c[part])
    return result


def _fused(a: Array, b: Array, c: Array) -> Array:
    """The product is exact in float64, the sum is rounded there. Rounding again to float32 goes wrong only if the
    float64 sum is inexact and stands on a midpoint of two float32 or below their normal range: those lanes, which are
    rare, are done again, rounded to odd.
    """
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    result = np.asarray(total.astype(np.float32))
    risky = (total.view(np.uint64) & BELOW) == MIDPOINT
    risky |= np.abs(result) <= np.float32(TINY)
    if risky.any():
        risky &= (total - product != c) | (total - c != product)
        if risky.any():
            addend = np.broadcast_to(c, risky.shape)[risky].astype(np.float64)
            result[risky] = odd_sum(np.broadcast_to(product, risky.shape)[risky], addend).astype(np.float32)
    return result


def _sum(a: Array, b: Array, rounding: str) -> Array:
    return negative_zero(odd_sum(a, b), a, b, rounding)


WIDE: dict[str, Wide] = {
    "add": _sum,
    "sub": lambda a, b, rounding: _sum(a, -b, rounding),
    "mul": lambda a, b, rounding: a * b,
    "fma": lambda a, b, c, rounding: _sum(a * b, c, rounding),
    "div": lambda a, b, rounding: odd_quotient(a, b),
    "rcp": lambda a, rounding: odd_quotient(np.ones_like(a), a),
    "sqrt": lambda a, rounding: odd_root(a),
}
NATIVE: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fma": fused32,
    "div": np.divide,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
}
EXACT: dict[str, exact64.Lane] = {
    "add": exact64.total,
    "sub": lambda a, b, rounding: exact64.total(a, b ^ exact64.SIGN, rounding),
    "mul": exact64.product,
    "fma": exact64.fused,
    "div": exact64.quotient,
    "rcp": lambda a, rounding: exact64.quotient(FORMATS["f64"].one, a, rounding),
    "sqrt": exact64.root,
}
OPERANDS = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "div": 2, "rcp": 1, "sqrt": 1}


def _plain(native: Callable[..., Array]) -> Function:
    """f32 to nearest without modifiers: the hot case, with nothing around NumPy's own."""

    def run(*operands: Array) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            return (canonical(native(*[a.view(np.float32) for a in operands])),)

    return run


def function32(op: str, rounding: str, ftz: bool, sat: bool, kinds: tuple[str, ...] = ()) -> Function:
    """An f32 instruction; `kinds` are the operands' types where they are not all f32."""
    native, wide = NATIVE[op], WIDE[op]
    if rounding == "rn" and not (ftz or sat or kinds):
        return _plain(native)
    kinds = kinds or ("f32",) * OPERANDS[op]

    def run(*operands: Array) -> tuple[Array, ...]:
        if ftz:
            operands = tuple(flush(a) for a in operands)

        def exact() -> Array:
            return wide(*(decode(a, k) for a, k in zip(operands, kinds, strict=True)), rounding=rounding)

        with np.errstate(all="ignore"):
            if rounding == "rn":
                result = canonical(native(*(floats32(a, k) for a, k in zip(operands, kinds, strict=True))))
            else:
                result = encode(exact(), F32, rounding)
            result = flush_result(result, exact, "f32", rounding) if ftz else result
        return (saturated(result, "f32") if sat else result,)

    return run


def function16(op: str, kind: str, ftz: bool, sat: bool, relu: bool) -> Function:
    """An f16 or bf16 instruction; an x2 kind works on both halves."""
    wide, element, packed = WIDE[op], kind.removesuffix("x2"), kind.endswith("x2")

    def run(*operands: Array) -> tuple[Array, ...]:
        parts = [halves(a) for a in operands] if packed else list(operands)
        if ftz:
            parts = [flush(p, element) for p in parts]
        with np.errstate(all="ignore"):
            exact = wide(*(decode(p, element) for p in parts), rounding="rn")
            result = encode(exact, FORMATS[element])
            result = flush_result(result, lambda: exact, element, "rn") if ftz else result
        result = saturated(result, element) if sat else result
        result = rectified(result, element) if relu else result
        return (joined(result, 32) if packed else result,)

    return run


def _payload(ranked: tuple[Array, ...]) -> Array:
    """The NaN of an f64 instruction: that of the last operand that is one, made quiet, else the default."""
    nan: Array = np.full(1, FORMATS["f64"].nan, np.uint64)
    for operand in ranked:
        nan = np.where(is_nan(operand, "f64"), operand | QUIET, nan)
    return nan


def function64(op: str, rounding: str) -> Function:
    """An f64 instruction."""

    def run(*operands: Array) -> tuple[Array, ...]:
        if rounding == "rn" and op != "fma":
            with np.errstate(all="ignore"):
                result = NATIVE[op](*(a.view(np.float64) for a in operands)).view(np.uint64)
        else:
            result = exact64.lanes(EXACT[op], rounding, operands)
        ranked = operands[::-1] if op == "div" else (operands[0], *operands[:0:-1])
        return (np.where(is_nan(result, "f64"), _payload(ranked), result),)

    return run


def _singles() -> Entries:
    for op in ("add", "sub", "mul", "fma", "mad"):
        core = "fma" if op == "mad" else op
        kinds = ("f32",) * OPERANDS[core]
        for mode in MODES if core == "fma" else ("", *MODES):
            for ftz in ("", "ftz"):
                for sat in ("", "sat"):
                    run = function32(core, mode or "rn", bool(ftz), bool(sat))
                    yield op, (mode, ftz, sat, "f32"), Pure(kinds, ("f32",), run)
    for op in ("div", "rcp", "sqrt"):
        for mode in MODES:
            for ftz in ("", "ftz"):
                run = function32(op, mode, bool(ftz), False)
                yield op, (mode, ftz, "f32"), Pure(("f32",) * OPERANDS[op], ("f32",), run)


def _doubles() -> Entries:
    for op in ("add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt"):
        core = "fma" if op == "mad" else op
        for mode in ("", *MODES) if core in ("add", "sub", "mul") else MODES:
            yield op, (mode, "f64"), Pure(("f64",) * OPERANDS[core], ("f64",), function64(core, mode or "rn"))


def _narrow() -> Entries:
    for op in ("add", "sub", "mul", "fma"):
        count = OPERANDS[op]
        for kind in ("f16", "f16x2", "bf16", "bf16x2"):
            for mode in ("rn",) if op == "fma" else ("", "rn"):
                for ftz in ("", "ftz") if kind.startswith("f") else ("",):
                    for post in ("", *(("sat",) if kind.startswith("f") else ()), *(("relu",) if op == "fma" else ())):
                        run = function16(op, kind, bool(ftz), post == "sat", post == "relu")
                        yield op, (mode, ftz, post, kind), Pure((kind,) * count, (kind,), run)


def _mixed() -> Entries:
    """f32 results from f16 or bf16 operands; the addend (add, sub: the second operand) is f32."""
    for op in ("add", "sub", "fma"):
        for narrow in ("f16", "bf16"):
            kinds = (narrow,) * (OPERANDS[op] - 1) + ("f32",)
            for mode in MODES if op == "fma" else ("", *MODES):
                for sat in ("", "sat"):
                    run = function32(op, mode or "rn", False, bool(sat), kinds)
                    yield op, (mode, sat, "f32", narrow), Pure(kinds, ("f32",), run)


def _pairs() -> Entries:
    """Two f32 in one 64-bit register."""
    for op in ("add", "sub", "mul", "fma"):
        for mode in MODES if op == "fma" else ("", *MODES):
            for ftz in ("", "ftz"):
                one = function32(op, mode or "rn", bool(ftz), False)

                def run(*operands: Array, one: Function = one) -> tuple[Array, ...]:
                    return (joined(one(*(halves(a, 32) for a in operands))[0], 64),)

                kinds = ("f32x2",) * OPERANDS[op]
                yield op, (mode, ftz, "f32x2"), Pure(kinds, ("f32x2",), run)


def entries() -> Entries:
    """Every instruction of this file."""
    for part in (_singles, _doubles, _narrow, _mixed, _pairs):
        yield from part()
