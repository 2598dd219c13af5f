"""What the ops of several ranks share: how many ranks there may be, and input families that concern the sum over ranks.

Not here: the sum itself and the rules over ranks, which are every ranked contract's (kgen.contract.ranks).
"""

import torch

RANKS = ("2", "1", "4", "8", "16")  # default first: the fewest that exchange anything
SWEPT_RANKS = "2; 1, 4, 8 and 16 as slots on one device"
BIG = 2.0**20  # a float32 sum that holds it has steps of 2^-3


def shared_by_all(value: torch.Tensor, ranks: int) -> torch.Tensor:
    """The same value on every rank: [ranks, ...]."""
    return value.expand(ranks, *value.shape).contiguous()


def opposed(parts: torch.Tensor, family: str, gen: torch.Generator) -> None:
    """Makes the ranks' float32 parts [ranks, ...] work against each other, in place; other families stay."""
    ranks = parts.shape[0]
    if ranks < 2:
        return
    if family == "rank_order":
        parts[0] = BIG * (1 + torch.rand(parts[0].shape, generator=gen, device=gen.device))
        parts[-1] = -parts[0]
    elif family == "cancelling":
        parts[-1] = -parts[:-1].to(torch.bfloat16).float().sum(0) * (1 - 2.0**-4)
