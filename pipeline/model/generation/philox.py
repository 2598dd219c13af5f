"""Counter-based random numbers: Philox4x32-10 in torch integer operations, the same on every device.

A number is a function of (seed, step) alone: there is no state to advance, so neither the batch nor the order of calls
can change it. (J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.) Not covered: secrecy.
"""

import torch

WORD = 0xFFFFFFFF
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # what the two key words grow by from round to round

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox(counter: Words, key: tuple[torch.Tensor, torch.Tensor]) -> Words:
    """Four random words. All tensors are int64 that hold 32-bit words, of one shape."""
    a, b, c, d = counter
    low, high = key
    for _ in range(ROUNDS):
        a_high, a_low = _product(MULTIPLIERS[0], a)
        c_high, c_low = _product(MULTIPLIERS[1], c)
        a, b, c, d = c_high ^ b ^ low, c_low, a_high ^ d ^ high, a_low
        low, high = (low + WEYL[0]) & WORD, (high + WEYL[1]) & WORD
    return a, b, c, d


def random_halves(seed: torch.Tensor, step: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two independent 31-bit integers for every (seed, step). Both int64 and not negative, of one shape."""
    nothing = torch.zeros_like(step)
    words = philox((step & WORD, step >> 32, nothing, nothing), (seed & WORD, seed >> 32))
    return words[0] >> 1, words[1] >> 1


def _product(multiplier: int, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low word of a 64-bit product, by 16-bit halves: signed 64-bit integers would overflow."""
    upper = (word >> 16) * multiplier  # < 2^48
    lower = (word & 0xFFFF) * multiplier + ((upper & 0xFFFF) << 16)  # < 2^49
    return (upper >> 16) + (lower >> 32), lower & WORD
