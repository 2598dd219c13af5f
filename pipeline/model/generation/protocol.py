"""What generation asks of others: an engine that gives logits, a drafter that guesses, a constraint that forbids."""

from collections.abc import Callable, Sequence
from typing import Protocol, Self

import torch

# Histories (prompt and generated tokens of each row) -> int64 [rows, drafts]: guesses of what follows. Any ids of the
# vocabulary will do: a bad guess costs time and changes no output.
Drafter = Callable[[Sequence[Sequence[int]]], torch.Tensor]


class Engine(Protocol):
    """A batch of sequences, each with a state. `verify` and `accept` alternate; both get tensors on the CPU."""

    @property
    def vocab(self) -> int:
        """Size of the vocabulary."""
        ...

    def verify(self, tokens: torch.Tensor) -> torch.Tensor:
        """Feed int64 tokens [rows, q] -> float32 logits [rows, q, vocab]: those after each token and all before it."""
        ...

    def accept(self, counts: torch.Tensor) -> None:
        """int64 counts [rows], 1 to q: how many of the last `verify`'s tokens stay; the state after them goes on.

        A row that is done goes on with one token a step: 0 is never asked for, as the start state is overwritten by
        then in an engine that keeps one state per position.
        """
        ...


class TokenConstraint(Protocol):
    """Which tokens may come next in one request's output."""

    def mask(self) -> torch.Tensor:
        """bool [vocab] on the CPU: True may come next. All False once finished."""
        ...

    def advance(self, token: int) -> None:
        """Take a token. Raises ValueError, and changes nothing, if the mask forbids it."""
        ...

    def rollback(self, count: int) -> None:
        """Undo the last `count` advances."""
        ...

    def finished(self) -> bool:
        """The output is complete and nothing may follow."""
        ...

    def copy(self) -> Self:
        """An independent constraint in the same state."""
        ...


def fill_masks(constraints: Sequence[TokenConstraint | None], out: torch.Tensor) -> None:
    """Write the mask of each row into `out`, bool [rows, vocab]; all True for a row without a constraint."""
    if out.dtype != torch.bool or out.dim() != 2 or len(out) != len(constraints):
        raise ValueError(f"masks {out.dtype} {tuple(out.shape)}: give bool [{len(constraints)}, vocab]")
    for row, constraint in zip(out, constraints, strict=True):
        if constraint is None:
            row.fill_(True)
            continue
        mask = constraint.mask()
        if mask.shape != row.shape:
            raise ValueError(f"a constraint over {len(mask)} tokens does not fit masks of {len(row)}")
        row.copy_(mask)
