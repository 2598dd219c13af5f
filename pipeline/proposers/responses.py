"""The Responses protocol, stateless: nothing is stored there, and every request carries the whole conversation.

    request(model, messages, ...) -> the body      validated(data) -> Reply | Fault      streamed(client, body)

A stream counts as complete with its last event only, which carries the whole response. What a model thought before it
called a tool is not sent back. Not covered: the server's own tools, files, images, background responses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kgen.proposers.faults import NO_QUOTA, Fault
from kgen.proposers.wire import CALLS, MAX_CALLS, MAX_REPLY_BYTES, OVERSIZE, Message, Reply, ToolSpec, call, count

if TYPE_CHECKING:
    from openai import AsyncOpenAI

INCOMPLETE = {"max_output_tokens": "length", "max_tokens": "length", "content_filter": "content_filter"}
LAST = ("response.completed", "response.incomplete", "response.failed")
DELTAS = ("response.output_text.delta", "response.refusal.delta", "response.function_call_arguments.delta")


def request(messages: list[Message], max_tokens: int, effort: str | None, tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """The body without model and temperature. The first message, the system's, becomes the instructions."""
    body: dict[str, Any] = {
        "instructions": messages[0]["content"] if messages[0]["role"] == "system" else None,
        "input": [item for m in messages if m["role"] != "system" for item in _items(m)],
        "max_output_tokens": max_tokens,
        "store": False,
    }
    if effort is not None:
        body["reasoning"] = {"effort": effort}
    if tools:
        given = [{"name": t.name, "description": t.description, "parameters": dict(t.parameters)} for t in tools]
        body["tools"] = [{"type": "function", "strict": False, **tool} for tool in given]
    return {name: value for name, value in body.items() if value is not None}


def _items(message: Message) -> list[dict[str, Any]]:
    if message["role"] == "tool":
        return [
            {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]},
        ]
    calls = [(c["id"], c["function"]) for c in message.get("tool_calls", ())]
    items = [{"type": "function_call", "call_id": i, "name": f["name"], "arguments": f["arguments"]} for i, f in calls]
    return [*([{"role": message["role"], "content": message["content"]}] if message["content"] else []), *items]


def validated(data: Any, heard: str = "") -> Reply | Fault:
    """The reply in a decoded response, every type checked; `heard`: text of its stream, should it hold none."""
    status = data.get("status") if isinstance(data, dict) else None
    if status == "failed":
        return _failed(data.get("error"))
    if status not in ("completed", "incomplete"):
        return Fault("the reply is no response that is completed or incomplete")
    output = data.get("output")
    if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
        return Fault("the reply's output is no list of items")
    text, refused = _text(output)
    if text is None:
        return Fault("a part of the reply's text is no text")
    text = text or heard
    wanted = [item for item in output if item.get("type") == "function_call"][:MAX_CALLS]
    found = [call(n, i.get("call_id"), i.get("name"), i.get("arguments")) for n, i in enumerate(wanted, 1)]
    calls = tuple(c for c in found if c is not None)
    if status == "completed" and not text and not calls and not refused:
        return Fault("the reply holds neither text nor a call of a tool")
    finish = CALLS if calls else "refusal" if refused and not text else "stop"
    if status == "incomplete":
        details = data.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        finish, calls = INCOMPLETE.get(str(reason), f"incomplete: {reason}"), ()
    return Reply(text, finish, *_counts(data.get("usage")), calls)


def _failed(error: Any) -> Fault:
    code, words = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, None)
    return Fault(f"the endpoint reports that the response failed: {code}: {words}", fatal=code in NO_QUOTA)


def _text(output: list[dict[str, Any]]) -> tuple[str | None, bool]:
    """The text of all messages, None where a part of it is none; and whether there is a refusal."""
    parts: list[str] = []
    refused = False
    for item in output:
        content = item.get("content", []) if item.get("type") == "message" else []
        if not isinstance(content, list):
            return None, False
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            refused = refused or kind == "refusal"
            text = part.get("text") if kind == "output_text" else ""
            if kind is None or not isinstance(text, str):
                return None, False
            parts.append(text)
    return "".join(parts), refused


def _counts(usage: Any) -> tuple[int | None, int | None, int | None, int | None]:
    given = usage if isinstance(usage, dict) else {}
    inner = [given.get(f"{name}_tokens_details") for name in ("input", "output")]
    into, out = (details if isinstance(details, dict) else {} for details in inner)
    return (
        count(given.get("input_tokens")),
        count(given.get("output_tokens")),
        count(into.get("cached_tokens")),
        count(out.get("reasoning_tokens")),
    )


async def streamed(client: AsyncOpenAI, body: dict[str, Any]) -> Reply | Fault:
    """Server-sent events. A stream without its last event was cut, and what came of it is dropped."""
    parts: list[str] = []
    size = 0
    stream = await client.responses.create(**body, stream=True)
    async for event in stream:
        kind = getattr(event, "type", None)
        if kind in DELTAS:
            delta = getattr(event, "delta", None)
            if not isinstance(delta, str):
                return Fault(f"an event's delta is {type(delta).__name__}, not text")
            size += len(delta)
            parts += [delta] if kind == DELTAS[0] else []
        if size > MAX_REPLY_BYTES:
            return Reply("", OVERSIZE)
        if kind == "error":
            return Fault(f"the endpoint reports an error: {getattr(event, 'message', '')}")
        if kind in LAST:
            response: Any = getattr(event, "response", None)
            data = response.to_dict(warnings=False) if hasattr(response, "to_dict") else response
            return validated(data, "".join(parts))
    return Fault("the stream ended without response.completed")
