"""What passes between kgen and a model, whatever the protocol: messages, replies, calls of tools, and their limits.

Messages have the form of chat.completions; `responses` turns them into its own. Nothing here talks to anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]  # role, content; of an assistant also tool_calls; of a tool also tool_call_id

MAX_REPLY_BYTES = 8_000_000  # of a whole response body: an answer of 2 MB with every character escaped
MAX_COUNT = 10**9  # token counts above this are nonsense
MAX_CALLS = 8  # of tools in one reply; more are dropped
MAX_NAME = 64  # characters of a call's name and id
MAX_ARGUMENTS = 200_000  # characters of a call's arguments: a kernel and room
OVERSIZE = "oversize"  # our own finish reason
CALLS = "tool_calls"  # finish reason of a reply that wants tools called


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model sees it. `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class ToolCall:
    """What the model wants called. `arguments` is JSON text, unchecked."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """A complete reply. `finish` is the server's reason; only "stop" means that the text is whole."""

    text: str
    finish: str
    prompt_tokens: int | None = None  # None: the server did not say
    completion_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt's
    reasoning_tokens: int | None = None  # of the completion's
    calls: tuple[ToolCall, ...] = ()


def characters(messages: list[Message]) -> int:
    """Of all that a question says."""
    called = sum(len(c["function"]["arguments"]) for m in messages for c in m.get("tool_calls", ()))
    return called + sum(len(m["content"] or "") for m in messages)


def count(value: Any) -> int | None:
    """A token count as a server gives it, None for nonsense."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT else None


def call(number: int, id_: Any, name: Any, arguments: Any) -> ToolCall | None:
    """A call from a reply, None where it is none. One without an id gets its number for one."""
    if not isinstance(name, str) or not name or not isinstance(arguments, str) or len(arguments) > MAX_ARGUMENTS:
        return None
    return ToolCall(id_[:MAX_NAME] if isinstance(id_, str) and id_ else f"call-{number}", name[:MAX_NAME], arguments)
