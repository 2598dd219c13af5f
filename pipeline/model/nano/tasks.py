"""Items of five tasks, each determined by (task, split, seed, index, length): a prompt, the answer, a schema for JSON.

    recall    keys and values scattered in filler; four keys are asked, the answer repeats each with its value
    copy      symbols in random order, to be repeated
    modular   a chain s1 = 3; s2 = s1 + 5; ... modulo 10; the answer names each variable and its value
    brackets  four kinds, some closed; the answer closes the open ones
    json      a schema and facts; the answer is the JSON object

`length` bounds prompt and answer together; items fill what their task can use. The splits cannot meet: the checksum of
a prompt says which one it belongs to, and a draw that falls into the other is drawn again. Not here: marks
(`scoring`) and batches (`packing`).
"""

import binascii
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kgen.model.nano.draw import Draw
from kgen.model.nano.vocabulary import (
    ANSWER,
    BOS,
    EOS,
    KEYS,
    NAMES,
    QUERY,
    SYMBOLS,
    TAGS,
    TYPES,
    VALUES,
    WORDS,
    decode,
    encode,
)

SPLITS = ("train", "heldout")
HELDOUT_SHARE = 8  # one prompt in so many is held out
MODULUS = 10
UNITS = (3, 7, 9)  # factors that lose nothing modulo 10
BRACKETS = ("()", "[]", "{}", "<>")
LONGEST = 65536  # tokens of an item, of any task
MOST_PAIRS, QUERIES = 64, 4
MOST_COPIED = 256
MOST_STEPS = 24
MOST_BRACKETS, DEEPEST = 96, 12
MOST_FIELDS = 8

Tokens = tuple[int, ...]
Pair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class Item:
    """One question. `answer` ends with EOS; `schema` is a JSON schema as text, empty for other tasks."""

    task: str
    split: str
    seed: int
    index: int
    length: int
    prompt: Tokens
    answer: Tokens
    schema: str = ""


@dataclass(frozen=True)
class Task:
    """`make` draws (inside of the prompt, answer without EOS) for a number of tokens that both may take together.

    Items have at least `shortest` tokens to fill; beyond `useful` a longer limit changes nothing.
    """

    make: Callable[[Draw, int], Pair]
    shortest: int
    useful: int
    usual: int  # the length of items when none is named


def _recall(draw: Draw, room: int) -> Pair:
    body = room - 1 - QUERIES - 2 * QUERIES
    pairs = min(MOST_PAIRS, body // 4)
    keys, values = draw.distinct(KEYS, pairs), draw.many(VALUES, pairs)
    units = body - pairs  # a pair is one unit of two tokens
    filler = draw.many(_LETTERS, units - pairs)
    inside: list[int] = []
    placed = 0
    rnd = draw.random
    for at in range(units):  # every set of places is equally likely
        if rnd() * (units - at) < pairs - placed:
            inside += (keys[placed], values[placed])
            placed += 1
        else:
            inside.append(filler[at - placed])
    asked = draw.distinct(range(pairs), QUERIES)
    answer = [token for i in asked for token in (keys[i], values[i])]
    return [*inside, QUERY, *(keys[i] for i in asked)], answer


def _copy(draw: Draw, room: int) -> Pair:
    symbols = draw.many(SYMBOLS, min(room // 2, MOST_COPIED))
    return symbols, symbols


def _modular(draw: Draw, room: int) -> Pair:
    steps = min((room + 2) // 8, MOST_STEPS)
    names = draw.distinct(SYMBOLS, steps)
    value = draw.below(MODULUS)
    inside = [names[0], _EQUALS, _DIGITS[value], _END]
    answer = [names[0], _DIGITS[value]]
    for before, name in pairwise(names):
        sign = draw.one("+-*")
        number = draw.one(UNITS) if sign == "*" else draw.between(1, MODULUS - 1)
        value = {"+": value + number, "-": value - number, "*": value * number}[sign] % MODULUS
        inside += (name, _EQUALS, before, _SIGNS[sign], _DIGITS[number], _END)
        answer += (name, _DIGITS[value])
    return inside, answer


def _brackets(draw: Draw, room: int) -> Pair:
    count = min((room * 3) // 4, MOST_BRACKETS, room - 2)
    inside, depth = [], [draw.one(_PAIRS)]
    inside.append(depth[0][0])
    most = min(DEEPEST, room - count)
    for _ in range(count - 1):
        if len(depth) == 1 or (len(depth) < most and draw.random() < 0.5):
            depth.append(draw.one(_PAIRS))
            inside.append(depth[-1][0])
        else:
            inside.append(depth.pop()[1])
    return inside, [closing for _, closing in reversed(depth)]


def _value(draw: Draw, kind: str) -> Any:
    if kind == "integer":
        return draw.below(1000) * (-1 if draw.random() < 0.1 else 1)
    if kind == "boolean":
        return draw.random() < 0.5
    if kind == "array":
        return draw.many(range(100), draw.between(1, 4))
    return " ".join(draw.many(WORDS, draw.between(1, 2)))


def _json(draw: Draw, room: int) -> Pair:
    fields = min(MOST_FIELDS, max(1, room // 24)) + 1
    while True:  # a draw that is too long is drawn again with one field less; one field takes at most 28 tokens
        fields -= 1
        names = draw.distinct(NAMES, fields)
        kinds = draw.many(TYPES, fields)
        content = {name: _value(draw, kind) for name, kind in zip(names, kinds, strict=True)}
        schema = ",".join(f"{name}:{kind}" for name, kind in zip(names, kinds, strict=True))
        facts = ";".join(f"{name}={_plain(content[name])}" for name in draw.distinct(names, fields))
        inside, answer = encode(f"{schema}\n{facts}\n"), encode(json.dumps(content, separators=(",", ":")))
        if len(inside) + len(answer) <= room or fields == 1:
            return inside, answer


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _token(text: str) -> int:
    (token,) = encode(text)
    return token


_LETTERS = tuple(map(_token, "abcdefghijklmnopqrstuvwxyz"))
_DIGITS = tuple(map(_token, "0123456789"))
_SIGNS = {sign: _token(sign) for sign in "+-*"}
_EQUALS, _END = _token("="), _token(";")
_PAIRS = tuple((_token(pair[0]), _token(pair[1])) for pair in BRACKETS)

TASKS: Mapping[str, Task] = {
    "recall": Task(_recall, 36, LONGEST, 512),
    "copy": Task(_copy, 8, 2 * MOST_COPIED + 4, 128),
    "modular": Task(_modular, 18, 8 * MOST_STEPS + 2, 128),
    "brackets": Task(_brackets, 12, MOST_BRACKETS + DEEPEST + 4, 64),
    "json": Task(_json, 48, 256, 192),
}
LONG_CONTEXT = 16384  # length of the long recall items


def split_of(prompt: Sequence[int]) -> str:
    """The split that a prompt belongs to."""
    checksum = binascii.crc32(struct.pack(f"<{len(prompt)}H", *prompt))
    return SPLITS[checksum % HELDOUT_SHARE == 0]


def item(task: str, split: str, index: int, *, seed: int = 0, length: int | None = None) -> Item:
    """One item; `length` (tokens, prompt and answer) defaults to the task's usual one. ValueError on anything odd."""
    if task not in TASKS:
        raise ValueError(f"no task {task!r}: choose one of {', '.join(TASKS)}")
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}: choose one of {', '.join(SPLITS)}")
    entry = TASKS[task]
    size = entry.usual if length is None else length
    if not entry.shortest <= size <= LONGEST:
        raise ValueError(f"length {size} is out of range for {task}: use {entry.shortest}..{LONGEST}")
    if index < 0:
        raise ValueError(f"item index {index} is negative: count from 0")
    draw = Draw(f"{task}/{split}/{seed}/{index}/{size}")
    while True:
        inside, answer = entry.make(draw, size - 4)  # BOS, tag, ANSWER, EOS
        prompt = (BOS, TAGS[task], *inside, ANSWER)
        if split_of(prompt) == split:
            break
    schema = schema_of(prompt) if task == "json" else ""
    return Item(task, split, seed, index, size, prompt, (*answer, EOS), schema)


def items(task: str, split: str, count: int, *, seed: int = 0, length: int | None = None) -> list[Item]:
    """Items 0..count-1 of one stream."""
    if count < 0:
        raise ValueError(f"cannot draw {count} items: name a number from 0")
    return [item(task, split, i, seed=seed, length=length) for i in range(count)]


def schema_of(prompt: Sequence[int]) -> str:
    """The JSON schema that the prompt of a json item describes."""
    described = decode(prompt[2:-1]).split("\n")[0]
    fields = dict(field.split(":") for field in described.split(","))
    properties: dict[str, Any] = {
        name: {"type": "array", "items": {"type": "integer"}} if kind == "array" else {"type": kind}
        for name, kind in fields.items()
    }
    schema = {"type": "object", "properties": properties, "required": list(fields), "additionalProperties": False}
    return json.dumps(schema, separators=(",", ":"))
