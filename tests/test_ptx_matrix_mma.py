"""mma.sync fragments against the index formulas of the PTX ISA, written out lane by lane with exact fractions."""

import struct
from fractions import Fraction

import numpy as np
import pytest
import torch

from kgen.gates.ptx.matrix import formats
from kgen.gates.ptx.matrix.mma import FORMS, Mma, mma

Cells = dict[tuple[int, int], Fraction]
TORCH = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
WIDTH = {"bf16": 16, "f16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}


def a_place(width: int, k: int, lane: int, i: int) -> tuple[int, int]:
    """(row, column) of element a_i, as the ISA's text for each element width and K has it."""
    group, t = lane >> 2, lane & 3
    if width == 16:
        upper = i < 2 or (k == 16 and 4 <= i < 6)
        return (group if upper else group + 8), t * 2 + (i & 1) + (8 if i >= 4 else 0)
    if width == 32:
        return (group if i in (0, 2) else group + 8), t + (4 if i >= 2 else 0)
    row = group if i < 4 or 8 <= i < 12 else group + 8
    return row, t * 4 + (i & 3) + (16 if i >= 8 else 0)


def b_place(width: int, lane: int, i: int) -> tuple[int, int]:
    group, t = lane >> 2, lane & 3
    if width == 16:
        return t * 2 + (i & 1) + (8 if i >= 2 else 0), group
    if width == 32:
        return t + (4 if i else 0), group
    return t * 4 + (i & 3) + (16 if i >= 4 else 0), group


def c_place(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + (0 if i < 2 else 8), (lane & 3) * 2 + (i & 1)


def number(kind: str, bits: int) -> Fraction:
    if kind == "tf32":
        return Fraction(struct.unpack("<f", struct.pack("<I", bits & ~0x1FFF))[0])
    if kind == "s8":
        return Fraction(bits - 256 if bits > 127 else bits)
    if kind == "u8":
        return Fraction(bits)
    raw = np.array([bits], f"<u{WIDTH[kind] // 8}").view({8: np.uint8, 16: np.int16}[WIDTH[kind]])
    return Fraction(float(torch.from_numpy(raw.copy()).view(TORCH[kind])[0]))


def parts(registers: list[np.ndarray], warp: int, lane: int, width: int) -> list[int]:
    """Elements a_0, a_1, ... of one lane: the bit fields of its registers in turn."""
    fields = []
    for register in registers:
        word = int(register[warp, lane])
        fields += [word >> shift & (1 << width) - 1 for shift in range(0, 32, width)]
    return fields


def expected(form: Mma, a: list[np.ndarray], b: list[np.ndarray], c: list[np.ndarray], warp: int) -> Cells:
    left: Cells = {}
    right: Cells = {}
    total: Cells = {}
    for lane in range(32):
        for i, bits in enumerate(parts(a, warp, lane, WIDTH[form.a])):
            left[a_place(WIDTH[form.a], form.k, lane, i)] = number(form.a, bits)
        for i, bits in enumerate(parts(b, warp, lane, WIDTH[form.b])):
            right[b_place(WIDTH[form.b], lane, i)] = number(form.b, bits)
        for i, bits in enumerate(parts(c, warp, lane, 16 if form.accumulator == "f16" else 32)):
            total[c_place(lane, i)] = accumulator(form.accumulator, bits)
    assert len(left) == 16 * form.k and len(right) == 8 * form.k and len(total) == 128
    for row, column in total:
        total[row, column] += sum(left[row, k] * right[k, column] for k in range(form.k))
    return total


def accumulator(kind: str, bits: int) -> Fraction:
    if kind == "s32":
        return Fraction(bits - (1 << 32) if bits >> 31 else bits)
    code = struct.pack("<H", bits) if kind == "f16" else struct.pack("<I", bits)
    return Fraction(struct.unpack("<e" if kind == "f16" else "<f", code)[0])


def tame(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Registers of modest numbers: no NaN, no infinity, and sums that float64 holds exactly."""
    if kind == "tf32":
        return rng.standard_normal(shape).astype(np.float32).view(np.uint32)
    if WIDTH[kind] == 16:
        numbers = torch.from_numpy(rng.standard_normal((*shape, 2)).astype(np.float32)).to(TORCH[kind])
        return numbers.view(torch.int16).numpy().view(np.uint32)[..., 0].copy()
    words = rng.integers(0, 1 << 32, size=shape, dtype=np.uint64).astype(np.uint32)
    return words & np.uint32(0xBFBFBFBF) if kind.startswith("e") else words


@pytest.mark.parametrize("form", FORMS.values(), ids=lambda form: form.name)
def test_every_form_is_the_sum_of_the_isas_elements(form: Mma) -> None:
    rng = np.random.default_rng(form.k)
    a = list(tame(form.a, (form.a_registers, 2, 32), rng))
    b = list(tame(form.b, (form.b_registers, 2, 32), rng))
    c = list(tame({"f16": "f16", "f32": "tf32", "s32": "u8"}[form.accumulator], (form.c_registers, 2, 32), rng))
    d = form.function(a, b, c)
    assert len(d) == form.c_registers and all(r.shape == (2, 32) and r.dtype == np.uint32 for r in d)
    cells = expected(form, a, b, c, 1)
    for lane in range(32):
        for i, bits in enumerate(parts(d, 1, lane, 16 if form.accumulator == "f16" else 32)):
            assert bits == rounded(form, cells[c_place(lane, i)]), (lane, i)


def rounded(form: Mma, exact: Fraction) -> int:
    if form.accumulator == "s32":
        whole = int(exact)
        if form.saturate:
            whole = min(max(whole, -(1 << 31)), (1 << 31) - 1)
        return whole & 0xFFFFFFFF
    if form.accumulator == "f16":
        if abs(exact) >= 65520:
            return 0xFC00 if exact < 0 else 0x7C00
        return struct.unpack("<H", struct.pack("<e", exact))[0]
    return struct.unpack("<I", struct.pack("<f", exact))[0]


@pytest.mark.parametrize("kind", sorted(TORCH))
def test_formats_agree_with_torch_on_every_code(kind: str) -> None:
    codes = np.arange(1 << WIDTH[kind], dtype=np.uint32).astype(np.uint8 if WIDTH[kind] == 8 else np.uint16)
    signed = codes.view(np.uint8 if WIDTH[kind] == 8 else np.int16)
    there = torch.from_numpy(signed.copy()).view(TORCH[kind]).double().numpy()
    np.testing.assert_array_equal(formats.values(kind, codes), there)
    zero = there == 0
    np.testing.assert_array_equal(np.signbit(formats.values(kind, codes))[zero], np.signbit(there)[zero])


def one(kind: str) -> int:
    return {"bf16": 0x3F803F80, "f16": 0x3C003C00, "tf32": 0x3F800000, "e4m3": 0x38383838, "e5m2": 0x3C3C3C3C}[kind]


@pytest.mark.parametrize("form", [f for f in FORMS.values() if f.accumulator == "f32"], ids=lambda form: form.name)
def test_a_nan_or_zero_times_infinity_gives_the_canonical_nan(form: Mma) -> None:
    a = [np.full((1, 32), one(form.a), np.uint32) for _ in range(form.a_registers)]
    b = [np.full((1, 32), one(form.b), np.uint32) for _ in range(form.b_registers)]
    c = [np.zeros((1, 32), np.uint32) for _ in range(4)]
    c[1][0, 6] = 0xFFC12345  # row 1, column 5
    d = form.function(a, b, c)
    assert int(d[1][0, 6]) == 0x7FFFFFFF
    k = struct.unpack("<I", struct.pack("<f", form.k))[0]
    assert [int(x) for x in d[0][0]] == [k] * 32 and int(d[1][0, 5]) == k
    c[1][0, 6] = 0x7F800000
    assert int(form.function(a, b, c)[1][0, 6]) == 0x7F800000


def test_satfinite_clamps_and_without_it_integers_wrap() -> None:
    for saturate, high, low in ((True, 0x7FFFFFFF, 0x80000000), (False, 0x80000000 + 32 * 127 * 127 - 1, None)):
        form = Mma("s8", "s8", "s32", 32, saturate)
        a = [np.full((1, 32), 0x7F7F7F7F, np.uint32)] * 4
        b = [np.full((1, 32), 0x7F7F7F7F, np.uint32)] * 2
        c = [np.full((1, 32), 0x7FFFFFFF, np.uint32)] * 4
        assert {int(x) for r in form.function(a, b, c) for x in r[0]} == {high}
        if low is not None:
            c = [np.full((1, 32), 0x80000000, np.uint32)] * 4
            b = [np.full((1, 32), 0x81818181, np.uint32)] * 2
            assert {int(x) for r in form.function(a, b, c) for x in r[0]} == {low}


@pytest.mark.parametrize(
    "text",
    [
        "sync.aligned.m16n8k16.row.row.f32.bf16.bf16.f32",
        "sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16",
        "sync.aligned.m16n8k16.row.col.f32.f16.f16.f16",
        "sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32",
        "sync.aligned.m8n8k4.row.col.f32.f16.f16.f32",
        "sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e4m3.f32",
        "sp.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        "sync.aligned.m16n8k16.row.col.satfinite.f32.bf16.bf16.f32",
        "aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    ],
)
def test_unknown_forms_are_not_guessed(text: str) -> None:
    assert mma(tuple(text.split("."))) is None


def test_a_wrong_number_of_registers_is_refused() -> None:
    zero = np.zeros((1, 32), np.uint32)
    with pytest.raises(ValueError, match="B: 2 registers expected, 1 given"):
        Mma("bf16", "bf16", "f32", 16).function([zero] * 4, [zero], [zero] * 4)
