"""A drafter without a model: what followed when the last few tokens stood in the history before (prompt lookup)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LookupDrafter:
    """Call: histories -> int64 [rows, count]. Good where output repeats its input, as in edits and structured text."""

    count: int
    longest: int = 3  # tokens that must be equal, tried first; then fewer, down to one

    def __call__(self, histories: Sequence[Sequence[int]]) -> torch.Tensor:
        return torch.tensor([self._row(h) for h in histories], dtype=torch.int64).view(len(histories), self.count)

    def _row(self, history: Sequence[int]) -> list[int]:
        for size in range(min(self.longest, len(history) - 1), 0, -1):
            tail = list(history[-size:])
            for start in range(len(history) - size - 1, -1, -1):  # the latest occurrence counts
                if list(history[start : start + size]) == tail:
                    return self._cycled(list(history[start + size :]))
        return self._cycled(list(history[-1:]))

    def _cycled(self, following: list[int]) -> list[int]:
        """`count` tokens: a text that repeats itself goes on doing so."""
        return [following[i % len(following)] for i in range(self.count)]
