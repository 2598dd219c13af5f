"""Reading a record by the short way gives what the careful one gives, value or error; and what is written is the same.

Over every class of records that kgen.records and the run folder have. Not covered: the fields themselves and their
schemas (test_fuzz_targets), files (test_store_documents).
"""

import dataclasses
import enum
import random
import types
import typing
from collections.abc import Mapping
from typing import Any

import pytest

import kgen.records
from kgen.gates.kit_results import EvidenceSet
from kgen.loop.plans import Plan
from kgen.loop.rounds import Failed, Ranked, Round
from kgen.loop.spending import Uses
from kgen.records import RecordError, Status, from_json, to_json
from kgen.records import codec as reading
from kgen.store.runs import RunInfo

RECORDS = sorted(
    {
        *(c for c in vars(kgen.records).values() if isinstance(c, type) and dataclasses.is_dataclass(c)),
        *(EvidenceSet, Plan, Round, Ranked, Failed, Uses, RunInfo),
    },
    key=lambda c: c.__name__,
)


@dataclasses.dataclass(frozen=True)
class Odd:
    """Annotations that no record of kgen has yet."""

    maybe: float | None
    pair: tuple[int, str]
    nested: Mapping[str, tuple["Odd", ...]]
    colour: Status = Status.PASS
    plain: dict = dataclasses.field(default_factory=dict)  # type: ignore[type-arg]
    any_one: int | str = 0


@dataclasses.dataclass(frozen=True)
class Named:
    """A field of the name that the schema goes by."""

    schema: str


def anything(rng: random.Random, depth: int = 3) -> Any:
    """A value of JSON."""
    kind = rng.randrange(9 if depth else 7)
    if kind == 7:
        return [anything(rng, depth - 1) for _ in range(rng.randrange(3))]
    if kind == 8:
        return {text(rng): anything(rng, depth - 1) for _ in range(rng.randrange(3))}
    return (None, True, False, rng.randrange(-3, 300), rng.uniform(-9, 9), text(rng), "")[kind]


def text(rng: random.Random) -> str:
    return "".join(rng.choice("aZ0 /\u00e4\u2028") for _ in range(rng.randrange(6)))


def of(hint: Any, rng: random.Random) -> Any:
    """A value that an annotation allows, in JSON; of numbers sometimes one that no float holds."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return anything(rng)
    if origin in (types.UnionType, typing.Union):
        chosen = rng.choice(args)
        return None if chosen is type(None) else of(chosen, rng)
    if origin is tuple:
        alike = len(args) == 2 and args[1] is Ellipsis
        return [of(args[0], rng) for _ in range(rng.randrange(3))] if alike else [of(a, rng) for a in args]
    if origin is not None or hint in (dict, Mapping):
        return {text(rng): of(args[1], rng) if args else anything(rng) for _ in range(rng.randrange(3))}
    if dataclasses.is_dataclass(hint):
        return record(typing.cast(type, hint), rng)
    if issubclass(hint, enum.Enum):
        return rng.choice([member.value for member in hint])
    if hint is float:
        return rng.choice([rng.uniform(-9, 9), -0.0, 1e300, 3, -(2**53), 2**53 + 1, 2**60])
    return {str: text(rng), int: rng.choice([0, 7, -(2**70)]), bool: rng.random() < 0.5}[hint]


def record(cls: type, rng: random.Random) -> dict[str, Any]:
    hints, body = typing.get_type_hints(cls), dict[str, Any]()
    if schema := reading.schema_of(cls):
        body["schema"] = schema
    for field in dataclasses.fields(cls):
        must = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if must or rng.random() < 0.7:
            body[field.name] = of(hints[field.name], rng) if (cls, field.name) != (Odd, "nested") else {}
    return body


def spoilt(value: Any, rng: random.Random) -> Any:
    """The value with one place in it that is something else, missing or new."""
    inner = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not inner or rng.random() < 0.2:
        return rng.choice([anything(rng), float("nan"), "inf", "nan", 10**400, (1, "a"), Status.PASS, {3: 3}])
    copy, at = value.copy(), rng.choice(inner)
    if rng.random() < 0.2:
        del copy[at]
    else:
        copy[at] = spoilt(value[at], rng)
    if isinstance(copy, dict) and rng.random() < 0.2:
        copy[rng.choice(["", "schema", "x"])] = None
    return copy


def said(read: Any, *what: Any) -> Any:
    """The record, with the types of all that is in it, or the words of its refusal."""
    try:
        return repr(read(*what))
    except RecordError as error:
        return str(error)


@pytest.mark.parametrize("cls", [*RECORDS, Odd, Named], ids=lambda c: c.__name__)
def test_both_ways_of_reading_a_record_give_the_same_value_or_the_same_words(cls: type) -> None:
    rng, refused = random.Random(cls.__name__), 0
    for number in range(90):
        value = record(cls, rng)
        value = spoilt(value, rng) if number % 3 else value
        found = said(from_json, cls, value)
        assert found == said(reading._checked, cls, value, cls.__name__)
        refused += found.startswith((f"{cls.__name__}:", f"{cls.__name__}."))
    assert 12 < refused < (91 if cls is Named else 72)  # both are seen; a field cannot be called as the schema is


@pytest.mark.parametrize("cls", RECORDS, ids=lambda c: c.__name__)
def test_what_kgen_writes_itself_is_read_by_the_short_way(cls: type) -> None:
    """Else the careful one is always taken, and nobody notices but the clock."""
    rng = random.Random(cls.__name__)
    for _ in range(20):
        made = from_json(cls, record(cls, rng))
        assert repr(reading._read(cls, to_json(made))) == repr(made)


def written(value: Any) -> Any:
    """JSON as `to_json` is said to make it, by the order of its words."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kept = [
            f for f in dataclasses.fields(value) if f.metadata != reading.OPTIONAL or f.default != vars(value)[f.name]
        ]
        schema = {"schema": value.SCHEMA} if hasattr(value, "SCHEMA") else {}
        return {**schema, **{f.name: written(vars(value)[f.name]) for f in kept}}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): written(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(written, value))
    return str(value) if value in (float("inf"), float("-inf")) or value != value else value


@pytest.mark.parametrize("cls", RECORDS, ids=lambda c: c.__name__)
def test_a_record_becomes_json_field_by_field(cls: type) -> None:
    rng = random.Random(cls.__name__)
    for _ in range(20):
        made = from_json(cls, record(cls, rng))
        assert repr(to_json(made)) == repr(written(made))
        mixed = {1: [made, float("nan")], "k": (Status.FAIL, -0.0, float("-inf"))}
        assert repr(to_json(mixed)) == repr(written(mixed))


@pytest.mark.parametrize("deep", [63, 64, 65, 66])
def test_json_nests_so_deep_and_no_deeper(deep: int) -> None:
    for text in (f"{'[' * deep}1{']' * deep}", '{"a":' * deep + "1" + "}" * deep):
        if deep > reading.MAX_DEPTH:
            with pytest.raises(RecordError, match="nested deeper than 64"):
                kgen.records.strict_json(text.encode())
        else:
            kgen.records.strict_json(text.encode())
