"""One question to an endpoint, through the openai package (2.25 and newer, 3.x), with faults as values.

What the library does not do is done here, for chat.completions and Responses (`responses`) alike: a total deadline (its
timeout is per read), one bounded layer of retries that honours Retry-After, a cap on the size of a reply, validation
of everything in it, and going on without tools where a server refuses them. Every text that leaves is redacted. Not
covered: calling tools, images, several choices, and stateful APIs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kgen.proposers import responses
from kgen.proposers.base import ProposerError, ProposerFailure, SetupError, Usage
from kgen.proposers.endpoint import Endpoint
from kgen.proposers.faults import Fault, fault_of
from kgen.proposers.redact import redacted_logs
from kgen.proposers.wire import (
    MAX_CALLS,
    MAX_REPLY_BYTES,
    OVERSIZE,
    Message,
    Reply,
    ToolCall,
    ToolSpec,
    call,
    characters,
    count,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["MAX_ATTEMPTS", "MAX_REPLY_BYTES", "OVERSIZE", "Chat", "Message", "Reply"]

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 4
BACKOFF_S = (0.5, 2.0, 8.0)  # before the second, third, fourth attempt, unless the server says Retry-After
CONNECT_S = 10.0
GRACE_S = 2.0  # after the deadline, for the connection to be closed in order
MAX_FAULT = 800  # characters of a fault, cut only after redaction
NO_TOOLS = frozenset({400, 404, 422, 500, 501})  # HTTP status of a server that has none, if its words name them
NAMES_TOOLS = re.compile(r"(?i)\b(tools?|tool_choice|functions?)\b")


class Chat:
    """Asks one endpoint. The client is made per question: constructing this needs neither the package nor a key.

    `refused` is what the server said against tools, "" as long as it takes them. May be used by several threads.
    """

    def __init__(self, endpoint: Endpoint, sleep: Callable[[float], None] = time.sleep) -> None:
        self.endpoint = endpoint
        self._sleep = sleep
        self._redact = endpoint.redactor.text
        self.refused = "" if endpoint.tools else "switched off"

    def ask(
        self,
        messages: list[Message],
        deadline_s: float,
        max_tokens: int,
        attempts: int = MAX_ATTEMPTS,
        tools: Sequence[ToolSpec] = (),
        room: Callable[[Usage], int] | None = None,
    ) -> tuple[Reply, Usage]:
        """The first complete reply within `deadline_s`. Raises ProposerError or SetupError, both with the usage.

        `room` says before every further attempt how many tokens its answer may have, or raises BudgetError.
        """
        with redacted_logs(self.endpoint.redactor):
            return self._ask(messages, deadline_s, max_tokens, attempts, tools, room or (lambda _: max_tokens))

    def _ask(
        self,
        messages: list[Message],
        deadline_s: float,
        max_tokens: int,
        attempts: int,
        tools: Sequence[ToolSpec],
        room: Callable[[Usage], int],
    ) -> tuple[Reply, Usage]:
        start, usage = time.monotonic(), Usage()
        while True:
            left = start + deadline_s - time.monotonic()
            offered = () if self.refused else tuple(tools)
            result = self._attempt(self._body(messages, max_tokens, offered), left)
            usage = replace(usage, attempts=usage.attempts + 1, seconds=time.monotonic() - start)
            if isinstance(result, Reply):
                return result, self._counted(usage, messages, result)
            if result.lost:
                usage = self._lost(usage, messages, max_tokens)
            left = start + deadline_s - time.monotonic()
            again = usage.attempts < min(attempts, MAX_ATTEMPTS) and left > 0
            if offered and again and result.status in NO_TOOLS and NAMES_TOOLS.search(result.message):
                self.refused = result.message
                log.info("attempt %d: %s; again without tools", usage.attempts, result.message)
                continue
            if result.fatal:
                raise SetupError(result.message, usage)
            tried = min(usage.attempts, len(BACKOFF_S))
            pause = BACKOFF_S[tried - 1] if result.retry_after is None else result.retry_after
            if not again or pause >= left:
                waits = f"; it asks to wait {pause:.0f} s" if result.retry_after is not None else ""
                told = f"{result.message}{waits} (attempt {usage.attempts}, {usage.seconds:.1f} s)"
                raise ProposerError(told, usage)
            max_tokens = self._room(room, usage)
            log.info("attempt %d: %s; again in %.1f s", usage.attempts, result.message, pause)
            self._sleep(pause)

    @staticmethod
    def _room(room: Callable[[Usage], int], usage: Usage) -> int:
        try:
            return room(usage)
        except ProposerFailure as failure:
            failure.usage = usage
            raise

    def _lost(self, usage: Usage, messages: list[Message], max_tokens: int) -> Usage:
        """With one more request whose tokens nobody knows: charged with the most that it can have cost."""
        most = self.endpoint.cost_usd(Usage(characters(messages) // 3, max_tokens))
        cost = usage.cost_usd if most is None else (usage.cost_usd or 0.0) + most
        return replace(usage, lost=usage.lost + 1, cost_usd=cost)

    def _counted(self, usage: Usage, messages: list[Message], reply: Reply) -> Usage:
        """`usage` with the reply's tokens; where the server says nothing, three characters count as one token."""
        known = reply.prompt_tokens is not None and reply.completion_tokens is not None
        called = sum(len(c.arguments) for c in reply.calls)
        prompt = reply.prompt_tokens if known else characters(messages) // 3
        completion = reply.completion_tokens if known else (len(reply.text) + called) // 3
        counted = replace(
            usage,
            prompt_tokens=prompt or 0,
            completion_tokens=completion or 0,
            estimated=usage.estimated or not known,
            cached_tokens=min(reply.cached_tokens or 0, prompt or 0),
            reasoning_tokens=min(reply.reasoning_tokens or 0, completion or 0),
        )
        cost = self.endpoint.cost_usd(counted)
        return replace(counted, cost_usd=usage.cost_usd if cost is None else cost + (usage.cost_usd or 0.0))

    def _body(self, messages: list[Message], max_tokens: int, tools: Sequence[ToolSpec]) -> dict[str, Any]:
        """The request. What stays the same from question to question comes first, for servers that cache prefixes."""
        where = self.endpoint
        sampling = {} if where.temperature is None else {"temperature": where.temperature}
        if where.api == "responses":
            own = responses.request(messages, max_tokens, where.reasoning_effort, tools)
            return {"model": where.model, **own, **sampling}
        body: dict[str, Any] = {"model": where.model, "messages": messages, where.tokens_field: max_tokens, **sampling}
        if where.reasoning_effort is not None:
            body["reasoning_effort"] = where.reasoning_effort
        if tools:
            given = [{"name": t.name, "description": t.description, "parameters": dict(t.parameters)} for t in tools]
            body["tools"] = [{"type": "function", "function": tool} for tool in given]
        return body

    def _attempt(self, body: dict[str, Any], seconds: float) -> Reply | Fault:
        """One request, bounded in time whatever the server or the resolver does."""
        box: list[Reply | Fault] = []
        thread = threading.Thread(target=self._run, args=(body, seconds, box), daemon=True, name="kgen-chat")
        thread.start()
        thread.join(max(0.0, seconds) + GRACE_S)
        late = Fault(f"{self.endpoint.shown}: no complete answer within {max(0.0, seconds):.1f} s")
        result = box[0] if box else late
        if isinstance(result, Fault):
            return replace(result, message=self._redact(result.message)[:MAX_FAULT])
        redact = self._redact
        calls = tuple(ToolCall(*map(redact, (c.id, c.name, c.arguments))) for c in result.calls)
        return replace(result, text=redact(result.text), finish=redact(result.finish)[:40], calls=calls)

    def _run(self, body: dict[str, Any], seconds: float, box: list[Reply | Fault]) -> None:
        shown = self.endpoint.shown
        try:
            box.append(asyncio.run(asyncio.wait_for(self._request(body, seconds), max(0.001, seconds))))
        except TimeoutError:
            box.append(Fault(f"{shown}: no complete answer within {max(0.0, seconds):.1f} s"))
        except Exception as error:  # noqa: BLE001  a thread's boundary: the table of faults knows what is whose fault
            box.append(fault_of(error, shown, self.endpoint.model, self._redact))

    async def _request(self, body: dict[str, Any], seconds: float) -> Reply | Fault:
        own = self.endpoint.api == "responses"
        async with _client(self.endpoint, seconds) as client:
            if self.endpoint.stream:
                result = await (responses.streamed(client, body) if own else _streamed(client, body))
            else:
                made = client.responses if own else client.chat.completions
                result = await _whole(made, body, responses.validated if own else _validated)
        if isinstance(result, Fault):
            return replace(result, message=f"{self.endpoint.shown}: {result.message}")
        return result


@asynccontextmanager
async def _client(endpoint: Endpoint, seconds: float) -> AsyncIterator[AsyncOpenAI]:
    import openai

    timeout = openai.Timeout(max(0.001, seconds), connect=min(CONNECT_S, max(0.001, seconds)))
    client = openai.AsyncOpenAI(
        api_key=endpoint.api_key,
        base_url=endpoint.url,
        default_headers=endpoint.headers,
        max_retries=0,
        timeout=timeout,
    )
    try:
        yield client
    finally:
        await client.close()


async def _whole(made: Any, body: dict[str, Any], validated: Callable[[Any], Reply | Fault]) -> Reply | Fault:
    """A plain request to one of the client's parts, its body read in pieces so that its size can be capped."""
    raw = bytearray()
    async with made.with_streaming_response.create(**body) as response:
        async for piece in response.iter_bytes():
            raw += piece
            if len(raw) > MAX_REPLY_BYTES:
                return Reply("", OVERSIZE)
        kind = response.headers.get("content-type", "no content type")
    try:
        data = json.loads(bytes(raw))
    except (ValueError, RecursionError):
        return Fault(f"the reply is not JSON ({len(raw)} bytes of {kind})")
    return validated(data)


def _validated(data: Any) -> Reply | Fault:
    """The reply in a decoded body, every type checked."""
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return Fault("the reply has no choices")
    message, finish = choices[0].get("message"), choices[0].get("finish_reason")
    if not isinstance(message, dict) or not isinstance(finish, str):
        return Fault("the reply's first choice has no message or no finish_reason")
    content, refusal = message.get("content"), message.get("refusal")
    if content is None and isinstance(refusal, str) and refusal:
        content, finish = "", "refusal"
    calls = _calls(message.get("tool_calls"))
    if content is None and finish != "stop":
        content = ""  # cut off before the first word of the answer, e.g. while reasoning
    if content is None and calls:
        content = ""
    if not isinstance(content, str):
        return Fault(f"the reply's content is {type(content).__name__}, not text")
    return Reply(content, finish, *_counts(data.get("usage")), calls)


def _calls(listed: Any) -> tuple[ToolCall, ...]:
    """The calls of tools in a reply; what is none is left out."""
    found = []
    for number, item in enumerate(listed[:MAX_CALLS] if isinstance(listed, list) else (), 1):
        function = item.get("function") if isinstance(item, dict) else None
        if isinstance(function, dict):
            found.append(call(number, item.get("id"), function.get("name"), function.get("arguments")))
    return tuple(c for c in found if c is not None)


def _counts(usage: Any) -> tuple[int | None, int | None, int | None, int | None]:
    """Tokens of the prompt, of the answer, cached of the one, reasoning of the other."""
    given = usage if isinstance(usage, dict) else {}
    inner = [given.get(f"{name}_tokens_details") for name in ("prompt", "completion")]
    into, out = (details if isinstance(details, dict) else {} for details in inner)
    return (
        count(given.get("prompt_tokens")),
        count(given.get("completion_tokens")),
        count(into.get("cached_tokens")),
        count(out.get("reasoning_tokens")),
    )


async def _streamed(client: AsyncOpenAI, body: dict[str, Any]) -> Reply | Fault:
    """Server-sent events. A stream that ends without a finish reason was cut, and what came of it is dropped."""
    parts: list[str] = []
    size, finish, refused = 0, None, False
    usage: Any = None
    called: dict[int, dict[str, Any]] = {}
    stream = await client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
    async for chunk in stream:
        usage = getattr(chunk, "usage", None) or usage
        choices = getattr(chunk, "choices", None)
        if not isinstance(choices, list) or not choices:
            continue
        delta, reason = getattr(choices[0], "delta", None), getattr(choices[0], "finish_reason", None)
        finish = reason if isinstance(reason, str) else finish
        refused = refused or isinstance(getattr(delta, "refusal", None), str)
        text = getattr(delta, "content", None)
        if isinstance(text, str):
            parts.append(text)
            size += len(text)
        elif text is not None:
            return Fault(f"a chunk's content is {type(text).__name__}, not text")
        size += _hear(getattr(delta, "tool_calls", None), called)
        if size > MAX_REPLY_BYTES:
            return Reply("", OVERSIZE)
    if finish is None:
        return Fault("the stream ended without a finish_reason")
    counts = usage.to_dict(warnings=False) if hasattr(usage, "to_dict") else None
    calls = _calls([called[index] for index in sorted(called)])
    return Reply("".join(parts), "refusal" if refused and not parts else finish, *_counts(counts), calls)


def _hear(listed: Any, called: dict[int, dict[str, Any]]) -> int:
    """Add the pieces of calls in a chunk to those that came before, by their index; returns how long they are."""
    size = 0
    for piece in listed if isinstance(listed, list) else ():
        index, function = getattr(piece, "index", None), getattr(piece, "function", None)
        if not isinstance(index, int) or (index not in called and len(called) >= MAX_CALLS):
            continue
        whole = called.setdefault(index, {"id": getattr(piece, "id", None), "function": {"name": "", "arguments": ""}})
        for part in whole["function"]:
            text = getattr(function, part, None)
            whole["function"][part] += text if isinstance(text, str) else ""
            size += len(text) if isinstance(text, str) else 0
    return size
