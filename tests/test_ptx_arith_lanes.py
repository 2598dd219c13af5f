"""PTX arithmetic on any bits (hypothesis), at the traps of double rounding, in any shape, and in registers' clothes."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ptx_converts, ptx_floats
from support.ptx_numbers import read, signed

from kgen.gates.ptx.arith import fit, lookup, pack, unpack
from kgen.gates.ptx.arith.exact64 import rounded

SIZES = {"f32": np.uint32, "f64": np.uint64, "f16": np.uint16, "bf16": np.uint16}
SPECIAL = [0, 1, 0x7FFFFF, 0x800000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000]
CODES32 = st.one_of(
    st.integers(0, 2**32 - 1),
    st.sampled_from(SPECIAL + [c | 1 << 31 for c in SPECIAL]),
    st.builds(
        lambda e, f, s: s << 31 | e << 23 | f, st.integers(110, 145), st.integers(0, 2**23 - 1), st.integers(0, 1)
    ),
)


def run(name: str, *codes: int) -> tuple[int, ...]:
    opcode, *modifiers = name.split(".")
    pure = lookup(opcode, tuple(modifiers))
    assert pure is not None
    operands = [np.array([c], SIZES[k]) for c, k in zip(codes, pure.operands, strict=True)]
    return tuple(int(r[0]) for r in pure.function(*operands))


def defined(name: str, *codes: int) -> tuple[int, ...]:
    opcode, *modifiers = name.split(".")
    define = ptx_converts.define(opcode, tuple(modifiers)) or ptx_floats.define(opcode, tuple(modifiers))
    assert define is not None
    return define(*codes)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@given(a=CODES32, b=CODES32, c=CODES32)
@settings(max_examples=300, deadline=None)
def test_fused_multiply_add_rounds_once(mode: str, a: int, b: int, c: int) -> None:
    assert run(f"fma.{mode}.f32", a, b, c) == defined(f"fma.{mode}.f32", a, b, c)


@given(a=CODES32, b=CODES32, shift=st.integers(20, 40), low=st.integers(-3, 3))
@settings(max_examples=300, deadline=None)
def test_fused_multiply_add_rounds_once_where_the_addend_nearly_cancels(a: int, b: int, shift: int, low: int) -> None:
    x, y = read(a, "f32"), read(b, "f32")
    if not (isinstance(x.size, Fraction) and isinstance(y.size, Fraction)):
        return
    exact = -signed(x) * signed(y) * (1 + Fraction(low, 1 << shift))
    with np.errstate(over="ignore"):
        c = int(np.float32(float(exact)).view(np.uint32)) if abs(exact) < 2.0**1000 else 0
    assert run("fma.rn.f32", a, b, c) == defined("fma.rn.f32", a, b, c)


NAMES = [
    "add.rz.f32", "sub.rp.f32", "mul.rm.f32", "add.rn.ftz.f32", "mul.rn.ftz.sat.f32", "div.rz.f32", "div.rn.ftz.f32",
    "max.ftz.f32", "min.NaN.f32", "max.xorsign.abs.f32", "setp.ltu.f32", "setp.ge.ftz.f32",
    "cvt.rn.bf16x2.f32", "cvt.rz.relu.satfinite.f16x2.f32", "cvt.rn.satfinite.e4m3x2.f32",
    "cvt.rn.satfinite.e5m2x2.f32", "cvt.rn.satfinite.e2m1x2.f32",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@given(a=CODES32, b=CODES32)
@settings(max_examples=60, deadline=None)
def test_two_operand_f32_instructions_hold_on_any_bits(name: str, a: int, b: int) -> None:
    assert run(name, a, b) == defined(name, a, b)


UNARY = [
    "sqrt.rp.f32", "rcp.rm.f32", "cvt.rn.f16.f32", "cvt.rp.f16.f32", "cvt.rna.tf32.f32", "cvt.rz.tf32.f32",
    "cvt.rni.s32.f32", "cvt.rzi.u64.f32", "cvt.rmi.ftz.s8.f32", "cvt.rpi.f32.f32", "cvt.f64.f32", "cvt.sat.f32.f32",
]  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
@given(a=CODES32)
@settings(max_examples=60, deadline=None)
def test_one_operand_f32_instructions_hold_on_any_bits(name: str, a: int) -> None:
    assert run(name, a) == defined(name, a)


@given(a=st.integers(0, 2**64 - 1), b=st.integers(0, 2**64 - 1), c=st.integers(0, 2**64 - 1))
@settings(max_examples=200, deadline=None)
def test_f64_fused_multiply_add_rounds_once(a: int, b: int, c: int) -> None:
    for mode in ("rn", "rm"):
        assert run(f"fma.{mode}.f64", a, b, c) == defined(f"fma.{mode}.f64", a, b, c)


def test_double_rounding_traps() -> None:
    """Worked out by hand: 2^-24 more than 1 is a tie, a further 2^-60 decides it; float64 alone would lose that."""
    one, tie = 0x3F800000, 0x33800000  # 1, 2^-24
    tiny = 0x21800000  # 2^-60
    up = run("fma.rn.f32", 0x3F800001, 0x3F800001, 0)  # (1 + u)^2 = 1 + 2u + u^2, u = 2^-23
    assert up == (0x3F800002,)
    assert run("fma.rn.f32", one, tie, one) == (one,)  # tie to even
    assert run("fma.rn.f32", tiny, one, one) == (one,)
    # 2^-149 * (1 - 2^-24) + 1.5 * 2^-149 stands under the tie between 2 and 3 steps of the subnormal grid
    assert run("fma.rn.f32", 0x3F7FFFFF, 0x00000001, 0x00000001) == (2,)
    # (2^12 + 1)(2^12 - 1) = 2^24 - 1; minus 2^-40 is not representable and rounds back, toward zero it does not
    assert run("fma.rn.f32", 0x45800800, 0x457FF000, 0xAB800000) == (0x4B7FFFFF,)
    assert run("fma.rz.f32", 0x45800800, 0x457FF000, 0xAB800000) == (0x4B7FFFFE,)


def test_a_sum_in_float64_rounded_again_would_be_wrong_where_the_fused_one_is_right() -> None:
    """1 + 2^-23 + 2^-24 (1 - 2^-46): just under a tie, which float64 takes it for."""
    a, b, c = 0x39800001, 0x397FFFFE, 0x3F800001  # 2^-12 (1 + 2^-23), 2^-12 (1 - 2^-23), 1 + 2^-23
    x, y, z = (float(np.uint32(v).view(np.float32)) for v in (a, b, c))
    assert int(np.float32(x * y + z).view(np.uint32)) == 0x3F800002
    for sign in (0, 1 << 31):
        assert run("fma.rn.f32", a, b | sign, c | sign) == (0x3F800001 | sign,)
        assert run("fma.rm.f32", a, b | sign, c | sign) == (0x3F800002 | sign if sign else 0x3F800001,)


def test_a_subnormal_sum_is_rounded_once() -> None:
    """2^-127 + 2^-149 + 2^-150 (1 - 2^-46): just under a tie of the subnormal grid, which float64 takes it for."""
    a, b, c = 0x1A000001, 0x19FFFFFE, 0x00400001  # 2^-75 (1 + 2^-23), 2^-75 (1 - 2^-23)
    assert run("fma.rn.f32", a, b, c) == (0x00400001,)
    assert run("fma.rp.f32", a, b, c) == (0x00400002,)


@pytest.mark.parametrize("name", ["mul.ftz.f32", "mul.rn.ftz.sat.f32", "fma.rn.ftz.f32"])
def test_ftz_asks_whether_the_result_is_subnormal_with_exponents_unlimited(name: str) -> None:
    """On an H200: 2^-126 (1 - 2^-24) has 24 bits, so it is not rounded up and is flushed; 1 - 2^-46 is rounded up."""
    addend = (0,) if name.startswith("fma") else ()
    assert run(name, 0x3F7FFFFF, 0x00800000, *addend) == (0,)
    assert run(name, 0x3F7FFFFE, 0x00800001, *addend) == (0x00800000,)


@pytest.mark.parametrize(("kind", "minus"), [("f16", 0x8000), ("bf16", 0x8000), ("f32", 1 << 31), ("f64", 1 << 63)])
def test_minus_zero_is_less_than_zero(kind: str, minus: int) -> None:
    for a, b in ((0, minus), (minus, 0)):
        assert run(f"min.{kind}", a, b) == (minus,) and run(f"max.{kind}", a, b) == (0,)
    assert run(f"max.{kind}", minus, minus) == (minus,) and run(f"min.{kind}", 0, 0) == (0,)


@pytest.mark.parametrize("sign", [1, -1])
def test_exact_integers_go_to_the_even_neighbour_from_the_middle(sign: int) -> None:
    top = 1 << 63 if sign < 0 else 0
    for low, want in ((1, 0), (3, 2), (5, 2)):  # (2^53 + low) is half way between multiples of 2
        assert rounded(sign * ((1 << 53) + low), 0, "rn") == top | 0x4340000000000000 + want
    assert rounded(sign * ((1 << 53) + 1), 0, "rn", sticky=True) == top | 0x4340000000000001
    assert rounded(sign, -1075, "rn") == top and rounded(3 * sign, -1075, "rn") == top | 2


@pytest.mark.parametrize(
    "name", ["fma.rn.f32", "add.s32", "prmt.b32", "setp.lt.and.f32", "cvt.rn.bf16x2.f32", "lop3.b32"]
)
def test_any_shape_and_broadcasting_give_the_same_lanes(name: str) -> None:
    opcode, *modifiers = name.split(".")
    pure = lookup(opcode, tuple(modifiers))
    assert pure is not None
    rng = np.random.default_rng(2)
    full = [rng.integers(0, 2**32, (3, 32), dtype=np.uint32) for _ in pure.operands]
    full = [a > 2**31 if k == "pred" else a for a, k in zip(full, pure.operands, strict=True)]
    full[-1] = np.broadcast_to(full[-1][:1, :1], (3, 32))  # an immediate
    whole = pure.function(*full)
    flat = pure.function(*(a.reshape(-1) for a in full))
    short = pure.function(*full[:-1], full[-1][:1, :1])
    for w, f, s in zip(whole, flat, short, strict=True):
        assert w.shape == (3, 32) and (w.reshape(-1) == f).all() and (s == w).all()


def test_large_and_small_vectors_agree() -> None:
    pure = lookup("fma", ("rn", "f32"))
    assert pure is not None
    rng = np.random.default_rng(3)
    operands = [rng.integers(0, 2**32, (5000, 32), dtype=np.uint32) for _ in range(3)]
    whole = pure.function(*operands)[0]
    for row in (0, 1023, 1024, 4999):
        assert (whole[row] == pure.function(*(a[row] for a in operands))[0]).all()


def test_carries_chain_to_wide_arithmetic() -> None:
    a, b = 0xFFFFFFFF_FFFFFFFF_00000001, 0x00000001_00000000_FFFFFFFF
    words = [[np.array([x >> at & 0xFFFFFFFF], np.uint32) for at in (0, 32, 64)] for x in (a, b)]
    for first, rest, want in (("add", "addc", a + b), ("sub", "subc", a - b)):
        out = []
        carry: tuple[np.ndarray, ...] = ()
        for place, (x, y) in enumerate(zip(*words, strict=True)):
            pure = lookup(rest if place else first, ("cc", "u32"))
            assert pure is not None and pure.carry_out and pure.carry_in == bool(place)
            total, *carried = pure.function(x, y, *carry)
            carry = tuple(carried)
            out.append(int(total[0]))
        assert sum(w << 32 * i for i, w in enumerate(out)) == want & (1 << 96) - 1


def test_packing_and_unpacking_are_inverse() -> None:
    rng = np.random.default_rng(4)
    for kind, size, count in (
        ("b64", np.uint64, 2),
        ("b64", np.uint64, 4),
        ("b32", np.uint32, 2),
        ("b32", np.uint32, 4),
    ):
        value = rng.integers(0, np.iinfo(size).max, 7, dtype=size, endpoint=True)
        parts = unpack(value, kind, count)
        assert len(parts) == count and (pack(*parts) == value).all()
    low, high = unpack(np.array([0x1122334455667788], np.uint64), "b64", 2)
    assert (int(low[0]), int(high[0])) == (0x55667788, 0x11223344)
    wide = np.array([[1, 2], [3, 4]], np.uint64)  # two lanes of b128
    assert [w.tolist() for w in unpack(wide, "b128", 2)] == [[1, 3], [2, 4]]
    assert (pack(*unpack(wide, "b128", 4)) == wide).all() and (pack(*unpack(wide, "b128", 2)) == wide).all()


def test_results_extend_to_wider_registers_by_their_type() -> None:
    byte = np.array([0x80, 0x7F], np.uint8)
    assert fit(byte, "s8", 32).tolist() == [0xFFFFFF80, 0x7F]
    assert fit(byte, "u8", 32).tolist() == [0x80, 0x7F] and fit(byte, "b8", 16).tolist() == [0x80, 0x7F]
    assert fit(np.array([0x12345678], np.uint32), "u32", 8).tolist() == [0x78]


@given(value=st.integers(-(2**70), 2**70), exponent=st.integers(-1200, 900))
@settings(max_examples=200, deadline=None)
def test_exact_integers_round_like_python_floats(value: int, exponent: int) -> None:
    try:
        want = float(Fraction(value) * Fraction(2) ** exponent)
    except OverflowError:
        want = math.copysign(math.inf, value)
    assert rounded(value, exponent, "rn") == int(np.array(math.copysign(want, value)).view(np.uint64))
