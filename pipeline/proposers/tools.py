"""Tools that a model may use while it writes: read-only, bounded, and without authority.

A Tool is a name, a JSON schema and a function to text. A Toolbox checks what a model wants called (its arguments are
foreign: they must be JSON, of the schema's keys and types, within limits), runs it, and gives the result back as quoted
data; whatever is wrong is one line that goes back to the model. Not covered: which tools there are (`kgen.loop.tools`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from kgen.proposers.quoting import capped, quoted, strip_terminal
from kgen.proposers.wire import ToolCall, ToolSpec
from kgen.records import RecordError
from kgen.records.codec import one_line, strict_json

MAX_ROUNDS = 4  # of calls before an answer: then the model is asked without tools
MAX_RESULT = 6_000  # characters of one result
TYPES: Mapping[str, type] = {"string": str, "integer": int, "boolean": bool}


class ToolError(ValueError):
    """Why a tool gives no result: one line for the model."""


class Tool(Protocol):
    """Raises ToolError for arguments that it cannot use; whatever else it raises is the caller's to deal with."""

    @property
    def spec(self) -> ToolSpec: ...

    def call(self, arguments: Mapping[str, Any]) -> str:
        """`arguments` have the schema's keys and types."""
        ...


@dataclass(frozen=True)
class ToolUse:
    """One call and what it gave, as it is kept and sent back. `code`: ok, or the class of what was wrong."""

    SCHEMA: ClassVar[str] = "kgen.tool-use/1"
    id: str
    name: str
    arguments: str
    result: str
    code: str = "ok"
    seconds: float = 0.0


class Toolbox:
    """The tools of one question."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.spec.name: tool for tool in tools}

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """In a fixed order: they are part of the prefix that servers cache."""
        return tuple(self._tools[name].spec for name in sorted(self._tools))

    def use(self, wanted: ToolCall) -> ToolUse:
        """Never raises for what the model wrote."""
        started = time.monotonic()
        try:
            tool = self._tools.get(wanted.name)
            if tool is None:
                raise ToolError(f"there is no tool {wanted.name!r:.80}; there are: {', '.join(sorted(self._tools))}")
            text, code = tool.call(checked(tool.spec, wanted.arguments)), "ok"
        except ToolError as error:
            text, code = f"error: {one_line(str(error))}", "refused"
        result = quoted(capped(strip_terminal(text), MAX_RESULT), f"result of {wanted.name}", "message")
        return ToolUse(wanted.id, wanted.name, wanted.arguments, result, code, round(time.monotonic() - started, 3))


def checked(spec: ToolSpec, arguments: str) -> dict[str, Any]:
    """The arguments of a call as the schema wants them. Raises ToolError."""
    try:
        value = strict_json((arguments or "{}").encode("utf-8", "replace"))
    except RecordError as error:
        raise ToolError(f"the arguments are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ToolError(f"the arguments must be an object, not {type(value).__name__}")
    properties: Mapping[str, Any] = spec.parameters.get("properties", {})
    if unknown := sorted(set(value) - set(properties)):
        raise ToolError(f"unknown argument {unknown[0]!r:.80}; known: {', '.join(properties)}")
    for name, rule in properties.items():
        if name not in value:
            if name in spec.parameters.get("required", ()):
                raise ToolError(f"argument {name!r} is missing")
            continue
        wanted, found = TYPES[rule["type"]], value[name]
        if not isinstance(found, wanted) or (wanted is int and isinstance(found, bool)):
            raise ToolError(f"argument {name!r} must be of type {rule['type']}, not {type(found).__name__}")
        if isinstance(found, str) and len(found) > rule.get("maxLength", 1_000):
            raise ToolError(f"argument {name!r} is longer than {rule.get('maxLength', 1_000)} characters")
    return value


def turns(text: str, uses: Sequence[ToolUse]) -> list[dict[str, Any]]:
    """The messages that a reply with calls and their results add to a question."""
    functions = [{"name": u.name, "arguments": valid_arguments(u.arguments)} for u in uses]
    calls = [{"id": u.id, "type": "function", "function": f} for u, f in zip(uses, functions, strict=True)]
    results = [{"role": "tool", "tool_call_id": u.id, "content": u.result} for u in uses]
    return [{"role": "assistant", "content": text, "tool_calls": calls}, *results]


def parameters(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object whose properties are all required."""
    given = {name: dict(rule) for name, rule in properties.items()}
    return {"type": "object", "properties": given, "required": list(given), "additionalProperties": False}


def valid_arguments(text: str) -> str:
    """Arguments as they may be sent back: some servers parse them, and refuse a conversation with broken ones."""
    try:
        return text if isinstance(json.loads(text or "{}"), dict) else "{}"
    except (ValueError, RecursionError):
        return "{}"
