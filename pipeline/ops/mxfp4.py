"""Routed experts in MXFP4: from the checkpoint's per-expert tensors to one rank's tensors and back, and their values.

    pack(experts, rank, ranks, width) -> RankExperts        the slice of every expert that one rank holds
    unpack(parts, slice_width) -> list[CheckpointExpert]    the inverse, over all ranks in order
    decode(packed, scales) -> bf16                          exact values; usable inside a CUDA graph

A checkpoint holds for each expert w1 (gate) and w3 (up) [F, latent] and w2 (down) [latent, F]: e2m1 codes two a byte,
low nibble = even index, and one E8M0 scale per 32 elements of the last axis. Rank r of T takes hidden units
r F/T .. (r+1) F/T - 1: rows of w1 and w3, columns of w2. Its tensors are w13 = gate rows then up rows, and w2.

Where the stored `width` exceeds F/T, zeros fill up gate rows, up rows and w2 columns at the end of each: codes 0 and
scale bytes 0. SiTU(0, 0) = 0 and the codes are 0, so they add nothing, and a kernel may skip them.

Scale bytes 0..252 are in contract: up to there every value is a bf16 number. 253 and 254 can leave bf16's range, 255
is NaN; a loader must refuse them. Not covered: layouts of a particular kernel, and quantising (contract.quant).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

BLOCK = 32  # elements to a scale
PER_BYTE = 2
TOP_SCALE = 252  # the largest scale byte in contract


@dataclass(frozen=True)
class CheckpointExpert:
    """u8: w1, w3 [F, latent/2], s1, s3 [F, latent/32], w2 [latent, F/2], s2 [latent, F/32]."""

    w1: torch.Tensor
    s1: torch.Tensor
    w3: torch.Tensor
    s3: torch.Tensor
    w2: torch.Tensor
    s2: torch.Tensor


@dataclass(frozen=True)
class RankExperts:
    """u8: w13 [E, 2 I, latent/2], s13 [E, 2 I, latent/32], w2 [E, latent, I/2], s2 [E, latent, I/32]."""

    w13: torch.Tensor
    s13: torch.Tensor
    w2: torch.Tensor
    s2: torch.Tensor


def bytes_per_expert(latent: int, width: int) -> int:
    """Codes and scales of one expert on one rank: 3 I latent elements of 4 bits, and one byte per 32."""
    elements = 3 * width * latent
    return elements // PER_BYTE + elements // BLOCK


def pack(experts: Iterable[CheckpointExpert], rank: int, ranks: int, width: int) -> RankExperts:
    """One rank's tensors. `width`: hidden units stored, at least F/ranks; the rest is padding.

    Raises ValueError (one line) for tensors of the wrong shape or type, a slice that is not whole blocks of 32,
    and scale bytes out of contract.
    """
    made = [_slice(e, number, rank, ranks, width) for number, e in enumerate(experts)]
    if not made:
        raise ValueError("there are no experts to pack")
    return RankExperts(*(torch.stack(tensors) for tensors in zip(*made, strict=True)))


def _slice(expert: CheckpointExpert, number: int, rank: int, ranks: int, width: int) -> tuple[torch.Tensor, ...]:
    units = _check(expert, number)
    own = units // ranks
    if units % ranks or own % BLOCK or width % BLOCK or width < own or not 0 <= rank < ranks:
        raise ValueError(
            f"{units} hidden units do not split into rank {rank} of {ranks} with {width} stored:"
            f" slice and stored width must be multiples of {BLOCK}, and the slice must fit"
        )
    mine = slice(rank * own, (rank + 1) * own)
    w13, s13 = (
        torch.cat([_filled(t[mine], 0, width) for t in pair])
        for pair in ((expert.w1, expert.w3), (expert.s1, expert.s3))
    )
    w2 = _filled(expert.w2[:, mine.start // PER_BYTE : mine.stop // PER_BYTE], 1, width // PER_BYTE)
    s2 = _filled(expert.s2[:, mine.start // BLOCK : mine.stop // BLOCK], 1, width // BLOCK)
    return w13, s13, w2, s2


def _filled(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """Zeros after the end of `dim`, up to `size`."""
    shape = list(tensor.shape)
    shape[dim] = size - shape[dim]
    return torch.cat([tensor, tensor.new_zeros(shape)], dim=dim)


def _check(expert: CheckpointExpert, number: int) -> int:
    """The expert's hidden units. Raises ValueError naming the first tensor that does not fit the others."""
    units, latent = expert.w1.shape[0], expert.w1.shape[-1] * PER_BYTE
    want = {
        "w1": (units, latent // PER_BYTE),
        "w3": (units, latent // PER_BYTE),
        "s1": (units, latent // BLOCK),
        "s3": (units, latent // BLOCK),
        "w2": (latent, units // PER_BYTE),
        "s2": (latent, units // BLOCK),
    }
    for name, shape in want.items():
        tensor = getattr(expert, name)
        if tensor.dtype != torch.uint8 or tuple(tensor.shape) != shape:
            got = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            raise ValueError(f"expert {number}: {name} must be uint8 {list(shape)}, got {got}")
        if name.startswith("s") and int(tensor.max()) > TOP_SCALE:
            raise ValueError(
                f"expert {number}: {name} holds scale byte {int(tensor.max())}, the largest is {TOP_SCALE}"
            )
    return units


def unpack(parts: Sequence[RankExperts], slice_width: int) -> list[CheckpointExpert]:
    """The checkpoint's tensors from every rank's, in rank order. `slice_width`: hidden units without padding."""
    width = parts[0].w13.shape[1] // 2
    if not 0 < slice_width <= width or slice_width % BLOCK:
        raise ValueError(f"a slice of {slice_width} hidden units cannot come from {width} stored ones")
    up = slice(width, width + slice_width)
    codes, scales = slice_width // PER_BYTE, slice_width // BLOCK
    return [
        CheckpointExpert(
            w1=torch.cat([p.w13[e, :slice_width] for p in parts]),
            s1=torch.cat([p.s13[e, :slice_width] for p in parts]),
            w3=torch.cat([p.w13[e, up] for p in parts]),
            s3=torch.cat([p.s13[e, up] for p in parts]),
            w2=torch.cat([p.w2[e, :, :codes] for p in parts], dim=1),
            s2=torch.cat([p.s2[e, :, :scales] for p in parts], dim=1),
        )
        for e in range(parts[0].w13.shape[0])
    ]


_TABLES: dict[torch.device, torch.Tensor] = {}


def _pairs(device: torch.device) -> torch.Tensor:
    """The table of `_make_pairs`, kept for the next call: but not from a capture, whose memory is the graph's own."""
    if torch.compiler.is_compiling():
        return _make_pairs(device)
    if (found := _TABLES.get(device)) is None:
        found = _make_pairs(device)
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            _TABLES[device] = found
    return found


def _make_pairs(device: torch.device) -> torch.Tensor:
    """i32 [256]: the two bf16 values of each byte, the low nibble's in the low half. Made on the device, no copy."""
    code = torch.arange(16, dtype=torch.int32, device=device)
    magnitude = code & 7
    half = 126 << 7  # the bits of 0.5; from 1.0 on, exponent and fraction bits of e2m1 are those of bf16
    bits = torch.where(magnitude > 1, (magnitude << 6) + half, magnitude * half) | ((code & 8) << 12)
    return ((bits[:, None] << 16) | bits[None, :]).flatten()


def decode(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """u8 [..., K/2], u8 [..., K/32] (bytes 0..252) -> bf16 [..., K], exactly; no copy from or to the host."""
    power = (scales.to(torch.int16) << 7).clamp(min=64).view(torch.bfloat16)  # 64: the bits of 2^-127
    values = _pairs(packed.device)[packed.int()].view(torch.bfloat16)
    return (values.view(*power.shape, BLOCK) * power.unsqueeze(-1)).flatten(-2)
