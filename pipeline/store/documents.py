"""Records in files: strict on reading, one line on damage.

A text is made a record once: the rounds of a run read the same files again and again. What is kept goes by the text
itself, never by a file's name or time, so that a file that was changed is always seen. Records are shared between all
who read them: nobody may change what is within one.
"""

import functools
import json
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, TypeVar

from kgen.records import RecordError, from_json, strict_json, to_json
from kgen.records.codec import OPTIONAL, schema_of
from kgen.store.errors import IntegrityError, storing

R = TypeVar("R")
WORDS = {None: "null", True: "true", False: "false"}
LEAVES: Mapping[type, Callable[[Any], str]] = {
    str: encode_basestring,
    int: repr,
    bool: WORDS.__getitem__,
    type(None): WORDS.__getitem__,
}  # how values without parts are written
KEPT_BYTES = 8 << 20  # of texts whose records are kept, the latest first; a record takes some five times its text


class Kept:
    """Values by a name and the text that they were made of, `most` bytes of text at most.

    Thread-safe: who asks for what another thread is making waits for it.
    """

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._values: dict[tuple[Any, bytes], Any] = {}  # those used last are last
        self._making: dict[tuple[Any, bytes], int] = {}  # -> the thread that does
        self._change = threading.Condition()

    def made(self, name: Any, data: bytes, make: Callable[[bytes], R]) -> R:
        """`make(data)`, or what it gave before under this name. What it raises is not kept."""
        key, me = (name, data), threading.get_ident()
        with self._change:
            while key not in self._values and self._making.get(key, me) != me:
                self._change.wait()
            if key in self._values:
                value: R = self._values.pop(key)
                self._values[key] = value
                return value
            self._making[key] = me
        try:
            value = make(data)
        except BaseException:
            with self._change:
                self._done(key)
            raise
        with self._change:
            self._done(key)
            self._keep(key, value)
        return value

    def _done(self, key: tuple[Any, bytes]) -> None:
        self._making.pop(key, None)
        self._change.notify_all()

    def _keep(self, key: tuple[Any, bytes], value: Any) -> None:
        if key not in self._values:
            self._values[key] = value
            self._bytes += len(key[1])
        while self._bytes > self._most:
            oldest = next(iter(self._values))
            del self._values[oldest]
            self._bytes -= len(oldest[1])


KEPT = Kept(KEPT_BYTES)


def json_bytes(value: Any) -> bytes:
    """The readable, deterministic form in which JSON is stored: sorted keys, one space of indent, final newline.

    `value`: whatever to_json takes.
    """
    return _written(value, "\n").encode("utf-8") + b"\n"


def _written(value: Any, line: str) -> str:
    """to_json and json.dumps with sorted keys and an indent of 1 in one pass, in a small part of their time.

    `line`: the line break with the indent of what the value stands in.
    """
    kind: Any = type(value)
    if (leaf := LEAVES.get(kind)) is not None:
        return leaf(value)
    if kind is float and math.isfinite(value):
        return repr(value)
    deeper = f"{line} "
    if (kind is list or kind is tuple) and value:
        return f"[{deeper}{f',{deeper}'.join([_written(item, deeper) for item in value])}{line}]"
    if kind is dict and value and all(type(name) is str for name in value):
        items = [
            f"{encode_basestring(name)}: {leaf(item) if (leaf := LEAVES.get(type(item))) else _written(item, deeper)}"
            for name, item in sorted(value.items())
        ]
    elif (members := _members(kind)) is not None:
        items = [
            m.head + _written(getattr(value, m.name), deeper) if m.name else m.head
            for m in members
            if not (m.optional and getattr(value, m.name) == m.default)
        ]
    else:
        plain = to_json(value)
        if plain and plain is not value:
            return _written(plain, line)
        return json.dumps(plain, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return f"{{{deeper}{f',{deeper}'.join(items)}{line}}}" if items else "{}"


@dataclass(frozen=True)
class _Member:
    """A field of a record as its JSON has it; without a name: its schema, which `head` holds whole. An optional one is
    left out at its default."""

    name: str
    head: str
    optional: bool = False
    default: Any = None


@functools.cache
def _members(kind: type) -> tuple[_Member, ...] | None:
    """Of a record, in the order of its JSON; None for what is no record."""
    if not is_dataclass(kind):
        return None
    heads = {f.name: f"{encode_basestring(f.name)}: " for f in fields(kind)}
    found = {f.name: _Member(f.name, heads[f.name], f.metadata == OPTIONAL, f.default) for f in fields(kind)}
    if schema := schema_of(kind):
        found.setdefault("schema", _Member("", f'"schema": {encode_basestring(schema)}'))
    return tuple(found[name] for name in sorted(found))


def read_bytes(path: Path) -> bytes:
    """Raises IntegrityError when there is no such file, StoreError when it cannot be read."""
    with storing(path, "read"):
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123  half the time of Path.read_bytes
                return file.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise IntegrityError(f"{path} is missing") from None


def parse_json(data: bytes, where: Path | str) -> Any:
    """Raises IntegrityError for anything that is not JSON in UTF-8."""
    try:
        return strict_json(data)
    except RecordError as error:
        raise IntegrityError(f"{where} is damaged: {error}") from None


def parse_record(cls: type[R], data: bytes, where: Path | str) -> R:
    """Raises IntegrityError that names the file and the field; for a newer schema it says to upgrade."""

    def make(text: bytes) -> R:
        value = parse_json(text, where)
        try:
            return from_json(cls, value)
        except RecordError as error:
            raise IntegrityError(f"{where}: {error}") from None

    return KEPT.made(cls, data, make)


def read_record(cls: type[R], path: Path) -> R:
    """Raises IntegrityError or StoreError."""
    return parse_record(cls, read_bytes(path), path)
