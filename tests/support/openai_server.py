"""A real local HTTP server that speaks chat.completions and Responses, with the faults that real endpoints have.

Each request takes the next behaviour of the script; the last one repeats. A behaviour is a function of the handler.
"""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CODE = "import cutlass\n\n\ndef build(dims, tokens, arch):\n    return None\n"


def answer(code: str = CODE, intro: str = "Here it is.") -> str:
    return f"{intro}\n\n```python\n{code}```\n"


@dataclass
class Seen:
    """One request; header names in lower case."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float


@dataclass
class Server:
    port: int
    script: list["Behaviour"]
    seen: list[Seen] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def next(self) -> "Behaviour":
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Server

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.state.seen.append(Seen(self.path, headers, json.loads(raw), time.monotonic()))
        with suppress(BrokenPipeError, ConnectionResetError):  # the client gave up, as it should
            self.state.next()(self)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def reply(self, body: bytes, status: int = 200, kind: str = "application/json", **headers: str) -> None:
        self.head(status, kind, len(body), **headers)
        self.wfile.write(body)

    def head(self, status: int, kind: str, length: int | None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if length is not None:
            self.send_header("content-length", str(length))
        self.end_headers()

    def authorization(self) -> str:
        return str(self.headers.get("Authorization", ""))


Behaviour = Callable[[Handler], None]


@contextmanager
def serving(*script: Behaviour) -> Iterator[Server]:
    """The server, on a free port of the loopback interface."""
    handler = type("BoundHandler", (Handler,), {})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    http.daemon_threads = True
    state = Server(http.server_port, list(script))
    handler.state = state  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.stop.set()
        http.shutdown()
        http.server_close()


def completion(content: Any, finish: Any = "stop", usage: Any = None, **message: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}
        ],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 1200} if usage is None else usage,
    }


def ok(content: Any = None, finish: Any = "stop", usage: Any = None, **message: Any) -> Behaviour:
    return json_body(completion(answer() if content is None else content, finish, usage, **message))


def null_content() -> Behaviour:
    return json_body(completion(None))


def json_body(value: Any) -> Behaviour:
    return raw_body(json.dumps(value).encode())


def raw_body(body: bytes, kind: str = "application/json") -> Behaviour:
    return lambda h: h.reply(body, kind=kind)


def status(code: int, message: str = "no", error_code: str = "e", **headers: str) -> Behaviour:
    body = json.dumps({"error": {"message": message, "type": "t", "code": error_code}}).encode()
    return lambda h: h.reply(body, status=code, **headers)


def echo_key(code: int = 401) -> Behaviour:
    """A server that repeats the credentials it was given in its error."""
    return lambda h: status(code, f"Incorrect API key provided: {h.authorization()} {h.authorization()[7:]}")(h)


def echo_key_in_answer() -> Behaviour:
    def act(h: Handler) -> None:
        key = h.authorization().split()[-1]
        ok(answer(f"# {key}\n{CODE}", intro=key))(h)

    return act


def cut_body() -> Behaviour:
    def act(h: Handler) -> None:
        body = json.dumps(completion(answer())).encode()
        h.head(200, "application/json", len(body))
        h.wfile.write(body[: len(body) // 2])

    return act


def reset() -> Behaviour:
    def act(h: Handler) -> None:
        h.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        h.connection.close()

    return act


def drip(every: float = 0.05) -> Behaviour:
    """One byte at a time, for ever: no single read ever times out."""

    def act(h: Handler) -> None:
        h.head(200, "application/json", 10_000_000)
        while not h.state.stop.wait(every):
            h.wfile.write(b" ")
            h.wfile.flush()

    return act


def silent() -> Behaviour:
    def act(h: Handler) -> None:
        h.state.stop.wait(30)

    return act


def redirect(url: str) -> Behaviour:
    return lambda h: h.reply(b"", status=307, location=url)


def sse(*events: Any, end: bool = True) -> Behaviour:
    """Server-sent events; a str is sent as it is, anything else as JSON."""

    def act(h: Handler) -> None:
        h.head(200, "text/event-stream", None, connection="close")
        for event in events:
            h.wfile.write(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())
        if end:
            h.wfile.write(b"data: [DONE]\n\n")

    return act


def chunk(content: Any = None, finish: Any = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": finish, "delta": {"content": content, **delta}}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def usage_chunk() -> dict[str, Any]:
    return {**chunk(), "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}}


def wants(*calls: tuple[str, Any], usage: Any = None) -> Behaviour:
    """A reply that wants these tools called; arguments are sent as JSON unless they are a str."""
    listed = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments_of(given)}}
        for n, (name, given) in enumerate(calls)
    ]
    return json_body(completion(None, "tool_calls", usage, tool_calls=listed))


def arguments_of(given: Any) -> str:
    return given if isinstance(given, str) else json.dumps(given)


def call_chunk(index: int, **parts: Any) -> dict[str, Any]:
    """A piece of a call: id, name, arguments."""
    function = {name: parts[name] for name in ("name", "arguments") if name in parts}
    return chunk(tool_calls=[{"index": index, "type": "function", "function": function, "id": parts.get("id")}])


RESPONSES_USAGE = {
    "input_tokens": 1000,
    "input_tokens_details": {"cached_tokens": 600},
    "output_tokens": 200,
    "output_tokens_details": {"reasoning_tokens": 150},
    "total_tokens": 1200,
}


def text_item(text: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def call_item(name: str, given: Any, number: int = 1) -> dict[str, Any]:
    called = {"type": "function_call", "call_id": f"call_{number}", "name": name, "arguments": arguments_of(given)}
    return {"id": f"fc_{number}", "status": "completed", **called}


def response(*items: Any, status: Any = "completed", **more: Any) -> dict[str, Any]:
    thought = {"id": "rs_1", "type": "reasoning", "summary": []}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": status,
        "output": [thought, *(items or (text_item(answer()),))],
        "usage": RESPONSES_USAGE,
        **more,
    }


def responded(*items: Any, status: Any = "completed", **more: Any) -> Behaviour:
    return json_body(response(*items, status=status, **more))


def events(*deltas: str, last: str = "response.completed", ends: Any = None) -> tuple[dict[str, Any], ...]:
    """Events of a stream: text in pieces, and the last event unless that is ""."""
    pieces = [
        {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 1, "content_index": 0, "delta": d}
        for d in deltas
    ]
    final = {"type": last, "response": response(text_item("".join(deltas))) if ends is None else ends}
    begin = {"type": "response.created", "response": response(status="in_progress")}
    listed = [begin, *pieces, *([final] if last else [])]
    return tuple({**event, "sequence_number": n} for n, event in enumerate(listed))
