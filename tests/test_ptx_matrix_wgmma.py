"""wgmma: descriptors and fragments, against layouts written as in CUTLASS and sums made in plain loops."""

import numpy as np
import pytest

from kgen.gates.ptx.matrix.descriptor import Descriptor, decode
from kgen.gates.ptx.matrix.wgmma import FORMS, Wgmma, wgmma

SWIZZLES = {0: (0, 1), 32: (1, 2), 64: (2, 4), 128: (3, 8)}  # bytes -> (swizzle bits, atoms of 16 bytes)


def swizzled(address: int, width: int) -> int:
    bits = SWIZZLES[width][0]
    return address ^ (address >> 7 & (1 << bits) - 1) << 4


def layout(d: Descriptor, trans: bool, size: int, row: int, k: int) -> int:
    """Address of element (row, k) by the canonical layouts, whose strides count 16-byte units of elements."""
    per, atoms = 16 // size, SWIZZLES[d.swizzle][1]
    if trans and d.swizzle:  # Sw o ((T, s, m), (8, k)) : ((1, T, LBO), (s T, SBO))
        unit = row // per % atoms
        byte = row % per * size + 16 * unit + row // per // atoms * d.leading + k % 8 * 16 * atoms + k // 8 * d.stride
    elif trans:  # ((T, 1, m), (8, k)) : ((1, T, SBO), (1 T, LBO))
        byte = row % per * size + row // per * d.stride + k % 8 * 16 + k // 8 * d.leading
    elif d.swizzle:  # Sw o ((8, m), (T, 2)) : ((s T, SBO), (1, T))
        byte = row % 8 * 16 * atoms + row // 8 * d.stride + k * size
    else:  # ((8, m), (T, 2)) : ((1 T, SBO), (1, LBO))
        byte = row % 8 * 16 + row // 8 * d.stride + k // per * d.leading + k % per * size
    return swizzled(d.start + byte, d.swizzle)


CASES = [(128, 16, 1024), (128, 4096, 1024), (64, 512, 2048), (32, 256, 768), (0, 128, 256), (0, 2048, 128)]


@pytest.mark.parametrize("start", [0, 1024, 1024 + 32, 3 * 128 + 64])
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize(("width", "leading", "stride"), CASES)
def test_atoms_are_those_of_the_canonical_layouts(
    width: int, leading: int, stride: int, trans: bool, start: int
) -> None:
    d = Descriptor(start, leading, stride, 0, width)
    form = Wgmma(40, "bf16", "bf16", "f32")
    for rows, atoms in ((64, form.a_atoms(d, trans)), (40, form.b_atoms(d, trans))):
        for row in range(rows):
            for k in range(16):
                outer, inner = (k, row) if trans else (row, k)
                assert atoms[outer, inner // 8] + inner % 8 * 2 == layout(d, trans, 2, row, k)


def test_a_descriptor_of_the_compiler_decodes() -> None:
    assert decode(0x4000004000000002 | 0x123) == Descriptor(0x1230, 0, 1024, 0, 128)  # K + 16 of a 128-byte pattern
    assert decode(0x4000000000010002) == Descriptor(32, 16, 0, 0, 128)
    assert decode(0) == Descriptor(0, 0, 0, 0, 0)
    fields = 0x3FFF | 0x155 << 16 | 0x2AA << 32 | 5 << 49 | 3 << 62
    assert decode(fields) == Descriptor(0x3FFF0, 0x1550, 0x2AA0, 5, 32)
    assert "base offset 5" in decode(fields).problem() and not decode(0).problem()
    for bit in (14, 15, 30, 31, 46, 48, 52, 61):
        assert decode(1 << bit) is None


@pytest.mark.parametrize("line", [1, 3, 7])
def test_a_base_offset_starts_the_pattern_at_its_own_line(line: int) -> None:
    form = Wgmma(64, "bf16", "bf16", "f32")
    moved = form.a_atoms(Descriptor(128 * line, 16, 1024, line, 128))
    np.testing.assert_array_equal(moved, form.a_atoms(Descriptor(0, 16, 1024, 0, 128)) + 128 * line)
    assert not decode(line << 49 | 1 << 62).problem()


def d_place(warp: int, lane: int, i: int) -> tuple[int, int]:
    """(row, column) of accumulator element d_i of a thread of the warpgroup, as in the ISA's figure for D."""
    return 16 * warp + (lane >> 2) + 8 * (i >> 1 & 1), (i >> 2) * 8 + (lane & 3) * 2 + (i & 1)


def a_place(width: int, warp: int, lane: int, i: int) -> tuple[int, int]:
    per = 32 // width
    half, rest = divmod(i, 2 * per)
    return 16 * warp + (lane >> 2) + 8 * (rest // per), (lane & 3) * per + rest % per + 4 * per * half


ENCODED = {
    "bf16": {0: 0, 1: 0x3F80, 2: 0x4000, 3: 0x4040, -1: 0xBF80, -2: 0xC000, -3: 0xC040},
    "f16": {0: 0, 1: 0x3C00, 2: 0x4000, 3: 0x4200, -1: 0xBC00, -2: 0xC000, -3: 0xC200},
    "tf32": {0: 0, 1: 0x3F800000, 2: 0x40000000, 3: 0x40400000, -1: 0xBF800000, -2: 0xC0000000, -3: 0xC0400000},
    "e4m3": {0: 0, 1: 0x38, 2: 0x40, 3: 0x44, -1: 0xB8, -2: 0xC0, -3: 0xC4},
    "e5m2": {0: 0, 1: 0x3C, 2: 0x40, 3: 0x42, -1: 0xBC, -2: 0xC0, -3: 0xC2},
    "s8": {0: 0, 1: 1, 2: 2, 3: 3, -1: 255, -2: 254, -3: 253},
    "u8": {0: 0, 1: 1, 2: 2, 3: 3, -1: 1, -2: 2, -3: 3},
}
SIZE = {"bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}


def place(memory: np.ndarray, d: Descriptor, kind: str, matrix: np.ndarray, trans: bool) -> None:
    for (row, k), value in np.ndenumerate(matrix):
        at = layout(d, trans, SIZE[kind], row, k)
        memory[at : at + SIZE[kind]] = list(ENCODED[kind][int(value)].to_bytes(SIZE[kind], "little"))


def draw(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0 if kind == "u8" else -3, 4, shape)


SMALL = [f for f in FORMS.values() if f.n in (8, 32) and not f.saturate]


@pytest.mark.parametrize("form", SMALL, ids=lambda form: form.name)
@pytest.mark.parametrize("in_registers", [False, True])
def test_every_form_multiplies(form: Wgmma, in_registers: bool) -> None:
    rng = np.random.default_rng(form.n)
    a, b = draw(form.a, (64, form.k), rng), draw(form.b, (form.n, form.k), rng)
    start = rng.integers(-9, 10, (64, form.n))
    memory = np.zeros(65536, np.uint8)
    at_a, at_b = Descriptor(0, 16, 1024, 0, 128), Descriptor(32768 + 64, 16, 1024, 0, 128)
    place(memory, at_a, form.a, a, False)
    place(memory, at_b, form.b, b, False)
    left = form.a_fragment(a_registers(form, a)) if in_registers else form.a_shared(fetch(memory, form.a_atoms(at_a)))
    right = form.b_shared(fetch(memory, form.b_atoms(at_b)))
    total = a @ b.T
    registers = d_registers(form, start)
    assert len(registers) == form.d_registers
    for scale_d, sign_a, sign_b in ((True, 1, 1), (False, 1, 1), (True, -1, 1), (True, -1, -1)):
        signs = (sign_a, sign_b) if form.scales else (1, 1)
        made = form.function(registers, left, right, np.array([scale_d]), *signs)
        want = d_registers(form, total * signs[0] * signs[1] + scale_d * start)
        np.testing.assert_array_equal(np.stack(made), np.stack(want))


def fetch(memory: np.ndarray, atoms: np.ndarray) -> np.ndarray:
    return memory[atoms[None, ..., None] + np.arange(16)]


def a_registers(form: Wgmma, a: np.ndarray) -> list[np.ndarray]:
    width = SIZE[form.a] * 8
    registers = [np.zeros((4, 32), np.uint32) for _ in range(4)]
    for warp in range(4):
        for lane in range(32):
            for i in range(128 // width):
                row, k = a_place(width, warp, lane, i)
                word, shift = divmod(i * width, 32)
                registers[word][warp, lane] |= np.uint32(ENCODED[form.a][int(a[row, k])] << shift)
    return registers


def d_registers(form: Wgmma, matrix: np.ndarray) -> list[np.ndarray]:
    registers = [np.zeros((4, 32), np.uint32) for _ in range(form.d_registers)]
    for warp in range(4):
        for lane in range(32):
            for i in range(form.n // 2):
                value = int(matrix[d_place(warp, lane, i)])
                if form.accumulator == "f16":
                    bits = int(np.float16(value).view(np.uint16)) << 16 * (i % 2)
                    registers[i // 2][warp, lane] |= np.uint32(bits)
                else:
                    made = np.float32(value) if form.accumulator == "f32" else np.int32(value)
                    registers[i][warp, lane] = made.view(np.uint32)
    return registers


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("width", [0, 32, 64, 128])
@pytest.mark.parametrize("turned", [(True, False), (False, True), (True, True)])
def test_transposed_operands_multiply(kind: str, width: int, turned: tuple[bool, bool]) -> None:
    form = Wgmma(24, kind, kind, "f32")
    rng = np.random.default_rng(3)
    a, b = draw(kind, (64, 16), rng), draw(kind, (24, 16), rng)
    memory = np.zeros(65536, np.uint8)
    at_a = Descriptor(0, 2048, (8192 if turned[0] else 1024) if width else 256, 0, width)
    at_b = Descriptor(32768, 2048, (8192 if turned[1] else 1024) if width else 256, 0, width)
    place(memory, at_a, kind, a, turned[0])
    place(memory, at_b, kind, b, turned[1])
    left = form.a_shared(fetch(memory, form.a_atoms(at_a, turned[0])), turned[0])
    right = form.b_shared(fetch(memory, form.b_atoms(at_b, turned[1])), turned[1])
    zero = [np.zeros((4, 32), np.uint32)] * form.d_registers
    made = form.function(zero, left, right, np.array([False]))
    np.testing.assert_array_equal(np.stack(made), np.stack(d_registers(form, a @ b.T)))


def test_two_warpgroups_keep_apart_and_dropped_accumulators_do_not_poison() -> None:
    form = Wgmma(8, "bf16", "bf16", "f32")
    a, b = np.ones((2, 64, 16)), np.ones((2, 16, 8)) * np.array([1, 2])[:, None, None]
    start = [np.full((8, 32), 0x7FC00000, np.uint32)] * 4
    made = np.stack(form.function(start, a, b, np.array([False, True])))
    assert np.all(made[:, :4] == np.float32(16).view(np.uint32)) and np.all(made[:, 4:] == 0x7FFFFFFF)


def test_integers_saturate_or_wrap() -> None:
    a, b = np.full((1, 64, 32), 127.0), np.full((1, 32, 8), 127.0)
    start = [np.full((4, 32), 0x7FFFFFFF, np.uint32)] * 4
    for saturate, want in ((True, 0x7FFFFFFF), (False, 0x7FFFFFFF + 32 * 127 * 127)):
        made = Wgmma(8, "s8", "s8", "s32", saturate).function(start, a, b, np.array([True]))
        assert np.all(np.stack(made) == want)


@pytest.mark.parametrize(
    "text",
    [
        "m64n64k16.f32.bf16.f16",
        "m64n12k16.f32.bf16.bf16",
        "m64n264k16.f32.bf16.bf16",
        "m64n40k32.s32.s8.s8",
        "m64n64k16.f16.bf16.bf16",
        "m64n64k8.f32.bf16.bf16",
        "m64n64k256.s32.b1.b1.and.popc",
    ],
)
def test_unknown_forms_are_not_guessed(text: str) -> None:
    assert wgmma(("mma_async", "sync", "aligned", *text.split("."))) is None


def test_known_forms_of_the_compiler() -> None:
    for text in ("m64n256k16.f32.f16.f16", "m64n32k32.satfinite.s32.u8.u8", "m64n8k8.f32.tf32.tf32"):
        form = wgmma(("mma_async", "sync", "aligned", *text.split(".")))
        assert form is not None and form.name.endswith(text)
