"""The 512 tokens: controls without bytes, printable ASCII, frequent JSON pieces, words, numbers, and symbols.

Every token but the controls and the spare ids stands for bytes, so that a grammar over bytes can constrain the text.
`encode` takes the longest piece first; a text has one encoding. Symbols are single letters from U+0100 on: material for
recall and copy that no text of another task uses. Not a general tokeniser: text beyond its bytes is refused.
"""

import re
from collections.abc import Iterable, Sequence

VOCAB = 512
PAD, BOS, EOS, ANSWER, QUERY = range(5)
TAGS = {"recall": 5, "copy": 6, "modular": 7, "brackets": 8, "json": 9}
FIRST_PIECE = 16  # ids below are controls; 10..15 are spare
SYMBOLS = range(320, VOCAB)
KEYS, VALUES = SYMBOLS[:96], SYMBOLS[96:]

_NAMES = (
    "age area cost code count date depth grade group height index item kind label level limit mass mode "
    "name note owner part path place rank rate score size speed state unit width"
)
_WORDS = (
    "amber apple basil birch black blue bread brown cedar cherry cloud coral cream crow delta dove east "
    "fern field flint frost glass gold grape green hazel honey iron ivory jade lake lemon lilac maple "
    "mint moss north oak olive onyx opal pearl pine plum rain rose ruby sand"
)
NAMES = tuple(_NAMES.split(" "))
WORDS = tuple(_WORDS.split(" "))
TYPES = ("integer", "string", "boolean", "array")
JSON_PIECES = ('{"', '":', '":"', '","', ',"', '"}', '":[', '],"', "]}", "true", "false", "null")


def _pieces() -> dict[int, bytes]:
    ascii_text = ["\n", "\t", *map(chr, range(0x20, 0x7F))]
    numbers = [str(n) for n in range(10, 100)]
    texts = [*ascii_text, *JSON_PIECES, *TYPES, *NAMES, *WORDS, *numbers]
    pieces = {FIRST_PIECE + i: text.encode() for i, text in enumerate(texts)}
    symbols = {token: chr(0x100 + i).encode() for i, token in enumerate(SYMBOLS)}
    return pieces | symbols


_BYTES = _pieces()
_IDS = {piece: token for token, piece in _BYTES.items()}
_PIECE = re.compile(b"|".join(re.escape(piece) for piece in sorted(_IDS, key=len, reverse=True)), re.DOTALL)


def token_bytes(token: int) -> bytes | None:
    """The bytes that a token stands for; None for controls and spare ids. ValueError outside the vocabulary."""
    if not 0 <= token < VOCAB:
        raise ValueError(f"token {token} is outside the vocabulary 0..{VOCAB - 1}")
    return _BYTES.get(token)


def encode(text: str) -> tuple[int, ...]:
    """Tokens of a text, longest piece first. ValueError for a character that no token holds."""
    raw = text.encode()
    pieces: list[bytes] = _PIECE.findall(raw)
    if sum(map(len, pieces)) != len(raw):
        strange = next(char for char in text if char.encode() not in _IDS)
        raise ValueError(f"no token for {strange!r}: use printable ASCII, new lines and tabs")
    return tuple(_IDS[piece] for piece in pieces)


def decode(tokens: Iterable[int]) -> str:
    """The text of tokens that stand for bytes. ValueError for a control or spare id, or bytes that are no UTF-8."""
    parts = []
    for token in tokens:
        piece = token_bytes(token)
        if piece is None:
            raise ValueError(f"token {token} stands for no text")
        parts.append(piece)
    return b"".join(parts).decode()


def until_end(tokens: Sequence[int]) -> tuple[int, ...] | None:
    """What precedes the first EOS; None if there is none."""
    return tuple(tokens[: tokens.index(EOS)]) if EOS in tokens else None
