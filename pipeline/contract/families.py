"""Value families shared by the ops: rows that trained activations and bad luck both produce."""

import torch

OUTLIER = 30.0  # factor of an outlier channel, as seen in trained activations


def generator(seed: int, device: str) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed % (1 << 63))


def normal(shape: tuple[int, ...], gen: torch.Generator, scale: float = 1.0) -> torch.Tensor:
    """float32 normal values on the generator's device."""
    return torch.randn(shape, generator=gen, device=gen.device, dtype=torch.float32) * scale


def rows(shape: tuple[int, ...], family: str, gen: torch.Generator) -> torch.Tensor:
    """float32 activation rows [tokens, width] of a common family; unknown families give unit normal values."""
    x = normal(shape, gen)
    if family == "outlier":
        channels = torch.randperm(shape[-1], generator=gen, device=gen.device)[: max(1, shape[-1] // 256)]
        x[..., channels] *= OUTLIER
    elif family == "zero_rows":
        x[:: 2 if shape[0] > 1 else 1] = 0.0
    elif family == "tiny":
        x *= 2.0**-40
    elif family == "denormal":
        x *= 2.0**-128
    elif family == "large":
        x *= 2.0**10
    elif family == "signed_zero":
        mask = torch.rand(shape, generator=gen, device=gen.device) < 0.5
        x = torch.where(mask, torch.full_like(x, -0.0), x)
    return x
