"""A point of a family as values of a template, and how it becomes a candidate's source."""

import functools
import importlib.resources
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

Row = Mapping[str, Any]  # of a tuning table
FIXED = ("op", "rolled", "outputs", "inputs")  # values of a variant that belong to its op, not to the space


@dataclass(frozen=True)
class Variant:
    """A template and the values it is rendered with (JSON data, recorded in the candidate's origin)."""

    template: str
    values: Mapping[str, Any]


@functools.cache
def _template(name: str) -> jinja2.Template:
    """Compiled once a process: rendering takes a hundredth of the time that compiling does."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


def render(variant: Variant) -> str:
    """The candidate's source. A tuning table is written one row a line."""
    values = dict(variant.values)
    if "tuning" in values:
        table = values["tuning"]
        values["columns"] = " ".join(table[0][2])
        values["tuning"] = "\n".join(f"    {_line(entry)}," for entry in table)
    return _template(variant.template).render(values)


def _line(entry: Sequence[Any]) -> str:
    tokens, megabytes, row = entry
    return repr((tokens, megabytes, *row.values())).replace("'", '"')
