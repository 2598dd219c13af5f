"""The Responses protocol: stateless requests, its faults end as those of chat.completions do, its tokens are counted.

The same file runs a second time under the oldest supported openai release (test_proposer_openai_2x.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import openai_server as srv
from support.requests import request

from kgen.proposers import ProposerError, ProposerExhausted, SetupError
from kgen.proposers.chat import MAX_ATTEMPTS, Chat
from kgen.proposers.endpoint import Endpoint
from kgen.proposers.openai_chat import OpenAIProposer
from kgen.proposers.transcript import Transcript
from kgen.proposers.wire import characters

pytestmark = pytest.mark.usefixtures("plain_http")
KEY = "sk-test-0123456789abcdefghijk"
RETRIED, FATAL, MODEL = "retried", "fatal", "told to the model"


def proposer(server: srv.Server, pauses: list[float] | None = None, **settings: Any) -> OpenAIProposer:
    endpoint = Endpoint(api_key=KEY, base_url=server.url, model="m", api="responses", **settings)
    return OpenAIProposer(chat=Chat(endpoint, sleep=(pauses if pauses is not None else []).append))


@dataclass(frozen=True)
class Row:
    name: str
    behaviour: Callable[[], srv.Behaviour]
    effect: str
    says: str
    stream: bool = False


def ended(status: str, **more: Any) -> Callable[[], srv.Behaviour]:
    return lambda: srv.responded(status=status, **more)


WHOLE = srv.events(srv.answer())
REFUSED = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
TABLE = (
    Row("429", lambda: srv.status(429), RETRIED, "429"),
    Row("400", lambda: srv.status(400, "context too long"), FATAL, "context too long"),
    Row("404: no such path", lambda: srv.status(404), FATAL, "404"),
    Row("body cut", srv.cut_body, RETRIED, "peer closed connection"),
    Row("200 and HTML", lambda: srv.raw_body(b"<html>", "text/html"), RETRIED, "text/html"),
    Row("200 and a JSON string", lambda: srv.json_body("hello"), RETRIED, "no response"),
    Row("a reply of chat.completions", srv.ok, RETRIED, "no response"),
    Row("in progress", ended("in_progress"), RETRIED, "no response"),
    Row("output no list", lambda: srv.json_body({"status": "completed", "output": "x"}), RETRIED, "no list"),
    Row("output of texts", lambda: srv.json_body({"status": "completed", "output": ["x"]}), RETRIED, "no list"),
    Row("text a number", lambda: srv.responded(srv.text_item(7)), RETRIED, "no text"),
    Row("content a text", lambda: srv.responded({"type": "message", "content": "x"}), RETRIED, "no text"),
    Row("nothing but thoughts", lambda: srv.responded({"type": "reasoning"}), RETRIED, "neither"),
    Row("failed", ended("failed", error={"code": "server_error", "message": "sorry"}), RETRIED, "sorry"),
    Row("failed without a word", ended("failed", error="x"), RETRIED, "failed"),
    Row("failed: no quota", ended("failed", error={"code": "insufficient_quota"}), FATAL, "insufficient_quota"),
    Row("length", ended("incomplete", incomplete_details={"reason": "max_output_tokens"}), MODEL, "answer.truncated"),
    Row("filtered", ended("incomplete", incomplete_details={"reason": "content_filter"}), MODEL, "answer.refused"),
    Row("incomplete, no details", ended("incomplete", incomplete_details=None), MODEL, "answer.unfinished"),
    Row("refusal", lambda: srv.responded(REFUSED), MODEL, "answer.refused"),
    Row("10 MB", lambda: srv.responded(srv.text_item("x" * 10_000_000)), MODEL, "answer.size"),
    Row("a tool that was not offered", lambda: srv.responded(srv.call_item("rm", {})), MODEL, "answer.unfinished"),
    Row("SSE: cut", lambda: srv.sse(*srv.events(srv.answer(), last="")), RETRIED, "response.completed", True),
    Row("SSE: error", lambda: srv.sse({"type": "error", "message": "overloaded"}), RETRIED, "overloaded", True),
    Row("SSE: bad event", lambda: srv.sse(*WHOLE[:2], "{not json"), RETRIED, "JSONDecodeError", True),
    Row("SSE: junk", lambda: srv.sse('"x"', "[1]"), RETRIED, "response.completed", True),
    Row("SSE: a last event without a response", lambda: srv.sse(*srv.events(ends=5)), RETRIED, "no response", True),
    Row("SSE: delta a number", lambda: srv.sse({**WHOLE[1], "delta": 5}), RETRIED, "int", True),
    Row(
        "SSE: failed",
        lambda: srv.sse(*srv.events(last="response.failed", ends=srv.response(status="failed", error={}))),
        RETRIED,
        "failed",
        True,
    ),
    Row(
        "SSE: length",
        lambda: srv.sse(*srv.events("a", last="response.incomplete", ends=srv.response(
            status="incomplete", incomplete_details={"reason": "max_output_tokens"}))),
        MODEL,
        "answer.truncated",
        True,
    ),
    Row("SSE: huge", lambda: srv.sse(*srv.events(*["x" * (1 << 20)] * 9)), MODEL, "answer.size", True),
)  # fmt: skip


def outcomes(run: Path) -> list[str]:
    kept = Transcript(run)
    return [entry[0].outcome for n in kept.numbers() if (entry := kept.read(n))]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_fault_ends_as_it_does_for_chat_completions(row: Row, tmp_path: Path) -> None:
    good = srv.sse(*WHOLE) if row.stream else srv.responded()
    with srv.serving(row.behaviour(), good) as server:
        asked = proposer(server, stream=row.stream)
        if row.effect == FATAL:
            with pytest.raises(SetupError, match=row.says):
                asked.propose(request(tmp_path))
            assert len(server.seen) == 1
            return
        got = asked.propose(request(tmp_path))
        assert [c.source for c in got] == [srv.CODE]
        assert got.usage.attempts == len(server.seen) == 2
        assert outcomes(tmp_path)[:-1] == ([row.says] if row.effect == MODEL else [])
        assert all(seen.path == "/v1/responses" for seen in server.seen)


@pytest.mark.parametrize("name", ["body cut", "in progress", "SSE: cut", "filtered"])
def test_a_fault_that_stays_ends_after_a_bounded_number_of_requests(name: str, tmp_path: Path) -> None:
    row = next(r for r in TABLE if r.name == name)
    with srv.serving(row.behaviour()) as server:
        with pytest.raises(ProposerError if row.effect == RETRIED else ProposerExhausted, match=row.says):
            proposer(server, stream=row.stream).propose(request(tmp_path))
        assert len(server.seen) == (MAX_ATTEMPTS if row.effect == RETRIED else 3)


@pytest.mark.parametrize("stream", [False, True])
def test_the_deadline_is_total_not_per_read(stream: bool, tmp_path: Path) -> None:
    with srv.serving(srv.drip()) as server:
        with pytest.raises(ProposerError, match=r"no complete answer within|connection failed"):
            proposer(server, stream=stream).propose(request(tmp_path, deadline_s=0.8))
        assert len(server.seen) <= 1


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_stored_at_the_endpoint_and_every_request_carries_the_whole_conversation(
    stream: bool, tmp_path: Path
) -> None:
    first = srv.sse(*srv.events("no code")) if stream else srv.responded(srv.text_item("no code"))
    with srv.serving(first, srv.sse(*WHOLE) if stream else srv.responded()) as server:
        got = proposer(server, stream=stream, reasoning_effort="high", temperature=0.5).propose(request(tmp_path))
        one, two = (seen.body for seen in server.seen)
    for body in (one, two):
        assert body["store"] is False and not {"previous_response_id", "conversation", "messages"} & set(body)
        assert body["reasoning"] == {"effort": "high"} and body["temperature"] == 0.5
        assert body["max_output_tokens"] == Endpoint(api_key=KEY).max_tokens
    assert one["instructions"] == two["instructions"] and two["input"][0] == one["input"][0]
    assert [item["role"] for item in two["input"]] == ["user", "assistant", "user"]
    assert two["input"][1]["content"] == "no code" and "code block" in two["input"][2]["content"]
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (2000, 400)
    assert (got.usage.cached_tokens, got.usage.reasoning_tokens, got.usage.estimated) == (1200, 300, False)


def test_cached_tokens_cost_their_own_price(tmp_path: Path) -> None:
    prices = {"price_in": 2.0, "price_cached": 0.5, "price_out": 10.0}
    with srv.serving(srv.responded()) as server:
        got = proposer(server, **prices).propose(request(tmp_path))
    assert got.usage.cost_usd == pytest.approx((400 * 2.0 + 600 * 0.5 + 200 * 10.0) / 1e6)


NONSENSE: tuple[Any, ...] = (None, "many", {"input_tokens": -4}, {"input_tokens": 9, "output_tokens": True})


@pytest.mark.parametrize("usage", NONSENSE)
def test_unusable_token_counts_are_estimated(usage: Any, tmp_path: Path) -> None:
    with srv.serving(srv.responded(usage=usage)) as server:
        got = proposer(server).propose(request(tmp_path))
    assert got.usage.estimated and got.usage.prompt_tokens > 1000


def test_more_cached_tokens_than_there_are_tokens_are_not_believed(tmp_path: Path) -> None:
    usage = {**srv.RESPONSES_USAGE, "input_tokens_details": {"cached_tokens": 10**8}}
    with srv.serving(srv.responded(usage=usage)) as server:
        got = proposer(server, price_in=2.0, price_cached=0.5, price_out=10.0).propose(request(tmp_path))
    assert got.usage.cached_tokens == 1000


def test_a_request_that_may_have_been_charged_for_counts_with_the_most_that_it_can_have_cost(tmp_path: Path) -> None:
    with srv.serving(srv.cut_body(), srv.status(500), srv.responded()) as server:
        got = proposer(server, price_in=3.0, price_out=10.0, max_tokens=2000).propose(request(tmp_path))
        body = server.seen[0].body
    prompt = characters([{"role": "system", "content": body["instructions"]}, *body["input"]]) // 3
    lost = (prompt * 3.0 + 2000 * 10.0) / 1e6
    answered = (1000 * 3.0 + 200 * 10.0) / 1e6
    assert got.usage.lost == 1  # the 500 is not charged for
    assert got.usage.cost_usd == pytest.approx(lost + answered)
