"""Number formats of op contracts in plain torch, on any device: bf16, e4m3, E8M0 scales, MXFP8 and MXFP4 blocks.

Values go in as float64 or float32, and every rounding here is one round-to-nearest, ties to even, from that dtype.
torch's own float64 -> bf16 and float64 -> e4m3 go through float32 and so round twice; nothing here relies on them.
Where a result does not depend on the format's rules (copies, exact products) torch does the work.

Not here: approximate device arithmetic, backend-specific shuffles of packed weights, NVFP4, per-tensor scales
(multiply by the inverse scale before `to_e4m3`).
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch

MX_BLOCK = 32  # elements that share one E8M0 scale, along the last axis
E8M0_BIAS = 127
E8M0_NAN = 255
E8M0_TOP = 254  # the largest byte that is a number: 2^127
NAN_STEPS = 255  # `code_steps` of a NaN and a number: more than the 252 between -448 and 448
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by code 0..7; codes 8..15 are the same, negative (8 is -0)

_CHUNK = 1 << 17  # MX blocks at a time: bounds the temporaries of packing and unpacking to some 100 MB; on a GPU,
_CHUNK_CUDA = 1 << 20  # where a launch costs more than memory, to 1 GB
_EXPONENTS = {torch.float64: (torch.int64, 0x7FF << 52), torch.float32: (torch.int32, 0xFF << 23)}


class ScaleRule(enum.StrEnum):
    """How the shared exponent k of a block follows from its largest magnitude amax."""

    ROUND_UP = "round_up"  # the smallest k with amax / 2^k <= largest element value: nothing saturates
    FLOOR_SATURATE = "floor_saturate"  # floor(log2 amax) - exponent of the largest element value: the top saturates


@dataclass(frozen=True)
class Grid:
    """A binary float format: fraction bits, exponent of the smallest normal, exponent and value of the largest."""

    fraction: int
    least: int
    top: int
    largest: float


BF16 = Grid(7, -126, 127, (2 - 2**-7) * 2.0**127)
E4M3 = Grid(3, -6, 8, 448.0)
E2M1 = Grid(1, 0, 2, 6.0)


def _need(tensor: torch.Tensor, what: str, *dtypes: torch.dtype) -> None:
    if tensor.dtype not in dtypes:
        names = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
        got = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        raise ValueError(f"{what} must be {names}, got {got}")


def _need_floats(x: torch.Tensor, what: str) -> None:
    _need(x, what, torch.float64, torch.float32)


def _need_target(dtype: torch.dtype, what: str) -> None:
    if dtype not in (torch.float64, torch.float32, torch.bfloat16):
        raise ValueError(f"{what} are read as float64, float32 or bfloat16, not as {str(dtype).removeprefix('torch.')}")


def _need_blocks(x: torch.Tensor, what: str, per_block: int) -> None:
    if x.dim() == 0 or x.shape[-1] % per_block:
        raise ValueError(f"the last axis of {what} must be a multiple of {per_block}, got {list(x.shape)}")


def _need_scales(scales: torch.Tensor, x: torch.Tensor, what: str, per_block: int) -> None:
    _need(scales, f"scales of {what}", torch.uint8)
    want = [*x.shape[:-1], x.shape[-1] // per_block]
    if list(scales.shape) != want:
        raise ValueError(f"scales of {what} {list(x.shape)} must be {want}, got {list(scales.shape)}")


def _exponent_power(x: torch.Tensor) -> torch.Tensor:
    """2^floor(log2 |x|) from the bits of x; 0 for zero and for subnormals of its dtype, inf for inf and NaN."""
    integer, mask = _EXPONENTS[x.dtype]
    return (x.view(integer) & mask).view(x.dtype)


def _round(x: torch.Tensor, grid: Grid) -> torch.Tensor:
    """x to the nearest multiple of the grid's spacing around it, ties to even; no limit at the top.

    The spacing is a power of two: division and product are exact, torch.round (ties to even) is the only rounding.
    """
    spacing = _exponent_power(x) * 2.0**-grid.fraction
    spacing = spacing.clamp(2.0 ** (grid.least - grid.fraction), torch.finfo(x.dtype).max)  # finite for inf and NaN
    return torch.round(x / spacing) * spacing


def round_bf16(x: torch.Tensor) -> torch.Tensor:
    """x (float64 or float32, any shape) rounded once to bf16 values, in the dtype of x.

    Subnormals of bf16 are kept, magnitudes from 2^128 - 2^119 on become inf, signs of zeros and NaN stay.
    """
    _need_floats(x, "round_bf16's input")
    near = _round(x, BF16)
    return torch.where(near.abs() > BF16.largest, torch.copysign(torch.full_like(near, torch.inf), near), near)


def to_e4m3(x: torch.Tensor) -> torch.Tensor:
    """x (float64 or float32, any shape) as float8_e4m3fn: rounded once, saturating at +-448 (inf too), NaN kept."""
    _need_floats(x, "to_e4m3's input")
    return _round(x, E4M3).clamp(-E4M3.largest, E4M3.largest).to(torch.float8_e4m3fn)


def from_e4m3(codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The exact values of float8_e4m3fn codes as float64, float32 or bfloat16."""
    _need(codes, "from_e4m3's codes", torch.float8_e4m3fn)
    _need_target(dtype, "e4m3 codes")
    return codes.float().to(dtype)


def code_steps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many e4m3 values apart a and b are, element by element: int32 in the shape of a and b.

    +0 and -0 are one value, steps count through zero; two NaN are 0 apart, a NaN and a number NAN_STEPS.
    """
    _need(a, "code_steps' first argument", torch.float8_e4m3fn)
    _need(b, "code_steps' second argument", torch.float8_e4m3fn)
    if a.shape != b.shape:
        raise ValueError(f"code_steps compares equal shapes, got {list(a.shape)} and {list(b.shape)}")
    ranks, nan = [], []
    for codes in (a, b):
        bits = codes.view(torch.uint8).int()
        magnitude = bits & 0x7F
        ranks.append(torch.where(bits > 0x7F, -magnitude, magnitude))
        nan.append(magnitude == 0x7F)
    steps = (ranks[0] - ranks[1]).abs()
    steps = torch.where(nan[0] & nan[1], 0, steps)
    return torch.where(nan[0] ^ nan[1], NAN_STEPS, steps)


def decode_e8m0(scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """E8M0 bytes (u8, any shape) as float64, float32 or bfloat16: 2^(byte - 127), exactly; 255 is NaN."""
    _need(scales, "E8M0 scales", torch.uint8)
    _need_target(dtype, "E8M0 scales")
    power = ((scales.long() + (1023 - E8M0_BIAS)) << 52).view(torch.float64)
    return power.masked_fill(scales == E8M0_NAN, torch.nan).to(dtype)


def shared_scale(amax: torch.Tensor, rule: ScaleRule, grid: Grid = E4M3) -> torch.Tensor:
    """E8M0 bytes (u8) for blocks of `grid` elements whose largest magnitudes are `amax` (float64 or float32 >= 0).

    Clamped to 0..254: an all-zero block and one of float32 subnormals get 0; inf or NaN get 254.
    """
    _need_floats(amax, "amax")
    power = _exponent_power(amax.double())
    exponent = (power.view(torch.int64) >> 52) - 1023  # floor(log2 amax); -1023 for 0, 1024 for inf and NaN
    shared = exponent - grid.top
    if ScaleRule(rule) is ScaleRule.ROUND_UP:
        shared = shared + (amax.double() > power * (grid.largest / 2.0**grid.top)).long()
    return (shared + E8M0_BIAS).clamp(0, E8M0_TOP).to(torch.uint8)


def _blocks(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(*x.shape[:-1], x.shape[-1] // MX_BLOCK, MX_BLOCK)


def mxfp8_quantise(x: torch.Tensor, rule: ScaleRule) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., K] (float64 or float32) -> float8_e4m3fn codes [..., K] and E8M0 scales u8 [..., K / 32].

    A block with an inf or a NaN has scale byte 254: its inf saturates to +-448, its NaN stays, the rest keeps what
    2^127 leaves of it. ValueError when K is not a multiple of 32 or the dtype is another.
    """
    _need_floats(x, "mxfp8_quantise's input")
    _need_blocks(x, "mxfp8_quantise's input", MX_BLOCK)
    blocks = _blocks(x)
    scales = shared_scale(blocks.abs().amax(-1), rule)
    scaled = blocks / decode_e8m0(scales, x.dtype).unsqueeze(-1)
    return to_e4m3(scaled).flatten(-2), scales


def mxfp8_dequantise(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float8_e4m3fn codes [..., K] and E8M0 scales u8 [..., K / 32] -> values [..., K] in `dtype`.

    Exact in float64; in float32 and bfloat16 whatever is beyond their range becomes inf, and bfloat16 ends at 2^-133
    below. ValueError on shapes or dtypes that do not fit.
    """
    values = from_e4m3(codes, dtype)
    _need_blocks(codes, "MXFP8 codes", MX_BLOCK)
    _need_scales(scales, codes, "MXFP8 codes", MX_BLOCK)
    return (_blocks(values) * decode_e8m0(scales, dtype).unsqueeze(-1)).flatten(-2)


def mxfp8_round(x: torch.Tensor, rule: ScaleRule) -> torch.Tensor:
    """x [..., K] (float64 or float32) quantised to MXFP8 and back, in the dtype of x."""
    return mxfp8_dequantise(*mxfp8_quantise(x, rule), x.dtype)


def _chunks(rows: torch.Tensor) -> Iterator[slice]:
    size = _CHUNK_CUDA if rows.is_cuda else _CHUNK
    return (slice(start, start + size) for start in range(0, rows.shape[0], size))


@cache
def _pairs(device: torch.device) -> torch.Tensor:
    """i64 [256]: the two e2m1 values of each byte in float32, the low nibble's first.

    Made once, since a copy to a GPU waits for it. One integer a pair: torch gathers rows of 16 bytes on a GPU many
    times slower than elements.
    """
    values = torch.tensor([*E2M1_VALUES, *(-v for v in E2M1_VALUES)], dtype=torch.float32)
    byte = torch.arange(256)
    return torch.stack((values[byte & 15], values[byte >> 4]), dim=-1).view(torch.int64).flatten().to(device)


def mxfp4_unpack(packed: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """MXFP4 u8 [..., K / 2] (low nibble = even index) and E8M0 scales u8 [..., K / 32] -> values [..., K] in `dtype`.

    Exact in float64, and in float32 and bfloat16 for scale bytes up to 252; beyond, what exceeds the range becomes
    inf. Scale byte 255 makes its block NaN. ValueError on shapes or dtypes that do not fit.
    """
    _need(packed, "MXFP4 bytes", torch.uint8)
    _need_target(dtype, "MXFP4 bytes")
    _need_blocks(packed, "MXFP4 bytes", MX_BLOCK // 2)
    _need_scales(scales, packed, "MXFP4 bytes", MX_BLOCK // 2)
    pairs = _pairs(packed.device)
    rows, row_scales = packed.reshape(-1, MX_BLOCK // 2), scales.reshape(-1, 1)
    out = torch.empty((rows.shape[0], MX_BLOCK), dtype=dtype, device=packed.device)
    for part in _chunks(rows):
        elements = pairs.index_select(0, rows[part].reshape(-1).int()).view(torch.float32).view(-1, MX_BLOCK)
        torch.mul(elements, decode_e8m0(row_scales[part], dtype), out=out[part])
    return out.view(*packed.shape[:-1], 2 * packed.shape[-1])


def mxfp4_pack(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., K] (float64 or float32) -> MXFP4 u8 [..., K / 2] (low nibble = even index), E8M0 u8 [..., K / 32].

    The OCP MX quantiser: shared exponent floor(log2 amax) - 2, elements rounded to nearest on the e2m1 grid, ties to
    even, saturating at 6. Packing what `mxfp4_unpack` gave returns the same bytes if every block's largest element is
    4 or 6, or its scale byte is 0. ValueError when K is not a multiple of 32, on another dtype, and on inf or NaN,
    which e2m1 cannot hold.
    """
    _need_floats(x, "mxfp4_pack's input")
    _need_blocks(x, "mxfp4_pack's input", MX_BLOCK)
    rows = x.reshape(-1, MX_BLOCK)
    packed = torch.empty((rows.shape[0], MX_BLOCK // 2), dtype=torch.uint8, device=x.device)
    scales = torch.empty((rows.shape[0], 1), dtype=torch.uint8, device=x.device)
    for part in _chunks(rows):
        amax = rows[part].abs().amax(-1, keepdim=True)
        if not bool(torch.isfinite(amax).all()):
            raise ValueError(f"mxfp4_pack's input {list(x.shape)} holds inf or NaN, which MXFP4 cannot hold")
        scales[part] = shared_scale(amax, ScaleRule.FLOOR_SATURATE, E2M1)
        codes = _e2m1_codes(rows[part] / decode_e8m0(scales[part], x.dtype))
        packed[part] = codes[:, 0::2] | (codes[:, 1::2] << 4)
    shape = x.shape[:-1]
    return packed.view(*shape, x.shape[-1] // 2), scales.view(*shape, x.shape[-1] // MX_BLOCK)


def mxfp4_round(x: torch.Tensor) -> torch.Tensor:
    """The values that `mxfp4_unpack` gives after `mxfp4_pack`, for x [..., K] (float64 or float32) of finite numbers.

    Whether they are finite is not looked at, so nothing waits for a device. ValueError as in `mxfp4_pack`.
    """
    _need_floats(x, "mxfp4_round's input")
    _need_blocks(x, "mxfp4_round's input", MX_BLOCK)
    rows = _blocks(x)
    scale = decode_e8m0(shared_scale(rows.abs().amax(-1, keepdim=True), ScaleRule.FLOOR_SATURATE, E2M1), x.dtype)
    return (_round(rows / scale, E2M1).clamp(-E2M1.largest, E2M1.largest) * scale).view(x.shape)


def _e2m1_codes(x: torch.Tensor) -> torch.Tensor:
    """Nearest e2m1 codes (u8 0..15) of finite x, ties to even, saturating."""
    halves = (_round(x.abs(), E2M1).clamp(max=E2M1.largest) * 2).int()  # 0..12, the e2m1 values in halves
    by_half = torch.zeros(13, dtype=torch.uint8, device=x.device)
    for code, value in enumerate(E2M1_VALUES):
        by_half[int(2 * value)] = code
    codes = by_half.index_select(0, halves.reshape(-1)).view(x.shape)
    return codes | (torch.signbit(x).to(torch.uint8) << 3)
