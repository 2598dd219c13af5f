"""One number for each of many outputs, on the device that holds them: what is compared instead of gigabytes."""

import torch


def digest(outputs: torch.Tensor) -> torch.Tensor:
    """int64 [n] of outputs [n, ...]: a sum over 16-bit words, each times an odd number of its place, modulo 2^64."""
    words = outputs.contiguous().view(torch.int16).reshape(outputs.shape[0], -1).to(torch.int64)
    place = torch.arange(words.shape[1], dtype=torch.int64, device=words.device)
    return (words * (place * 0x9E3779B97F4A7C1 + 0x2545F4914F6CDD1D | 1)).sum(1)
