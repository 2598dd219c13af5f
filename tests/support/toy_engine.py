"""A small deterministic language model with a state: logits are a hash of the last few tokens of each row."""

import zlib
from collections.abc import Sequence

import torch


class ToyEngine:
    """An engine of `kgen.model.generation.protocol`. `order`: how many tokens back its logits look."""

    def __init__(self, rows: int, vocab: int, order: int = 3, sharpness: float = 3.0) -> None:
        self.vocab = vocab
        self.order, self.sharpness = order, sharpness
        self.steps = 0
        self._states: list[tuple[int, ...]] = [()] * rows  # the last `order` tokens
        self._after: list[list[tuple[int, ...]]] | None = None  # per row, the state after each token of the last verify
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def logits_after(self, tokens: Sequence[int]) -> torch.Tensor:
        """float32 [vocab]: what the model says after these tokens, computed without the engine's state."""
        context = tuple(tokens[-self.order :])
        if context not in self._known:
            generator = torch.Generator().manual_seed(zlib.crc32(repr(context).encode()))
            self._known[context] = torch.randn(self.vocab, generator=generator) * self.sharpness
        return self._known[context]

    def verify(self, tokens: torch.Tensor) -> torch.Tensor:
        assert self._after is None and tokens.dtype == torch.int64 and len(tokens) == len(self._states)
        self.steps += 1
        self._after = []
        for state, row in zip(self._states, tokens.tolist(), strict=True):
            after = []
            for token in row:
                assert 0 <= token < self.vocab
                state = (*state, token)[-self.order :]
                after.append(state)
            self._after.append(after)
        return torch.stack([torch.stack([self.logits_after(s) for s in after]) for after in self._after])

    def accept(self, counts: torch.Tensor) -> None:
        assert self._after is not None and counts.dtype == torch.int64
        self._states = [after[self.kept(count) - 1] for after, count in zip(self._after, counts.tolist(), strict=True)]
        self._after = None

    def kept(self, count: int) -> int:
        assert count >= 1
        return int(count)


class ForgetfulEngine(ToyEngine):
    """Rolls back one token too few: a defect that tests must see."""

    def kept(self, count: int) -> int:
        assert self._after is not None
        return min(count + 1, len(self._after[0]))
