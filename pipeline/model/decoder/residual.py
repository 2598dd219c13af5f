"""What travels between layers beside the rows: the running sum, its pending addend, the finished blocks."""

from dataclasses import dataclass

import torch


@dataclass
class Residual:
    """The running sum, what is still to be added to it, and the finished blocks."""

    prefix: torch.Tensor  # [rows, hidden]
    blocks: torch.Tensor  # [rows, slots, hidden]
    delta: torch.Tensor | None = None
