"""One question to a chat.completions endpoint, through the openai package (2.25 and newer, 3.x), with faults as values.

What the library does not do is done here: a total deadline (its timeout is per read), one bounded layer of retries
that honours Retry-After, a cap on the size of a reply, and validation of everything in it. Every text that leaves is
redacted. Not covered: tools, images, several choices, and stateful APIs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kgen.proposers.base import ProposerError, SetupError, Usage
from kgen.proposers.endpoint import Endpoint
from kgen.proposers.faults import Fault, fault_of
from kgen.proposers.redact import redacted_logs

if TYPE_CHECKING:
    from openai import AsyncOpenAI

log = logging.getLogger(__name__)

Message = dict[str, str]

MAX_ATTEMPTS = 4
BACKOFF_S = (0.5, 2.0, 8.0)  # before the second, third, fourth attempt, unless the server says Retry-After
MAX_REPLY_BYTES = 8_000_000  # of a whole response body: an answer of 2 MB with every character escaped
CONNECT_S = 10.0
GRACE_S = 2.0  # after the deadline, for the connection to be closed in order
MAX_COUNT = 10**9  # token counts above this are nonsense
MAX_FAULT = 800  # characters of a fault, cut only after redaction
OVERSIZE = "oversize"  # our own finish reason


@dataclass(frozen=True)
class Reply:
    """A complete reply. `finish` is the server's reason; only "stop" means that the text is whole."""

    text: str
    finish: str
    prompt_tokens: int | None = None  # None: the server did not say
    completion_tokens: int | None = None


class Chat:
    """Asks one endpoint. The client is made per question: constructing this needs neither the package nor a key."""

    def __init__(self, endpoint: Endpoint, sleep: Callable[[float], None] = time.sleep) -> None:
        self.endpoint = endpoint
        self._sleep = sleep
        self._redact = endpoint.redactor.text

    def ask(
        self, messages: list[Message], deadline_s: float, max_tokens: int, attempts: int = MAX_ATTEMPTS
    ) -> tuple[Reply, Usage]:
        """The first complete reply within `deadline_s`. Raises ProposerError or SetupError, both with the usage."""
        with redacted_logs(self.endpoint.redactor):
            return self._ask(messages, deadline_s, max_tokens, attempts)

    def _ask(self, messages: list[Message], deadline_s: float, max_tokens: int, attempts: int) -> tuple[Reply, Usage]:
        start, attempt = time.monotonic(), 0
        while True:
            attempt += 1
            left = start + deadline_s - time.monotonic()
            result = self._attempt(messages, left, max_tokens)
            usage = Usage(attempts=attempt, seconds=time.monotonic() - start)
            if isinstance(result, Reply):
                return result, self._counted(usage, messages, result)
            if result.fatal:
                raise SetupError(result.message, usage)
            pause = BACKOFF_S[min(attempt, len(BACKOFF_S)) - 1] if result.retry_after is None else result.retry_after
            left = start + deadline_s - time.monotonic()
            if attempt >= min(attempts, MAX_ATTEMPTS) or pause >= left:
                waits = f"; it asks to wait {pause:.0f} s" if result.retry_after is not None else ""
                raise ProposerError(f"{result.message}{waits} (attempt {attempt}, {usage.seconds:.1f} s)", usage)
            log.info("attempt %d: %s; again in %.1f s", attempt, result.message, pause)
            self._sleep(pause)

    def _counted(self, usage: Usage, messages: list[Message], reply: Reply) -> Usage:
        """`usage` with the reply's tokens; where the server says nothing, three characters count as one token."""
        known = reply.prompt_tokens is not None and reply.completion_tokens is not None
        prompt = reply.prompt_tokens if known else sum(len(m["content"]) for m in messages) // 3
        completion = reply.completion_tokens if known else len(reply.text) // 3
        counted = replace(
            usage, prompt_tokens=prompt or 0, completion_tokens=completion or 0, estimated=usage.estimated or not known
        )
        return replace(counted, cost_usd=self.endpoint.cost_usd(counted))

    def _attempt(self, messages: list[Message], seconds: float, max_tokens: int) -> Reply | Fault:
        """One request, bounded in time whatever the server or the resolver does."""
        box: list[Reply | Fault] = []
        body = {"model": self.endpoint.model, "messages": messages, self.endpoint.tokens_field: max_tokens}
        if self.endpoint.temperature is not None:
            body["temperature"] = self.endpoint.temperature
        thread = threading.Thread(target=self._run, args=(body, seconds, box), daemon=True, name="kgen-chat")
        thread.start()
        thread.join(max(0.0, seconds) + GRACE_S)
        late = Fault(f"{self.endpoint.shown}: no complete answer within {max(0.0, seconds):.1f} s")
        result = box[0] if box else late
        if isinstance(result, Fault):
            return replace(result, message=self._redact(result.message)[:MAX_FAULT])
        return replace(result, text=self._redact(result.text), finish=self._redact(result.finish)[:40])

    def _run(self, body: dict[str, Any], seconds: float, box: list[Reply | Fault]) -> None:
        shown = self.endpoint.shown
        try:
            box.append(asyncio.run(asyncio.wait_for(self._request(body, seconds), max(0.001, seconds))))
        except TimeoutError:
            box.append(Fault(f"{shown}: no complete answer within {max(0.0, seconds):.1f} s"))
        except Exception as error:  # noqa: BLE001  a thread's boundary: the table of faults knows what is whose fault
            box.append(fault_of(error, shown, self.endpoint.model, self._redact))

    async def _request(self, body: dict[str, Any], seconds: float) -> Reply | Fault:
        async with _client(self.endpoint, seconds) as client:
            result = await (_streamed(client, body) if self.endpoint.stream else _whole(client, body))
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


async def _whole(client: AsyncOpenAI, body: dict[str, Any]) -> Reply | Fault:
    """A plain request, its body read in pieces so that its size can be capped."""
    raw = bytearray()
    async with client.chat.completions.with_streaming_response.create(**body) as response:
        async for piece in response.iter_bytes():
            raw += piece
            if len(raw) > MAX_REPLY_BYTES:
                return Reply("", OVERSIZE)
        kind = response.headers.get("content-type", "no content type")
    try:
        data = json.loads(bytes(raw))
    except (ValueError, RecursionError):
        return Fault(f"the reply is not JSON ({len(raw)} bytes of {kind})")
    return _validated(data)


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
    if content is None and finish != "stop":
        content = ""  # cut off before the first word of the answer, e.g. while reasoning
    if not isinstance(content, str):
        return Fault(f"the reply's content is {type(content).__name__}, not text")
    usage = data.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    return Reply(content, finish, _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens")))


async def _streamed(client: AsyncOpenAI, body: dict[str, Any]) -> Reply | Fault:
    """Server-sent events. A stream that ends without a finish reason was cut, and what came of it is dropped."""
    parts: list[str] = []
    size, finish, refused = 0, None, False
    usage: Any = None
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
        if size > MAX_REPLY_BYTES:
            return Reply("", OVERSIZE)
    if finish is None:
        return Fault("the stream ended without a finish_reason")
    counts = (_count(getattr(usage, name, None)) for name in ("prompt_tokens", "completion_tokens"))
    return Reply("".join(parts), "refusal" if refused and not parts else finish, *counts)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT else None
