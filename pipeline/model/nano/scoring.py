"""Marks: whether generated tokens answer an item. Pass or fail per item; no partial credit.

Every task but json wants the exact answer, ended by EOS. A json answer is read as text: it must parse, name each
property of the schema once and no other, have the schema's types, and hold the facts of the prompt; the order of keys
and white space are free.
"""

import json
from collections.abc import Sequence
from typing import Any

from kgen.model.nano.tasks import Item
from kgen.model.nano.vocabulary import decode, until_end

_TYPES: dict[str, type] = {"integer": int, "string": str, "boolean": bool, "array": list}


def mark(item: Item, generated: Sequence[int]) -> bool:
    """True if `generated` (what follows the prompt; anything after the first EOS is ignored) answers the item."""
    said = until_end(tuple(generated))
    if said is None:
        return False
    if item.task == "json":
        return _json_holds(item, said)
    return said == item.answer[:-1]


def _json_holds(item: Item, said: Sequence[int]) -> bool:
    try:
        value = json.loads(decode(said), object_pairs_hook=_once)
    except ValueError:  # a control token, broken UTF-8, broken JSON or a repeated key
        return False
    facts = json.loads(decode(item.answer[:-1]))
    return fits(json.loads(item.schema), value) and bool(value == facts)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice")
    return made


def fits(schema: dict[str, Any], value: object) -> bool:
    """Whether a JSON value has the schema's keys and types (the schemas of json items; a boolean is no integer)."""
    if not isinstance(value, dict) or value.keys() != schema["properties"].keys():
        return False
    return all(_typed(kind, value[name]) for name, kind in schema["properties"].items())


def _typed(kind: dict[str, Any], value: object) -> bool:
    if type(value) is not _TYPES[kind["type"]]:
        return False
    return not isinstance(value, list) or all(_typed(kind["items"], entry) for entry in value)
