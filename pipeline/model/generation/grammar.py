"""Output that follows a JSON schema, a regular expression or a Lark grammar, token by token, through llguidance.

A vocabulary is any mapping of token ids to bytes. Where a grammar leaves exactly one text, the mask holds just the
tokens that `Vocabulary.encode` gives for it: forced text then reads as the model saw it in training. Elsewhere every
token that the grammar allows is in the mask. A mask is never a dead end, unless the vocabulary lacks needed bytes:
then `mask` raises. Not covered: what the library does not know of JSON schema (it refuses such a schema by name).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

MESSAGE = 200  # characters of the library's own words in an error
MAX_TEXT = 1 << 16  # characters of a grammar: the library's time grows faster than a long one's length
LEXER_FUEL = 100_000  # a tenth of the library's own: with that, `(text){9999}` takes seconds a token


@dataclass(frozen=True)
class JsonSchema:
    schema: Mapping[str, Any] | str  # a str is JSON text of an object
    compact: bool = False  # no white space between the parts; otherwise any


@dataclass(frozen=True)
class Regex:
    text: str  # syntax of Rust's regex crate; it must match the whole output


@dataclass(frozen=True)
class Lark:
    text: str  # llguidance's variant of Lark; the first rule is `start`


Grammar = JsonSchema | Regex | Lark


@dataclass(frozen=True)
class Vocabulary:
    """`tokens[id]`: the bytes of a token; empty for a special one, which no grammar's text contains."""

    tokens: tuple[bytes, ...]
    eos: tuple[int, ...]  # special tokens of which any may end an output
    encode: Callable[[bytes], Sequence[int]] | None = field(default=None, compare=False)  # default: longest match

    def __post_init__(self) -> None:
        if not self.eos or not all(0 <= e < len(self.tokens) and not self.tokens[e] for e in self.eos):
            raise ValueError(f"eos {self.eos}: name at least one token of the vocabulary, and only ones without bytes")

    @classmethod
    def of(cls, size: int, to_bytes: Callable[[int], bytes], eos: Sequence[int]) -> Self:
        return cls(tuple(to_bytes(i) for i in range(size)), tuple(eos))

    def longest_match(self, text: bytes) -> list[int]:
        """Tokens of a text, each the longest that fits; bytes that no token has are left out."""
        found: list[int] = []
        while text:
            size = next((n for n in range(min(self._longest, len(text)), 0, -1) if text[:n] in self._ids), 0)
            if size:
                found.append(self._ids[text[:size]])
            text = text[max(size, 1) :]
        return found

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {t: i for i, t in reversed(list(enumerate(self.tokens))) if t}  # the lowest id of equal bytes

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=0)

    @cached_property
    def tokenizer(self) -> LLTokenizer:
        """The library's form of it; made once, as it builds a tree of all tokens."""
        return LLTokenizer(TokenizerWrapper(_Source(self)), eos_token=list(self.eos))


def _limits() -> LLParserLimits:
    return LLParserLimits(initial_lexer_fuel=LEXER_FUEL)


class _Source:
    """What the library's wrapper asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.tokens = list(vocabulary.tokens)
        self.eos_token_id = vocabulary.eos[0]
        self.special_token_ids = [i for i, t in enumerate(vocabulary.tokens) if not t]

    def __call__(self, text: bytes) -> list[int]:
        encode = self._vocabulary.encode or self._vocabulary.longest_match
        ids = list(encode(text))
        if b"".join(self.tokens[i] for i in ids) == text:
            return ids
        return self._vocabulary.longest_match(text)  # the library takes lost bytes for tokens of the mask


class Constraint:
    """A grammar's state along one output. Raises ValueError, in one line, for a grammar that cannot be used."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._matcher = LLMatcher(vocabulary.tokenizer, _compiled(grammar), log_level=0, limits=_limits())
        self._taken = 0
        self._mask: torch.Tensor | None = None  # of the present state, once asked for
        self._check("the grammar cannot be used")
        self.mask()  # a vocabulary without the first bytes is found here

    def copy(self) -> Self:
        """An independent constraint in the same state."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, _matcher=self._matcher.deep_copy())
        return twin

    def mask(self) -> torch.Tensor:
        """bool [vocab] on the CPU, not to be written to: True may come next, an end token where the output may end.

        All False once finished. Raises ValueError if the output cannot go on with this vocabulary.
        """
        if self._mask is None:
            self._mask = self._computed()
        return self._mask

    def advance(self, token: int) -> None:
        """Take a token. Raises ValueError, and changes nothing, if the mask forbids it."""
        if self.finished():
            raise ValueError(f"token {token}: the output is finished, nothing may follow")
        if not 0 <= token < len(self.vocabulary.tokens) or not self.mask()[token]:
            raise ValueError(f"token {token} is not allowed by the grammar after {self._taken} tokens")
        self._matcher.consume_token(token)
        self._check(f"token {token} was refused although the mask holds it")
        self._taken, self._mask = self._taken + 1, None

    def rollback(self, count: int) -> None:
        """Undo the last `count` advances. Raises ValueError if there were fewer."""
        if not 0 <= count <= self._taken:
            raise ValueError(f"{count} tokens cannot be taken back: {self._taken} were taken")
        if count:
            self._matcher.rollback(count)
            self._check(f"{count} tokens could not be taken back")
            self._taken, self._mask = self._taken - count, None

    def finished(self) -> bool:
        """The output is complete and nothing may follow: an end token was taken, or the grammar has no more to give."""
        return self._matcher.is_stopped()

    def _computed(self) -> torch.Tensor:
        size = len(self.vocabulary.tokens)
        packed = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        self._check("no token of the vocabulary can go on")
        if self.finished():  # the library would go on to allow end tokens
            return torch.zeros(size, dtype=torch.bool)
        bits = (packed.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)) & 1
        return bits.flatten()[:size].bool()

    def _check(self, what: str) -> None:
        if self._matcher.is_error():
            raise ValueError(f"{what}: {_one_line(self._matcher.get_error())}")


def _compiled(grammar: Grammar) -> str:
    if isinstance(grammar, Regex):
        return LLMatcher.grammar_from_regex(_short(grammar.text))
    if isinstance(grammar, Lark):
        return LLMatcher.grammar_from_lark(_short(grammar.text))
    schema = grammar.schema
    try:
        text = _short(schema if isinstance(schema, str) else json.dumps(schema))
        return LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_flexible": not grammar.compact})
    except (TypeError, ValueError) as error:
        raise ValueError(f"the schema is not a JSON object: {_one_line(str(error))}") from error


def _short(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise ValueError(f"the grammar has {len(text)} characters, at most {MAX_TEXT} are taken")
    return text


def _one_line(message: str) -> str:
    """The library's words without the dump of its state."""
    line = " ".join(message.split("<state>")[0].split()) or "no reason given"
    return line if len(line) <= MESSAGE else line[:MESSAGE] + "..."
