"""Number formats against definitions of their own: enumerated values, exact fractions, blocks worked out by hand."""

import math
from bisect import bisect_right
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgen.contract import quant
from kgen.contract.quant import ScaleRule

F64, F32, BF16, E4M3 = torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn
UP, FLOOR = ScaleRule.ROUND_UP, ScaleRule.FLOOR_SATURATE
INF, NAN = math.inf, math.nan
WIDE = (F64, F32)


def values(fraction: int, bias: int, codes: int) -> list[Fraction]:
    """Positive values by code of a format with `fraction` fraction bits: the definition, in exact fractions."""
    out = []
    for code in range(codes):
        exponent, rest = divmod(code, 1 << fraction)
        significand = Fraction(rest, 1 << fraction) + (1 if exponent else 0)
        out.append(significand * Fraction(2) ** (max(exponent, 1) - bias))
    return out


BF16_VALUES = values(7, 127, 255 * 128)
E4M3_VALUES = values(3, 7, 127)
E2M1_VALUES = values(1, 1, 8)


def nearest(x: float, table: list[Fraction]) -> int:
    """Code of the value nearest to |x|, ties to the even code, the last one beyond the end."""
    exact = abs(Fraction(x))
    low = bisect_right(table, exact) - 1
    if low == len(table) - 1:
        return low
    twice, ends = 2 * exact, table[low] + table[low + 1]
    return low + (twice > ends or (twice == ends and low % 2 == 1))


def tensor(*x: float, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.tensor(x, dtype=dtype)


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Equal with the signs of zeros, NaN where NaN."""
    numbers = ~want.isnan()
    g, w = got[numbers], want[numbers]
    signed = torch.equal(g, w) and torch.equal(torch.signbit(g), torch.signbit(w))
    return got.dtype == want.dtype and torch.equal(~got.isnan(), numbers) and signed


def around_ties(table: list[Fraction], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """For every pair of neighbours: just below, at and just above their middle, and the value each must become."""
    low = torch.tensor([float(v) for v in table[:-1]], dtype=dtype)
    high = torch.tensor([float(v) for v in table[1:]], dtype=dtype)
    middle = low + (high - low) / 2
    even = torch.where(torch.arange(len(low)) % 2 == 0, low, high)
    below, above = torch.nextafter(middle, low), torch.nextafter(middle, high)
    return torch.cat((below, middle, above, low, high)), torch.cat((low, even, high, low, high))


def test_torch_itself_rounds_float64_twice_on_the_way_to_bf16_and_round_bf16_does_not() -> None:
    x = tensor(1 + 2**-8 + 2**-40, -(1 + 2**-8 + 2**-40), 1 + 3 * 2**-8 - 2**-40)  # a little off the middle of two
    assert x.bfloat16().tolist() == [1.0, -1.0, 1 + 2**-6], "float32 puts it on the tie, the even neighbour wins"
    assert quant.round_bf16(x).tolist() == [1 + 2**-7, -(1 + 2**-7), 1 + 2**-7]


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("sign", [1, -1])
def test_every_value_and_every_middle_between_two_rounds_as_defined(dtype: torch.dtype, sign: int) -> None:
    x, want = around_ties(BF16_VALUES, dtype)
    assert same(quant.round_bf16(sign * x), sign * want)
    x, want = around_ties(E4M3_VALUES, dtype)
    assert same(quant.from_e4m3(quant.to_e4m3(sign * x), dtype), sign * want)


@settings(max_examples=600, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(2.0**-140, 2.0**-120) | st.floats(1e37, 1e39))
def test_round_bf16_is_the_nearest_value_in_exact_fractions(x: float) -> None:
    table = [*BF16_VALUES, Fraction(2) ** 128]  # the value that would follow the largest: rounding to it is inf
    code = nearest(x, table)
    want = INF if code == len(table) - 1 else float(table[code])
    assert same(quant.round_bf16(tensor(x)), tensor(math.copysign(want, x)))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_from_float32_round_bf16_equals_torchs_single_rounding(seed: int) -> None:
    bits = torch.randint(-(2**31), 2**31, (2000,), generator=torch.Generator().manual_seed(seed))
    x = bits.int().view(F32)  # all kinds: subnormals, inf, NaN
    assert same(quant.round_bf16(x), x.bfloat16().float())


def test_round_bf16_keeps_signed_zeros_nan_and_inf_and_overflows_at_the_middle() -> None:
    limit = 2.0**128 - 2.0**119  # the middle between the largest bf16 and 2^128
    x = tensor(0.0, -0.0, NAN, INF, -INF, limit, math.nextafter(limit, 0), -1e300, 5e-324, -5e-324, 2.0**-134)
    want = tensor(0.0, -0.0, NAN, INF, -INF, INF, 255 * 2.0**120, -INF, 0.0, -0.0, 0.0)
    assert same(quant.round_bf16(x), want)
    assert same(quant.round_bf16(tensor(1.0000001 * 2.0**-134, 3 * 2.0**-134)), tensor(2.0**-133, 2.0**-132))


def test_all_256_e4m3_codes_have_their_defined_value_and_come_back() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(E4M3)
    positive = [*map(float, E4M3_VALUES), NAN]
    want = tensor(*positive, *(-v for v in positive))
    assert positive[:9] == [0, 2**-9, 2**-8, 3 * 2**-9, 2**-7, 5 * 2**-9, 6 * 2**-9, 7 * 2**-9, 2**-6]
    assert positive[126] == 448
    for dtype in (F64, F32, BF16):
        assert same(quant.from_e4m3(codes, dtype), want.to(dtype))
    back = quant.to_e4m3(want)
    assert same(back.float(), want.float()) and int(back.view(torch.uint8)[128]) == 0x80


@settings(max_examples=400, deadline=None)
@given(st.floats(-500, 500) | st.floats(-0.02, 0.02) | st.floats(allow_nan=False, allow_infinity=False))
def test_to_e4m3_is_the_nearest_value_in_exact_fractions_saturating(x: float) -> None:
    want = nearest(x, E4M3_VALUES) | (0x80 if math.copysign(1, x) < 0 else 0)
    assert int(quant.to_e4m3(tensor(x)).view(torch.uint8)) == want


def test_to_e4m3_saturates_inf_keeps_nan_and_rounds_once() -> None:
    x = tensor(INF, -INF, NAN, -0.0, 464, 1e300, 1 + 2**-4 + 2**-40)  # the last one is above the middle of 1 and 1.125
    assert same(quant.from_e4m3(quant.to_e4m3(x), F64), tensor(448, -448, NAN, -0.0, 448, 448, 1.125))


def test_code_steps_counts_representable_values_through_zero() -> None:
    a = tensor(0.0, 0.0, 2**-9, 1.0, 448, 448, -1.0, NAN, NAN, 448, 1.0, -2.0)
    b = tensor(-0.0, 2**-9, -(2**-9), 1.125, 416, -448, 1.0, NAN, 448, NAN, 2.0, -1.875)
    a, b = quant.to_e4m3(a), quant.to_e4m3(b)
    a.view(torch.uint8)[7] = 0xFF  # the NaN of the other sign
    assert quant.code_steps(a, b).tolist() == [0, 1, 2, 1, 1, 252, 112, 0, quant.NAN_STEPS, quant.NAN_STEPS, 8, 1]


def test_code_steps_of_all_pairs_is_the_distance_in_the_sorted_list_of_values() -> None:
    codes = torch.tensor([c for c in range(256) if c & 0x7F != 0x7F], dtype=torch.uint8).view(E4M3)
    numbers = quant.from_e4m3(codes, F64).tolist()
    place = {v: i for i, v in enumerate(sorted(set(numbers)))}  # -0.0 == 0.0: one place
    rank = torch.tensor([place[v] for v in numbers])
    a, b = codes[:, None].expand(-1, len(rank)), codes[None].expand(len(rank), -1)
    assert torch.equal(quant.code_steps(a, b).long(), (rank[:, None] - rank[None]).abs())


def test_all_256_e8m0_bytes_have_their_defined_value() -> None:
    scales = torch.arange(256, dtype=torch.uint8)
    want = tensor(*(math.ldexp(1, b - 127) for b in range(255)), NAN)
    for dtype in (F64, F32, BF16):
        assert same(quant.decode_e8m0(scales, dtype), want.to(dtype))


def scale_by_search(amax: float, rule: ScaleRule, top: int, largest: int) -> int:
    """The byte by trying: smallest fitting k, or the largest power of two that is not above amax."""
    exact = Fraction(amax)
    ks = range(-127, 128)
    if rule is UP:
        return next((k for k in ks if exact <= largest * Fraction(2) ** k), 127) + 127
    return max((k for k in ks if Fraction(2) ** (k + top) <= exact), default=-127) + 127


@settings(max_examples=200, deadline=None)
@given(
    st.floats(0, allow_infinity=False)
    | st.floats(2.0**-140, 2.0**-100)
    | st.builds(math.ldexp, st.sampled_from([1, 1.5, 1.75, 1.75 + 2**-52, 2 - 2**-52]), st.integers(-140, 140))
)
def test_shared_scale_is_what_a_search_over_all_exponents_finds(amax: float) -> None:
    for rule in ScaleRule:
        assert int(quant.shared_scale(tensor(amax), rule)) == scale_by_search(amax, rule, 8, 448)
        assert int(quant.shared_scale(tensor(amax), rule, quant.E2M1)) == scale_by_search(amax, rule, 2, 6)


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize(
    ("amax", "up", "floor"),
    [
        (0.0, 0, 0),
        (1e-45, 0, 0),  # float32 subnormal
        (2.0**-126, 0, 0),
        (448 * 2.0**-127, 0, 0),
        (449 * 2.0**-127, 1, 0),
        (1.0, 119, 119),  # 2^-8: 1 becomes 256
        (1.75, 119, 119),  # becomes 448
        (1.8, 120, 119),  # would be 460.8
        (448.0, 127, 127),
        (449.0, 128, 127),
        (511.0, 128, 127),
        (512.0, 128, 128),
        (3e38, 247, 246),  # 1.76 * 2^127
        (INF, 254, 254),
        (NAN, 254, 254),
    ],
)
def test_shared_scale_edges(amax: float, up: int, floor: int, dtype: torch.dtype) -> None:
    x = tensor(amax, dtype=dtype)
    assert int(quant.shared_scale(x, UP)) == up
    assert int(quant.shared_scale(x, FLOOR)) == floor


def block(*x: float, dtype: torch.dtype = F64) -> torch.Tensor:
    """One MX block: x, then zeros."""
    return tensor(*x, *[0.0] * (32 - len(x)), dtype=dtype)


MXFP8_BY_HAND = [  # input, rule, scale byte, first codes
    ((448, 1, -1.0625), UP, 127, [0x7E, 0x38, 0xB8]),  # -1.0625 is the middle of 1 and 1.125: even code
    ((449, -448), UP, 128, [0x76, 0xF6]),  # halves 224.5, 224: both 1.75 * 2^7
    ((449, -448), FLOOR, 127, [0x7E, 0xFE]),  # 449 rounds down to 448
    ((511, -480), FLOOR, 127, [0x7E, 0xFE]),  # both saturate
    ((1.8, 0.001), UP, 120, [0x76, 0x20]),  # 230.4 -> 224; 0.128 -> 0.125
    ((1.8, 0.001), FLOOR, 119, [0x7E, 0x28]),  # 460.8 -> 448; 0.256 -> 0.25
    ((0.0, -0.0), UP, 0, [0x00, 0x80]),
    ((2.0**-130, -(2.0**-149)), UP, 0, [0x20, 0x80]),  # over 2^-127: 2^-3, -2^-22
    ((2.0**-130, -(2.0**-149)), FLOOR, 0, [0x20, 0x80]),
    ((INF, -INF, 2.0**127, 1.0), FLOOR, 254, [0x7E, 0xFE, 0x38, 0x00]),
    ((INF, -INF, 2.0**127, 1.0), UP, 254, [0x7E, 0xFE, 0x38, 0x00]),
]


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize(("x", "rule", "scale", "codes"), MXFP8_BY_HAND)
def test_mxfp8_blocks_worked_out_by_hand(
    x: tuple[float, ...], rule: ScaleRule, scale: int, codes: list[int], dtype: torch.dtype
) -> None:
    got, scales = quant.mxfp8_quantise(block(*x, dtype=dtype), rule)
    assert scales.tolist() == [scale]
    assert got.view(torch.uint8).tolist() == codes + [0] * (32 - len(codes))


def test_mxfp8_keeps_nan_and_spoils_only_its_own_block() -> None:
    x = torch.cat((block(NAN, 1.0), block(1.0)))
    for rule in ScaleRule:
        codes, scales = quant.mxfp8_quantise(x, rule)
        assert scales.tolist() == [254, 119]
        back = quant.mxfp8_dequantise(codes, scales, F64)
        assert same(back, torch.cat((block(NAN, 0.0), block(1.0))))


def test_mxfp8_scales_run_along_the_last_axis() -> None:
    x = torch.stack((torch.cat((block(1.0), block(2.0))), torch.cat((block(4.0), block(8.0)))))[:, None]
    assert quant.mxfp8_quantise(x, UP)[1].tolist() == [[[119, 120]], [[121, 122]]]
    assert same(quant.mxfp8_round(x, UP), x)
    turned = torch.randn(64, 5, dtype=F64).T  # not contiguous
    assert same(quant.mxfp8_round(turned, UP), quant.mxfp8_round(turned.contiguous(), UP))


def test_every_mxfp8_code_under_every_scale_is_dequantised_exactly() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(E4M3).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 8)
    positive = [*map(float, E4M3_VALUES), NAN]
    elements = [*positive, *(-v for v in positive)]
    want = tensor(*(math.ldexp(v, s - 127) if s < 255 else NAN for s in range(256) for v in elements)).view(256, 256)
    assert same(quant.mxfp8_dequantise(codes, scales, F64), want)
    assert same(quant.mxfp8_dequantise(codes, scales, F32), want.float())
    numbers = want[:255].nan_to_num(0.0)
    assert same(quant.mxfp8_round(numbers, UP), numbers), "what MXFP8 can hold stays"


def test_all_16_e2m1_codes_and_the_low_nibble_first() -> None:
    packed = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2, dtype=torch.uint8)
    scale = torch.tensor([127], dtype=torch.uint8)
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    for dtype in (F64, F32, BF16):
        assert same(
            quant.mxfp4_unpack(packed, scale, dtype), tensor(*(positive + [-v for v in positive]) * 2, dtype=dtype)
        )


@settings(max_examples=150, deadline=None)
@given(st.lists(st.floats(-8, 8) | st.floats(-1, 1), min_size=31, max_size=31), st.integers(-120, 120))
def test_mxfp4_elements_are_the_nearest_in_exact_fractions(x: list[float], k: int) -> None:
    full = [math.nextafter(8.0, 0), *x]  # the shared exponent of this block is k
    full = [math.copysign(min(abs(v), full[0]), v) for v in full]
    want = [nearest(v, E2M1_VALUES) | (8 if math.copysign(1, v) < 0 else 0) for v in full]
    packed, scales = quant.mxfp4_pack(tensor(*full) * 2.0**k)
    assert scales.tolist() == [127 + k]
    assert packed.tolist() == [low | high << 4 for low, high in zip(want[::2], want[1::2], strict=True)]


def test_mxfp4_ties_saturation_and_scale_by_hand() -> None:
    ties = (7.9, -7.9, 0.25, -0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
    packed, scales = quant.mxfp4_pack(block(*ties))  # 2^floor(log2 7.9) - 2 -> 2^0
    assert scales.tolist() == [127]
    got = quant.mxfp4_unpack(packed, scales, F64)[:10].tolist()
    assert got == [6, -6, 0, -0.0, 1, 1, 2, 2, 4, 4]
    assert packed.tolist() == [0xF7, 0x80, 0x22, 0x44, 0x66] + [0] * 11
    packed, scales = quant.mxfp4_pack(block(8.0, 1.0))  # scale 2: 4 and 0.5
    assert scales.tolist() == [128] and packed.tolist() == [0x16] + [0] * 15


def test_mxfp4_scale_edges() -> None:
    x = torch.stack((block(0.0, -0.0), block(2.0**-130), block(3 * 2.0**-127), block(2.0**130), block(2.0**-124)))
    packed, scales = quant.mxfp4_pack(x)
    assert scales[:, 0].tolist() == [0, 0, 0, 254, 1]
    assert packed[:, 0].tolist() == [0x80, 0x00, 0x05, 0x07, 0x06]  # 2^-3 -> 0, 3, saturated, 4


@pytest.mark.parametrize(("dtype", "top"), [(F64, 254), (F32, 252)])
def test_packing_what_was_unpacked_returns_every_canonical_encoding(dtype: torch.dtype, top: int) -> None:
    """All scales x all bytes at the even places, beside each of the peaks 4, 6, -4, -6 in one nibble or the other."""
    peaks = torch.tensor([0x06, 0x07, 0x0E, 0x0F, 0x60, 0x70, 0xE0, 0xF0], dtype=torch.uint8)
    any_byte = torch.arange(256, dtype=torch.uint8)
    blocks = torch.zeros(8, 256, 16, dtype=torch.uint8)
    blocks[..., 0::2] = any_byte[:, None]
    blocks[..., 3] = peaks[:, None]
    scales = torch.arange(top + 1, dtype=torch.uint8)
    packed = blocks.view(1, -1, 16).expand(top + 1, -1, -1)
    per_block = scales[:, None, None].expand(-1, 2048, 1)
    got, got_scales = quant.mxfp4_pack(quant.mxfp4_unpack(packed, per_block, dtype))
    assert torch.equal(got, packed) and torch.equal(got_scales, per_block)
    small = blocks[0].clone()  # under scale byte 0 no peak is needed
    small[:, 3] = 0
    zero = torch.zeros(256, 1, dtype=torch.uint8)
    got, got_scales = quant.mxfp4_pack(quant.mxfp4_unpack(small, zero, dtype))
    assert torch.equal(got, small) and torch.equal(got_scales, zero)


def test_mxfp4_scale_255_is_nan_and_large_scales_overflow_where_the_dtype_ends() -> None:
    packed = torch.full((2, 16), 0x71, dtype=torch.uint8)
    scales = torch.tensor([[255], [254]], dtype=torch.uint8)
    for dtype, second in ((F64, 6 * 2.0**127), (F32, INF), (BF16, INF)):
        got = quant.mxfp4_unpack(packed, scales, dtype)
        assert got[0].isnan().all() and got[1, :2].tolist() == [2.0**126, second]


def test_a_tensor_of_several_chunks_is_packed_and_unpacked_as_its_rows_are() -> None:
    rows = quant._CHUNK + 5
    gen = torch.Generator().manual_seed(1)
    packed = torch.randint(0, 256, (rows, 16), generator=gen, dtype=torch.uint8)
    scales = torch.randint(100, 140, (rows, 1), generator=gen, dtype=torch.uint8)
    whole = quant.mxfp4_unpack(packed, scales, F32)
    again, again_scales = quant.mxfp4_pack(whole)
    for row in (0, quant._CHUNK - 1, quant._CHUNK, rows - 1):
        assert same(whole[row], quant.mxfp4_unpack(packed[row], scales[row], F32))
        one, one_scale = quant.mxfp4_pack(whole[row])
        assert torch.equal(again[row], one) and torch.equal(again_scales[row], one_scale)
    assert same(whole, quant.mxfp4_unpack(again, again_scales, F32))


def test_empty_tensors_keep_their_shapes() -> None:
    x = torch.empty(0, 64, dtype=F64)
    assert [t.shape for t in quant.mxfp8_quantise(x, UP)] == [(0, 64), (0, 2)]
    packed, scales = quant.mxfp4_pack(x)
    assert [packed.shape, scales.shape] == [(0, 32), (0, 2)]
    assert quant.mxfp4_unpack(packed, scales, F64).shape == (0, 64)


def u8(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


REFUSED = {
    "K of mxfp8": (lambda: quant.mxfp8_quantise(torch.zeros(2, 48), UP), r"multiple of 32, got \[2, 48\]"),
    "K of mxfp4": (lambda: quant.mxfp4_pack(torch.zeros(2, 48)), r"multiple of 32, got \[2, 48\]"),
    "no axis": (lambda: quant.mxfp8_quantise(torch.tensor(1.0), UP), r"multiple of 32, got \[\]"),
    "K of bytes": (lambda: quant.mxfp4_unpack(u8(2, 24), u8(2, 1), F32), r"multiple of 16, got \[2, 24\]"),
    "scales of mxfp4": (
        lambda: quant.mxfp4_unpack(u8(2, 32), u8(2, 1), F32),
        r"\[2, 32\] must be \[2, 2\], got \[2, 1\]",
    ),
    "scales of mxfp8": (lambda: quant.mxfp8_dequantise(u8(2, 64).view(E4M3), u8(1, 2), F32), r"\[2, 2\], got \[1, 2\]"),
    "scale dtype": (lambda: quant.mxfp4_unpack(u8(16), torch.zeros(1), F32), r"must be uint8, got float32 \[1\]"),
    "bf16 in": (lambda: quant.to_e4m3(torch.zeros(3, dtype=BF16)), r"float64 or float32, got bfloat16 \[3\]"),
    "integers in": (lambda: quant.round_bf16(u8(3)), r"float64 or float32, got uint8 \[3\]"),
    "codes as bytes": (lambda: quant.from_e4m3(u8(3), F32), r"float8_e4m3fn, got uint8 \[3\]"),
    "another rule": (lambda: quant.mxfp8_round(torch.zeros(32), "nearest"), "'nearest' is not a valid ScaleRule"),
    "half out": (lambda: quant.mxfp4_unpack(u8(16), u8(1), torch.float16), r"not as float16"),
    "steps": (lambda: quant.code_steps(u8(3).view(E4M3), u8(4).view(E4M3)), r"\[3\] and \[4\]"),
    "inf in mxfp4": (lambda: quant.mxfp4_pack(torch.full((1, 32), INF)), r"\[1, 32\] holds inf or NaN"),
    "NaN in mxfp4": (lambda: quant.mxfp4_pack(block(NAN)), r"\[32\] holds inf or NaN"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line_with_the_shapes(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "published"),
    [("bf16", 1.66e-3), ("e4m3", 2.65e-2), ("mxfp8 up", 2.65e-2), ("mxfp8 floor", 2.94e-2), ("mxfp4", 1.15e-1)],
)
def test_natural_errors_on_gaussian_data_are_the_published_ones(name: str, published: float) -> None:
    x = torch.randn(512, 1024, generator=torch.Generator().manual_seed(5), dtype=F64)
    rounding = {
        "bf16": quant.round_bf16,
        "e4m3": lambda v: quant.from_e4m3(quant.to_e4m3(v), F64),
        "mxfp8 up": lambda v: quant.mxfp8_round(v, UP),
        "mxfp8 floor": lambda v: quant.mxfp8_round(v, FLOOR),
        "mxfp4": lambda v: quant.mxfp4_unpack(*quant.mxfp4_pack(v), F64),
    }[name]
    error = float((rounding(x) - x).norm() / x.norm())
    assert error == pytest.approx(published, rel=0.01)
