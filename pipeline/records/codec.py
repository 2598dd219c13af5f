"""Records to JSON and back: one schema name per record, strict on reading.

A reader of foreign JSON gets either a whole, typed record or one `RecordError` line that names the field.
Not covered: migration between schema versions (an unknown version is refused with an upgrade hint).
"""

import dataclasses
import enum
import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

R = TypeVar("R")

MAX_DEPTH = 64  # of lists and objects: records nest to ten, and Python's own recursion ends below a thousand
MAX_MESSAGE = 500  # characters

EXACT = 1 << 53  # integers below are numbers of binary64
PLAIN = frozenset((str, int, bool, type(None)))  # what JSON holds as it is

OPTIONAL: Mapping[str, bool] = {"optional": True}  # metadata of a field that is left out of JSON at its default


class RecordError(ValueError):
    """A record that cannot be read: one line that says which field and what was expected."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def one_line(text: str, most: int = MAX_MESSAGE) -> str:
    """Foreign words as one printable line, cut behind `most` characters."""
    line = "".join(c if c.isprintable() else " " for c in text[: most + 1])
    return line if len(line) <= most else f"{line[:most]}..."


def strict_json(data: bytes) -> Any:
    """JSON in UTF-8 whose every value can be written again. Raises RecordError, also for what only looks like it:
    NaN, halves of characters, and lists within lists without end."""
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_no_number)
    except UnicodeDecodeError:
        raise RecordError("not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{type(error).__name__}: {error}") from None
    level, depth = [value], 0
    while level := _within(level):
        depth += 1
        if depth > MAX_DEPTH:
            raise RecordError(f"nested deeper than {MAX_DEPTH}")
    if b"\\u" in data:
        try:
            canonical_json(value)
        except ValueError:  # of a character half, which JSON can spell and no file can hold
            raise RecordError("text that is not Unicode") from None
    return value


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def _within(values: list[Any]) -> list[Any]:
    """What lists and objects among these hold, as the parser makes them."""
    found: list[Any] = []
    for value in values:
        if value.__class__ is dict:
            found += value.values()
        elif value.__class__ is list:
            found += value
    return found


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_text(text: str) -> str:
    return sha256_bytes(text.encode("utf-8"))


def canonical_json(value: Any) -> bytes:
    """The one byte form that hashes and signatures are taken over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def schema_of(cls: type) -> str:
    return cast(str, getattr(cls, "SCHEMA", ""))


def to_json(record: Any) -> Any:
    """A JSON value for a record, a tuple, a mapping or a plain value; records carry their schema name."""
    kind = type(record)
    if kind in PLAIN:
        return record
    if kind is float:
        return record if math.isfinite(record) else str(record)  # JSON has no nan/inf; readers get the word
    if kind is list or kind is tuple:
        return [to_json(value) for value in record]
    if (members := _members(cast(Any, kind))) is not None:
        schema = schema_of(kind)
        body: dict[str, Any] = {"schema": schema} if schema else {}
        for name, optional, default in members:
            value = getattr(record, name)
            if not (optional and value == default):
                body[name] = to_json(value)
        return body
    if isinstance(record, enum.Enum):
        return record.value
    if isinstance(record, Mapping):
        return {str(key): to_json(value) for key, value in record.items()}
    if isinstance(record, tuple | list):
        return [to_json(value) for value in record]
    if isinstance(record, float) and not math.isfinite(record):
        return str(record)
    return record


@functools.cache
def _members(kind: type) -> tuple[tuple[str, bool, Any], ...] | None:
    """Of a class of records the fields, whether one is left out at its default, and that; None for any other class."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple((f.name, f.metadata == OPTIONAL, f.default) for f in dataclasses.fields(kind))


def from_json(cls: type[R], value: Any, where: str = "") -> R:
    """Read a record of type `cls`. Raises RecordError naming the first field that does not fit."""
    try:
        return cast(R, _read(cls, value))
    except _Unusual:
        return _checked(cls, value, where or cls.__name__)


def _checked(cls: type[R], value: Any, where: str) -> R:
    """The same, slowly, knowing at each value where it stands."""
    if not isinstance(value, dict):
        raise RecordError(f"{where}: expected a JSON object, got {type(value).__name__}")
    body = dict(value)
    _check_schema(cls, body.pop("schema", None), where)
    hints = _hints(cast(Any, cls))
    out: dict[str, Any] = {}
    for field in dataclasses.fields(cast(Any, cls)):
        if field.name in body:
            out[field.name] = _convert(hints[field.name], body.pop(field.name), f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise RecordError(f"{where}: field {field.name!r} is missing")
    if body:
        raise RecordError(f"{where}: unknown field {sorted(body)[0]!r:.80}")
    return cls(**out)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    """typing.get_type_hints, which reads the annotations anew every time."""
    return typing.get_type_hints(cls)


def _check_schema(cls: type, found: Any, where: str) -> None:
    expected = schema_of(cls)
    if found == expected or (not expected and found is None):
        return
    if isinstance(found, str) and expected and found.rsplit("/", 1)[0] == expected.rsplit("/", 1)[0]:
        raise RecordError(f"{where}: written by another kgen ({found:.80}, this one reads {expected}); upgrade kgen")
    raise RecordError(f"{where}: expected schema {expected!r}, got {found!r:.80}")


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in typing.get_args(hint):
            return None
        inner = [a for a in typing.get_args(hint) if a is not type(None)]
        return _convert(inner[0], value, where)
    if origin is tuple:
        return _convert_tuple(typing.get_args(hint), value, where)
    if origin in (dict, Mapping) or hint in (dict, Mapping) or origin is not None:
        return _convert_mapping(typing.get_args(hint), value, where)
    if dataclasses.is_dataclass(hint):
        return _checked(cast(type, hint), value, where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(value)
        except ValueError:
            raise RecordError(f"{where}: {value!r:.80} is not one of {[e.value for e in hint]}") from None
    return _convert_plain(hint, value, where)


def _convert_tuple(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise RecordError(f"{where}: expected a list, got {type(value).__name__}")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_convert(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if len(args) != len(value):
        raise RecordError(f"{where}: expected {len(args)} items, got {len(value)}")
    return tuple(_convert(a, item, f"{where}[{i}]") for i, (a, item) in enumerate(zip(args, value, strict=True)))


def _convert_mapping(args: tuple[Any, ...], value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RecordError(f"{where}: expected an object, got {type(value).__name__}")
    inner = args[1] if len(args) == 2 else Any
    return {str(key): _convert(inner, item, f"{where}.{key}") for key, item in value.items()}


def _convert_plain(hint: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise RecordError(f"{where}: a number that is too large") from None
    if hint is float and value in ("nan", "inf", "-inf"):
        return float(value)
    if hint is int and isinstance(value, bool):
        raise RecordError(f"{where}: expected int, got bool")
    if not isinstance(value, hint):
        raise RecordError(f"{where}: expected {hint.__name__}, got {type(value).__name__}")
    return value


class _Unusual(Exception):
    """Not read by the short way, whether it fits or not."""


Reader = Callable[[Any], Any]


def _read(cls: type, value: Any) -> Any:
    """What `_checked` gives, in a fifth of its time, for what is exactly as `to_json` writes it. Raises _Unusual."""
    if value.__class__ is not dict:
        raise _Unusual
    schema, fields = _readers(cls)
    if value.get("schema", "") != schema:
        raise _Unusual
    out: dict[str, Any] = {}
    for name, read, required in fields:
        if name in value:
            out[name] = value[name] if read is None else read(value[name])
        elif required:
            raise _Unusual
    if len(out) + ("schema" in value) != len(value):
        raise _Unusual
    return cls(**out)


@functools.cache
def _readers(cls: Any) -> tuple[str, tuple[tuple[str, Reader | None, bool], ...]]:
    """Of a class of records its schema and for each field how it is read (None: as it is) and whether it must be there.

    Made when a record is read, not when the class is: an annotation may name a class that comes later.
    """
    hints, missing = _hints(cls), dataclasses.MISSING
    fields = dataclasses.fields(cls)
    if any(f.name == "schema" for f in fields):
        return schema_of(cls), (("schema", _unusual, True),)
    needed = {f.name: f.default is missing and f.default_factory is missing for f in fields}
    return schema_of(cls), tuple((name, _reader(hints[name]), must) for name, must in needed.items())


def _reader(hint: Any) -> Reader | None:
    """How a value of this annotation is read by the short way; None: as it is."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return None
    if origin in (types.UnionType, typing.Union):
        inner = _reader(next(a for a in args if a is not type(None)))
        return _optional(inner) if type(None) in args else inner
    if origin is tuple:
        return (
            _items(_reader(args[0])) if len(args) == 2 and args[1] is Ellipsis else _fixed([_reader(a) for a in args])
        )
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_reader(args[1]) if len(args) == 2 else None)
    if dataclasses.is_dataclass(hint):
        return functools.partial(_read, cast(type, hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _one_of({member.value: member for member in hint})
    return _number if hint is float else _exactly(hint) if hint in (str, int, bool) else _unusual


def _unusual(value: Any) -> Any:
    raise _Unusual


def _exactly(kind: type) -> Reader:
    def read(value: Any) -> Any:
        if value.__class__ is not kind:
            raise _Unusual
        return value

    return read


def _number(value: Any) -> Any:
    if value.__class__ is float:
        return value
    if value.__class__ is not int or abs(value) >= EXACT:
        raise _Unusual
    return float(value)


def _one_of(members: Mapping[Any, enum.Enum]) -> Reader:
    def read(value: Any) -> Any:
        if value.__class__ is not str or value not in members:
            raise _Unusual
        return members[value]

    return read


def _optional(inner: Reader | None) -> Reader | None:
    def read(value: Any) -> Any:
        return None if value is None else inner(value)  # type: ignore[misc]  # made for an inner one only

    return None if inner is None else read


def _items(inner: Reader | None) -> Reader:
    def read(value: Any) -> Any:
        if value.__class__ is not list:
            raise _Unusual
        return tuple(value) if inner is None else tuple([inner(item) for item in value])

    return read


def _fixed(inner: list[Reader | None]) -> Reader:
    def read(value: Any) -> Any:
        if value.__class__ is not list or len(value) != len(inner):
            raise _Unusual
        return tuple([item if one is None else one(item) for one, item in zip(inner, value, strict=True)])

    return read


def _mapping(inner: Reader | None) -> Reader:
    def read(value: Any) -> Any:
        if value.__class__ is not dict:
            raise _Unusual
        return {str(key): item if inner is None else inner(item) for key, item in value.items()}

    return read
