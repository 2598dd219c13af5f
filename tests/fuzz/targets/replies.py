"""What an endpoint sends: bodies, streams, headers. A real server on the loopback interface sends the bytes."""

import atexit
import contextlib
import functools
import json
import math

from support.openai_server import Handler, Server, completion, ok, serving

from fuzz.guard import own_files
from fuzz.target import Target, one_line
from kgen.proposers.base import ProposerFailure
from kgen.proposers.chat import MAX_REPLY_BYTES, Chat
from kgen.proposers.endpoint import Endpoint
from kgen.proposers.faults import MAX_RETRY_AFTER_S, retry_after

KEY = "sk-fuzzed-key-0123456789"
WORDS = (
    *(
        b"data: ",
        b"\n\n",
        b"[DONE]",
        b"event: error\n",
        b": ping\n\n",
        b'{"choices":[]}',
        b"null",
        b"NaN",
        b"\\ud800",
        b"[" * 900,
    ),
    *(
        b'"delta":{"content":7}',
        b'"finish_reason":null',
        b"\r",
        b"\xff",
        b"id: 1\n",
        b"retry: x\n",
        b'{"error":{"message":"x"}}',
    ),
)


@functools.cache
def _server() -> tuple[Server, dict[bool, Chat]]:
    """One server for all inputs; it ends with the process."""
    stack = contextlib.ExitStack()
    with own_files():  # the package looks round on first use
        server = stack.enter_context(serving(ok()))
        atexit.register(stack.close)
        chats = {on: Chat(Endpoint(KEY, server.url, "m", stream=on), sleep=lambda s: None) for on in (False, True)}
        chats[False].ask([{"role": "user", "content": "?"}], 60.0, 100)
    return server, chats


def _ask(data: bytes, stream: bool) -> None:
    server, chats = _server()

    def send(handler: Handler) -> None:
        if stream:
            handler.head(200, "text/event-stream", None, connection="close")
            handler.wfile.write(data)
        else:
            handler.reply(data, status=200)

    server.script[:] = [send]
    try:
        reply, usage = chats[stream].ask([{"role": "user", "content": "?"}], 5.0, 100, attempts=1)
    except ProposerFailure as failure:
        one_line(str(failure))
        assert KEY not in str(failure)
        return
    assert isinstance(reply.text, str) and len(reply.text) <= MAX_REPLY_BYTES and KEY not in reply.text
    assert len(reply.finish) <= 40 and usage.attempts == 1 and usage.prompt_tokens >= 0 and usage.completion_tokens >= 0


def _bodies() -> list[bytes]:
    refused = completion(None, "stop", refusal="no")
    return [
        json.dumps(value).encode()
        for value in (completion("```python\nx = 1\n```"), refused, {"error": {"message": "x"}})
    ]


def _streams() -> list[bytes]:
    def chunk(**delta: object) -> dict[str, object]:
        return {
            "id": "1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "delta": delta}],
        }

    last = {**chunk(), "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}
    events = [chunk(role="assistant"), chunk(content="```python\n"), chunk(content="x = 1\n```"), last]
    return ["".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() + b"data: [DONE]\n\n"]


def _retry(data: bytes) -> None:
    text = data.decode("latin-1")
    for headers in ({"retry-after": text}, {"retry-after-ms": text}, {"retry-after-ms": "x", "retry-after": text}):
        seconds = retry_after(headers)
        assert seconds is None or (math.isfinite(seconds) and 0 <= seconds <= MAX_RETRY_AFTER_S)


def targets() -> list[Target]:
    promise = "a reply whose every part has its type, or a fault of one line without the key"
    dates = [b"2", b"1.5", b"Wed, 21 Oct 2026 07:28:00 GMT", b"nan", b"Mon, 1 Jan 0001 00:00:00 +2359", b"1_0"]
    return [
        Target(
            "replies",
            "proposers.chat.Chat.ask",
            "whole replies",
            promise,
            "json",
            _bodies,
            lambda d: _ask(d, False),
            WORDS,
            network=True,
        ),
        Target(
            "streams",
            "proposers.chat.Chat.ask, streaming",
            "a stream of four events",
            promise,
            "text",
            _streams,
            lambda d: _ask(d, True),
            WORDS,
            network=True,
        ),
        Target(
            "retry-after",
            "proposers.faults.retry_after",
            "numbers and dates",
            "seconds within the limit, or None",
            "bytes",
            lambda: dates,
            _retry,
            (b"+9999", b"99999", b"GMT", b"e999", b"-", b"inf"),
        ),
    ]
