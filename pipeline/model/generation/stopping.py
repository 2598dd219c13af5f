"""When a request is done: end tokens, stop sequences, a finished grammar, the most tokens; and which of them it was.

Sequences are matched on all tokens that the request generated, so it does not matter how steps cut them; they are not
matched across the end of the prompt. Not covered: stop strings (a caller with a tokenizer turns them into sequences).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    EOS = "eos"
    SEQUENCE = "sequence"
    GRAMMAR = "grammar"  # the output is complete and nothing may follow
    LENGTH = "length"


@dataclass(frozen=True)
class Stop:
    reason: Reason
    matched: int  # how many tokens at the end are the end token or the sequence: what a caller may cut off


@dataclass(frozen=True)
class StopRules:
    """Raises ValueError for rules that never or always hold."""

    max_tokens: int
    eos: frozenset[int] = frozenset()
    sequences: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens {self.max_tokens}: give at least 1")
        if not all(self.sequences):
            raise ValueError("a stop sequence is empty: leave it out")

    def check(self, generated: Sequence[int], grammar_finished: bool = False) -> Stop | None:
        """Whether the last of `generated` ends the request; to be asked after each token.

        Of several reasons the first of eos, sequence, grammar, length counts; of several sequences the longest.
        """
        if generated[-1] in self.eos:
            return Stop(Reason.EOS, 1)
        found = [len(s) for s in self.sequences if tuple(generated[-len(s) :]) == s]
        if found:
            return Stop(Reason.SEQUENCE, max(found))
        if grammar_finished:
            return Stop(Reason.GRAMMAR, 0)
        return Stop(Reason.LENGTH, 0) if len(generated) >= self.max_tokens else None
