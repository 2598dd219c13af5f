"""`cvt` with packed results or sources (f16x2, bf16x2, two 8-, 6- or 4-bit floats, E8M0 to bf16x2) and `cvt.pack`.

The first operand of a pair goes to the upper half. Not here: stochastic rounding (`.rs`), conversions to ue8m0x2, x4.
"""

from itertools import product

import numpy as np

from kgen.gates.ptx.arith.convert import narrow
from kgen.gates.ptx.arith.floats import rectified
from kgen.gates.ptx.arith.formats import F16, SMALL, decode, encode, values
from kgen.gates.ptx.arith.record import Array, Entries, Function, Pure, halves, joined


def _pair(kind: str, rounding: str, relu: bool, satfinite: bool) -> Function:
    """Two f32 to f16x2 or bf16x2."""

    def run(a: Array, b: Array) -> tuple[Array, ...]:
        high, low = (narrow(v, "f32", kind, rounding, satfinite) for v in (a, b))
        if relu:
            high, low = rectified(high, kind), rectified(low, kind)
        return ((high.astype(np.uint32) << np.uint32(16)) | low,)

    return run


def _small_codes(x: Array, name: str, relu: bool) -> Array:
    """float64 with a last axis of two -> packed codes, lowest first."""
    form = SMALL[name]
    code = encode(x, form, "rn", satfinite=True)
    if relu:
        code = np.where(code >> np.uint8(form.bits - 1) != 0, np.uint8(0), code)
    if form.bits == 4:
        both: Array = code[..., 0] | (code[..., 1] << np.uint8(4))
        return both
    return joined(code, 16)


def _small_from(name: str, source: str, relu: bool) -> Function:
    def run(*operands: Array) -> tuple[Array, ...]:
        if source == "f32":
            both = decode(np.stack(np.broadcast_arrays(operands[1], operands[0]), axis=-1), "f32")
        else:
            both = decode(halves(operands[0]), source.removesuffix("x2"))
        return (_small_codes(both, name, relu),)

    return run


def _small_to_half(name: str, relu: bool) -> Function:
    """Packed codes to f16x2; NaN canonical."""
    form = SMALL[name]
    table = encode(values(form), F16)
    table = rectified(table, "f16") if relu else table

    def run(a: Array) -> tuple[Array, ...]:
        if form.bits == 4:
            codes = np.stack([a & np.uint8(15), a >> np.uint8(4)], axis=-1)
        else:
            codes = halves(a, 8) & np.uint8((1 << form.bits) - 1)
        return (joined(table[codes], 32),)

    return run


def _scales(a: Array) -> tuple[Array, ...]:
    """Two E8M0 exponents to bf16x2: 2^(code - 127), 255 is NaN."""
    codes = halves(a, 8).astype(np.uint16)
    result = np.where(codes == 0, np.uint16(0x0040), codes << np.uint16(7))
    return (joined(np.where(codes == 255, np.uint16(0x7FFF), result), 32),)


def _two_clamped(kind: str) -> Function:
    size, signed = int(kind[1:]), kind[0] == "s"
    high = (1 << (size - signed)) - 1
    low = -high - 1 if signed else 0
    bits, full = np.uint32(size), np.uint32((1 << size) - 1)

    def run(a: Array, b: Array, *rest: Array) -> tuple[Array, ...]:
        x, y = (np.clip(v.view(np.int32), low, high).view(np.uint32) & full for v in (a, b))
        result = (x << bits) | y
        return (result | (rest[0] << (bits + bits)) if rest else result,)

    return run


def entries() -> Entries:
    """Every instruction of this file."""
    for kind, mode, relu, satfinite in product(("f16", "bf16"), ("rn", "rz"), ("", "relu"), ("", "satfinite")):
        run = _pair(kind, mode, bool(relu), bool(satfinite))
        yield "cvt", (mode, relu, satfinite, kind + "x2", "f32"), Pure(("f32", "f32"), (kind + "x2",), run)
    for name, relu in product(SMALL, ("", "relu")):
        packed = name + "x2"
        for source in ("f32", "f16x2", "bf16x2"):
            operands = ("f32", "f32") if source == "f32" else (source,)
            run = _small_from(name, source, bool(relu))
            yield "cvt", ("rn", "satfinite", relu, packed, source), Pure(operands, (packed,), run)
        yield "cvt", ("rn", relu, "f16x2", packed), Pure((packed,), ("f16x2",), _small_to_half(name, bool(relu)))
    yield "cvt", ("rn", "bf16x2", "ue8m0x2"), Pure(("ue8m0x2",), ("bf16x2",), _scales)
    for kind in ("u16", "s16"):
        yield "cvt", ("pack", "sat", kind, "s32"), Pure(("s32", "s32"), ("b32",), _two_clamped(kind))
    for kind in ("u2", "s2", "u4", "s4", "u8", "s8"):
        run = _two_clamped(kind)
        yield "cvt", ("pack", "sat", kind, "s32", "b32"), Pure(("s32", "s32", "b32"), ("b32",), run)
