"""`cvt` between scalar types: integers of 8 to 64 bits, f16, bf16, f32, f64, and tf32 from f32.

Float to integer clamps to the range of the type; NaN gives 0, or the top bit alone for f64 sources and 64-bit results.
Float to float: where PTX leaves the bits of a NaN open they are what an H200 gives (from and to f64: sign and payload).
A result is of its own width: `record.fit` extends it to a wider register. Packed conversions are in `packed`.
"""

from itertools import product
from typing import Any

import numpy as np

from kgen.gates.ptx.arith import exact64
from kgen.gates.ptx.arith.floats import canonical, rectified, saturated
from kgen.gates.ptx.arith.formats import (
    BF16,
    F16,
    F64,
    FORMATS,
    QUIET,
    TF32,
    decode,
    encode,
    floats32,
    flush,
    is_nan,
    quiet64,
)
from kgen.gates.ptx.arith.record import (
    SIGNED,
    UNSIGNED,
    Array,
    Entries,
    Function,
    Pure,
    fit,
    is_signed,
    raw,
    typed,
    width,
)

INTEGERS = tuple(f"{sign}{bits}" for bits in (8, 16, 32, 64) for sign in "us")
FLOATS = ("f16", "bf16", "f32", "f64")
MODES = ("rn", "rz", "rm", "rp")
WHOLE = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def limits(kind: str) -> tuple[int, int]:
    """Smallest and largest integer of a type."""
    bits = width(kind)
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed(kind) else (0, (1 << bits) - 1)


def integer_type(kind: str) -> Any:
    """NumPy's integer of a type."""
    return (SIGNED if is_signed(kind) else UNSIGNED)[width(kind)]


def clamped(bits: Array, source: str, into: str) -> Array:
    """Integers kept in the range of another type, as bits of it."""
    (low, high), (least, most) = limits(into), limits(source)
    value = typed(bits, source)
    return raw(np.clip(value, max(low, least), min(high, most)).astype(integer_type(into)))


def from_integer(bits: Array, source: str, into: str, rounding: str) -> Array:
    """Integers to a float type, one rounding."""
    value = typed(bits, source)
    if into == "f64":
        if rounding == "rn" or width(source) < 64:
            return value.astype(np.float64).view(np.uint64)
        codes = [exact64.rounded(v, 0, rounding) for v in value.ravel().tolist()]
        return np.array(codes, np.uint64).reshape(bits.shape)
    if into == "f32" and rounding == "rn":
        return value.astype(np.float32).view(np.uint32)
    if width(source) == 64:  # jam what float64 cannot hold into one bit far below the last bit of the result
        magnitude = np.where(value < 0, (~bits) + np.uint64(1), bits) if is_signed(source) else bits
        rest = magnitude & np.uint64(0xFFF)
        jammed = (magnitude - rest) | ((rest != 0).astype(np.uint64) << np.uint64(12))
        wide = np.where(magnitude < np.uint64(1 << 53), magnitude, jammed).astype(np.float64)
        wide = np.where(value < 0, -wide, wide) if is_signed(source) else wide
    else:
        wide = value.astype(np.float64)
    return encode(wide, FORMATS[into], rounding)


def to_integer(bits: Array, source: str, into: str, rounding: str) -> Array:
    """Floats to an integer type, clamped."""
    (low, high), size = limits(into), width(into)
    to = UNSIGNED[size]
    with np.errstate(all="ignore"):
        x = decode(bits, source)
        whole = WHOLE[rounding](x)
        over, under = whole >= float(high), whole <= float(low)
        inside = np.where(over | under | (x != x), 0.0, whole)
    result = raw(inside.astype(integer_type(into)))
    result = np.where(over, to(high), np.where(under, to(low & (1 << size) - 1), result))
    nan = to(1 << (size - 1)) if source == "f64" or size == 64 else to(0)
    return np.where(x != x, nan, result)


def narrow(bits: Array, source: str, into: str, rounding: str, satfinite: bool = False) -> Array:
    """Floats to a float type that may not hold them, one rounding."""
    if source == "f32" and rounding == "rn" and not satfinite:
        if into == "bf16":
            last = (bits >> np.uint32(16)) & np.uint32(1)
            code = ((bits + np.uint32(0x7FFF) + last) >> np.uint32(16)).astype(np.uint16)
            nan = is_nan(bits, "f32")
            return np.where(nan, np.uint16(BF16.nan), code) if nan.any() else code
        if into == "f16":
            with np.errstate(all="ignore"):
                code = bits.view(np.float32).astype(np.float16).view(np.uint16)
            return np.where(is_nan(bits, "f32"), np.uint16(F16.nan), code)
    result = encode(decode(bits, source), FORMATS[into], rounding, satfinite)
    return np.where(is_nan(bits, "f64"), _short_nan(bits, into), result) if source == "f64" else result


def _short_nan(bits: Array, into: str) -> Array:
    """A NaN of f64 in a shorter format: sign and upper payload, quiet."""
    form = FORMATS[into]
    payload = (bits & np.uint64((1 << 52) - 1) | QUIET) >> np.uint64(52 - form.fraction)
    sign = (bits >> np.uint64(63)) << np.uint64(form.bits - 1)
    return (sign | np.uint64(form.infinity or 0) | payload).astype(UNSIGNED[form.bits])


def widen(bits: Array, source: str, into: str) -> Array:
    """Floats to a float type that holds them; NaN canonical from f16 to f32, else with its payload."""
    with np.errstate(all="ignore"):
        if into == "f64":
            return quiet64(decode(bits, source).view(np.uint64))
        if source == "bf16":
            return bits.astype(np.uint32) << np.uint32(16)
        return canonical(floats32(bits, source))


def whole(bits: Array, kind: str, rounding: str) -> Array:
    """Floats rounded to whole numbers of the same type; the sign of zero stays."""
    with np.errstate(all="ignore"):
        x = WHOLE[rounding](decode(bits, kind))
    return (
        np.where(is_nan(bits, "f64"), quiet64(bits), x.view(np.uint64)) if kind == "f64" else encode(x, FORMATS[kind])
    )


def one_nan(bits: Array, kind: str) -> Array:
    """Every NaN the canonical one."""
    return np.where(is_nan(bits, kind), bits.dtype.type(FORMATS[kind].nan), bits)


def _finish(bits: Array, kind: str, ftz: bool, sat: bool) -> Array:
    bits = flush(bits) if ftz and kind == "f32" else bits
    return saturated(bits, kind) if sat else bits


def _between(source: str, into: str, rounding: str, ftz: bool, sat: bool) -> Function:
    def run(a: Array) -> tuple[Array, ...]:
        if ftz and source == "f32":
            a = one_nan(flush(a), "f32")
        if rounding in WHOLE:
            result = whole(a, source, rounding)
        elif source == into:
            result = one_nan(a, into) if into in ("f16", "bf16") else a
        else:
            result = narrow(a, source, into, rounding) if rounding else widen(a, source, into)
        if ftz and source == "bf16":
            result = one_nan(result, into)
        return (_finish(result, into, ftz, sat),)

    return run


def _bounded(into: str, rounding: str, relu: bool, satfinite: bool) -> Function:
    """f32 to f16 or bf16 with `.relu` or `.satfinite`."""

    def run(a: Array) -> tuple[Array, ...]:
        result = narrow(a, "f32", into, rounding, satfinite)
        return (rectified(result, into) if relu else result,)

    return run


def to_tf32(a: Array, rounding: str, satfinite: bool, relu: bool) -> Array:
    """f32 to tf32 in the upper 19 bits."""
    result = encode(decode(a, "f32"), TF32, rounding, satfinite) << np.uint32(13)
    if rounding == "rna" and not satfinite:  # an H200 cuts a NaN, even if nothing of its payload is left
        result = np.where(is_nan(a, "f32"), a & np.uint32(0xFFFFE000), result)
    return rectified(result, "f32") if relu else result


def _integers() -> Entries:
    for source, into in product(INTEGERS, repeat=2):
        resize = lambda a, source=source, into=into: (fit(a, source, width(into)),)  # noqa: E731
        yield "cvt", ("", "", "", into, source), Pure((source,), (into,), resize)
        (low, high), (least, most) = limits(into), limits(source)
        if low > least or high < most:
            keep = lambda a, source=source, into=into: (clamped(a, source, into),)  # noqa: E731
            yield "cvt", ("", "", "sat", into, source), Pure((source,), (into,), keep)


def _mixed() -> Entries:
    for integer, kind in product(INTEGERS, FLOATS):
        flushes = ("", "ftz") if kind == "f32" else ("",)
        for mode, ftz, sat in product(MODES, flushes, ("", "sat")):
            if sat and kind == "bf16":
                continue

            def make(a: Array, way: tuple[str, str, str] = (integer, kind, mode), sat: str = sat) -> tuple[Array, ...]:
                return (_finish(from_integer(a, *way), way[1], False, bool(sat)),)

            yield "cvt", (mode, ftz, sat, kind, integer), Pure((integer,), (kind,), make)
        for mode, ftz, sat in product(WHOLE, flushes, ("",) if kind == "bf16" else ("", "sat")):

            def take(a: Array, way: tuple[str, str, str] = (kind, integer, mode), ftz: str = ftz) -> tuple[Array, ...]:
                return (to_integer(flush(a) if ftz else a, *way),)

            yield "cvt", (mode, ftz, sat, integer, kind), Pure((kind,), (integer,), take)


def _modes(source: str, into: str) -> tuple[str, ...]:
    """Roundings of a conversion between float types."""
    if source == into:
        return ("", *WHOLE)
    loses = F64 if source == "f64" else FORMATS[source]
    held = FORMATS[into]
    return MODES if loses.fraction > held.fraction or loses.least < held.least else ("",)


def _floats() -> Entries:
    for source, into in product(FLOATS, repeat=2):
        flushes = ("", "ftz") if "f32" in (source, into) else ("",)
        for mode, ftz, sat in product(_modes(source, into), flushes, ("", "sat")):
            if sat and "bf16" in (source, into):
                continue
            run = _between(source, into, mode, bool(ftz), bool(sat))
            yield "cvt", (mode, ftz, sat, into, source), Pure((source,), (into,), run)
    for into, mode, relu, satfinite in product(("f16", "bf16"), ("rn", "rz"), ("", "relu"), ("", "satfinite")):
        if relu or satfinite:
            run = _bounded(into, mode, bool(relu), bool(satfinite))
            yield "cvt", (mode, relu, satfinite, into, "f32"), Pure(("f32",), (into,), run)
    for mode, satfinite, relu in product(("rna", "rn", "rz"), ("", "satfinite"), ("", "relu")):
        if mode == "rna" and relu:
            continue
        step = lambda a, m=mode, s=satfinite, r=relu: (to_tf32(a, m, bool(s), bool(r)),)  # noqa: E731
        yield "cvt", (mode, satfinite, relu, "tf32", "f32"), Pure(("f32",), ("b32",), step)


def entries() -> Entries:
    """Every instruction of this file."""
    for part in (_integers, _mixed, _floats):
        yield from part()
