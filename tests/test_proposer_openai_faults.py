"""What the openai proposer does with an endpoint's faults: a real client against a real server, one row a fault.

The same file runs a second time under the oldest supported openai release (test_proposer_openai_2x.py).
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from support import openai_server as srv
from support.requests import attempt, failing, request

from kgen.proposers import BudgetError, ProposerError, ProposerExhausted, SetupError
from kgen.proposers.base import Budget
from kgen.proposers.chat import MAX_ATTEMPTS, MAX_REPLY_BYTES, Chat
from kgen.proposers.endpoint import Endpoint
from kgen.proposers.openai_chat import OpenAIProposer
from kgen.proposers.transcript import Transcript

pytestmark = pytest.mark.usefixtures("plain_http")
KEY = "sk-test-0123456789abcdefghijk"
RETRIED, FATAL, MODEL = "retried", "fatal", "told to the model"


def proposer(server: srv.Server, pauses: list[float] | None = None, **settings: Any) -> OpenAIProposer:
    """The shipped proposer; pauses between retries are noted instead of slept."""
    endpoint = Endpoint(api_key=KEY, base_url=server.url, model="m", **settings)
    return OpenAIProposer(chat=Chat(endpoint, sleep=(pauses if pauses is not None else []).append))


@dataclass(frozen=True)
class Row:
    name: str
    behaviour: Callable[[], srv.Behaviour]
    effect: str
    says: str  # in the exception, or the code that the transcript records
    stream: bool = False


HTML = b"<html><body>Welcome to the captive portal</body></html>"
WHOLE = srv.chunk(srv.answer())
TABLE = (
    Row("429", lambda: srv.status(429), RETRIED, "429"),
    Row("429 without quota", lambda: srv.status(429, error_code="insufficient_quota"), FATAL, "quota"),
    Row("500", lambda: srv.status(500), RETRIED, "500"),
    Row("503", lambda: srv.status(503), RETRIED, "503"),
    Row("408", lambda: srv.status(408), RETRIED, "408"),
    Row("400", lambda: srv.status(400, "context too long"), FATAL, "context too long"),
    Row("401", lambda: srv.status(401), FATAL, "OPENAI_API_KEY"),
    Row("403", lambda: srv.status(403), FATAL, "403"),
    Row("404", lambda: srv.status(404), FATAL, "KGEN_MODEL"),
    Row("422", lambda: srv.status(422), FATAL, "422"),
    Row("body cut", srv.cut_body, RETRIED, "peer closed connection"),
    Row("connection reset", srv.reset, RETRIED, "connection failed"),
    Row("200 and bad JSON", lambda: srv.raw_body(b'{"choices": [{"mess'), RETRIED, "not JSON"),
    Row("200 and empty", lambda: srv.raw_body(b""), RETRIED, "not JSON"),
    Row("200 and HTML", lambda: srv.raw_body(HTML, "text/html"), RETRIED, "text/html"),
    Row("200 and a JSON string", lambda: srv.json_body("hello"), RETRIED, "no choices"),
    Row("200 and deep JSON", lambda: srv.raw_body(b"[" * 100_000), RETRIED, "not JSON"),
    Row("no choices key", lambda: srv.json_body({"id": "x"}), RETRIED, "no choices"),
    Row("choices []", lambda: srv.json_body({"choices": []}), RETRIED, "no choices"),
    Row("choices of a wrong type", lambda: srv.json_body({"choices": "stop"}), RETRIED, "no choices"),
    Row("choice of a wrong type", lambda: srv.json_body({"choices": ["stop"]}), RETRIED, "no choices"),
    Row("message of a wrong type", lambda: srv.json_body({"choices": [{"message": 3}]}), RETRIED, "no message"),
    Row("null content", srv.null_content, RETRIED, "NoneType"),
    Row("content a number", lambda: srv.ok(7), RETRIED, "int"),
    Row("content a list", lambda: srv.ok([{"type": "text", "text": "x"}]), RETRIED, "list"),
    Row("finish_reason null", lambda: srv.ok(finish=None), RETRIED, "finish_reason"),
    Row("finish_reason a number", lambda: srv.ok(finish=1), RETRIED, "finish_reason"),
    Row("finish_reason length", lambda: srv.ok(finish="length"), MODEL, "answer.truncated"),
    Row(
        "length before any content",
        lambda: srv.json_body(srv.completion(None, "length")),
        MODEL,
        "answer.truncated",
    ),
    Row("content filter", lambda: srv.ok(finish="content_filter"), MODEL, "answer.refused"),
    Row("tool calls", lambda: srv.ok(finish="tool_calls"), MODEL, "answer.unfinished"),
    Row(
        "refusal",
        lambda: srv.json_body(srv.completion(None, "stop", refusal="I cannot")),
        MODEL,
        "answer.refused",
    ),
    Row("60 MiB content", lambda: srv.ok("x" * (60 << 20)), MODEL, "answer.size"),
    Row("10 MB content", lambda: srv.ok("x" * 10_000_000), MODEL, "answer.size"),
    Row("3 MB content", lambda: srv.ok("x" * 3_000_000), MODEL, "answer.size"),
    Row("lone surrogate", lambda: srv.ok(srv.answer("a = '\ud800'\n")), MODEL, "answer.encoding"),
    Row("no code", lambda: srv.ok("I would use wgmma."), MODEL, "answer.no-code"),
    Row("two code blocks", lambda: srv.ok(srv.answer() + srv.answer()), MODEL, "answer.blocks"),
    Row("empty answer", lambda: srv.ok(""), MODEL, "answer.no-code"),
    Row("SSE: cut in the middle", lambda: srv.sse(WHOLE, end=False), RETRIED, "finish_reason", stream=True),
    Row("SSE: done without a reason", lambda: srv.sse(WHOLE), RETRIED, "finish_reason", stream=True),
    Row("SSE: bad chunk", lambda: srv.sse(WHOLE, "{not json"), RETRIED, "JSONDecodeError", stream=True),
    Row(
        "SSE: error chunk",
        lambda: srv.sse(WHOLE, {"error": {"message": "overloaded"}}),
        RETRIED,
        "overloaded",
        stream=True,
    ),
    Row("SSE: a chunk that is no object", lambda: srv.sse('"x"', "[1]"), RETRIED, "finish_reason", stream=True),
    Row("SSE: content a number", lambda: srv.sse(srv.chunk(5, "stop")), RETRIED, "int", stream=True),
    Row("SSE: HTML", lambda: srv.raw_body(HTML, "text/html"), RETRIED, "finish_reason", stream=True),
    Row("SSE: length", lambda: srv.sse(WHOLE, srv.chunk(None, "length")), MODEL, "answer.truncated", stream=True),
    Row("SSE: huge", lambda: srv.sse(*[srv.chunk("x" * (1 << 20))] * 9), MODEL, "answer.size", stream=True),
    Row("SSE: 500", lambda: srv.status(500), RETRIED, "500", stream=True),
)


def test_the_release_under_test_is_the_wanted_one() -> None:
    wanted = os.environ.get("KGEN_TEST_OPENAI_MAJOR", "")
    assert openai.__version__.startswith(wanted)
    assert int(openai.__version__.split(".")[0]) in (2, 3)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_fault_ends_as_the_table_says(row: Row, tmp_path: Path) -> None:
    pauses: list[float] = []
    with serving_once_then_good(row) as server:
        recovered = proposer(server, pauses, stream=row.stream)
        if row.effect == FATAL:
            with pytest.raises(SetupError, match=row.says):
                recovered.propose(request(tmp_path))
            assert len(server.seen) == 1
            assert not pauses
        else:
            got = recovered.propose(request(tmp_path))
            assert [c.source for c in got] == [srv.CODE]
            assert got.usage.attempts == len(server.seen) == 2
            assert len(pauses) == (1 if row.effect == RETRIED else 0)
            outcomes = [entry[0].outcome for entry in entries(tmp_path)]
            assert outcomes == ([row.says] if row.effect == MODEL else []) + [f"candidate {got.candidates[0].id}"]


LASTING = (  # one row of each mechanism
    *("429", "500", "body cut", "connection reset", "200 and bad JSON", "200 and HTML", "choices []", "null content"),
    *("finish_reason length", "60 MiB content", "no code"),
    *("SSE: cut in the middle", "SSE: bad chunk", "SSE: error chunk"),
)


@pytest.mark.parametrize("row", [r for r in TABLE if r.name in LASTING], ids=lambda row: row.name)
def test_a_fault_that_stays_ends_after_a_bounded_number_of_requests(row: Row, tmp_path: Path) -> None:
    with srv.serving(row.behaviour()) as server:
        if row.effect == RETRIED:
            with pytest.raises(ProposerError, match=row.says) as caught:
                proposer(server, stream=row.stream).propose(request(tmp_path))
            assert len(server.seen) == caught.value.usage.attempts == MAX_ATTEMPTS
            assert not entries(tmp_path)
        else:
            with pytest.raises(ProposerExhausted, match=row.says) as exhausted:
                proposer(server, stream=row.stream).propose(request(tmp_path))
            assert len(server.seen) == exhausted.value.usage.attempts == 3
            assert [entry[0].outcome for entry in entries(tmp_path)] == [row.says] * 3


def serving_once_then_good(row: Row) -> Any:
    good = srv.sse(WHOLE, srv.chunk(None, "stop"), srv.usage_chunk()) if row.stream else srv.ok()
    return srv.serving(row.behaviour(), good)


def entries(run: Path) -> list[Any]:
    transcript = Transcript(run)
    return [entry for n in transcript.numbers() if (entry := transcript.read(n))]


def test_the_table_holds_every_row_of_the_measured_faults() -> None:
    assert {r.effect for r in TABLE} == {RETRIED, FATAL, MODEL}
    names = {r.name for r in TABLE}
    assert len(names) == len(TABLE) and set(LASTING) <= names
    assert MAX_REPLY_BYTES < 10_000_000


@pytest.mark.parametrize("behaviour", [srv.drip, srv.silent], ids=["drip", "silence"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_deadline_is_total_not_per_read(behaviour: Any, stream: bool, tmp_path: Path) -> None:
    with srv.serving(behaviour()) as server:
        started = time.monotonic()
        with pytest.raises(ProposerError, match=r"no complete answer within|connection failed"):
            proposer(server, stream=stream).propose(request(tmp_path, deadline_s=0.8))
        assert time.monotonic() - started < 2.5
        assert len(server.seen) == 1


def test_retry_after_is_waited_for_when_the_deadline_allows_it(tmp_path: Path) -> None:
    pauses: list[float] = []
    script = (srv.status(429, retry_after="7"), srv.status(429, retry_after_ms="250"), srv.ok())
    with srv.serving(*script) as server:
        proposer(server, pauses).propose(request(tmp_path))
    assert pauses == [7.0, 0.25]


def test_retry_after_as_a_date_is_understood(tmp_path: Path) -> None:
    import email.utils

    pauses: list[float] = []
    soon = email.utils.formatdate(time.time() + 9, usegmt=True)
    with srv.serving(srv.status(503, retry_after=soon), srv.ok()) as server:
        proposer(server, pauses).propose(request(tmp_path))
    assert 6.0 < pauses[0] <= 9.0


@pytest.mark.parametrize("value", ["-5", "nan", "soon", "1e999", ""])
def test_a_nonsense_retry_after_falls_back_to_the_own_pause(value: str, tmp_path: Path) -> None:
    pauses: list[float] = []
    with srv.serving(srv.status(429, retry_after=value), srv.ok()) as server:
        proposer(server, pauses).propose(request(tmp_path))
    assert pauses == [0.5]


def test_a_retry_after_beyond_the_deadline_ends_at_once_and_says_so(tmp_path: Path) -> None:
    with srv.serving(srv.status(429, retry_after="600")) as server:
        with pytest.raises(ProposerError, match="asks to wait 600 s"):
            proposer(server).propose(request(tmp_path))
        assert len(server.seen) == 1


def test_nobody_listening_is_an_infrastructure_error(tmp_path: Path) -> None:
    with srv.serving(srv.ok()) as server:
        gone = server
    with pytest.raises(ProposerError, match="connection failed"):
        proposer(gone).propose(request(tmp_path))


def test_a_stream_is_put_together_and_its_tokens_counted(tmp_path: Path) -> None:
    text = srv.answer()
    script = srv.sse(*[srv.chunk(c) for c in text], srv.chunk(None, "stop"), srv.usage_chunk())
    with srv.serving(script) as server:
        got = proposer(server, stream=True).propose(request(tmp_path))
        assert server.seen[0].body["stream"] is True
    assert got.candidates[0].source == srv.CODE
    assert (got.usage.prompt_tokens, got.usage.completion_tokens, got.usage.estimated) == (7, 5, False)


NONSENSE: tuple[Any, ...] = ({}, "many", {"prompt_tokens": -4, "completion_tokens": True}, {"prompt_tokens": 1e99})


@pytest.mark.parametrize("usage", NONSENSE)
def test_unusable_token_counts_are_estimated(usage: Any, tmp_path: Path) -> None:
    with srv.serving(srv.ok(usage=usage)) as server:
        got = proposer(server, price_in=1.0, price_out=10.0).propose(request(tmp_path))
    assert got.usage.estimated
    assert got.usage.prompt_tokens > 1000
    assert got.usage.cost_usd is not None and got.usage.cost_usd > 0


def test_the_cost_is_tokens_times_price_over_all_answers(tmp_path: Path) -> None:
    with srv.serving(srv.ok("no code"), srv.ok()) as server:
        got = proposer(server, price_in=2.0, price_out=10.0).propose(request(tmp_path))
    assert got.usage.cost_usd == pytest.approx(2 * (1000 * 2.0 + 200 * 10.0) / 1e6)
    assert (got.usage.prompt_tokens, got.usage.completion_tokens, got.usage.attempts) == (2000, 400, 2)


@pytest.mark.parametrize(
    "budget", [Budget(tokens=30_000), Budget(attempts=2), Budget(cost_usd=0.3)], ids=["tokens", "attempts", "cost"]
)
def test_the_budget_ends_the_asking_and_what_was_found_is_kept(budget: Budget, tmp_path: Path) -> None:
    codes = iter(range(100))
    used = {"prompt_tokens": 1000, "completion_tokens": 2500}

    def fresh(handler: srv.Handler) -> None:
        srv.ok(srv.answer(f"x = {next(codes)}\n{srv.CODE}"), usage=used)(handler)

    with srv.serving(fresh) as server:
        asked = proposer(server, price_in=10.0, price_out=40.0)
        got = asked.propose(request(tmp_path, count=9, budget=budget))
        assert 0 < len(got) < 9
        assert "spent" in got.note
        for seen in server.seen if budget.tokens or budget.cost_usd else ():
            assert seen.body["max_tokens"] < Endpoint(api_key=KEY).max_tokens
        with pytest.raises(BudgetError):
            asked.propose(request(tmp_path / "other", count=1, budget=Budget(tokens=5)))


def test_a_cost_limit_without_prices_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with srv.serving(srv.ok()) as server:
        with pytest.raises(SetupError, match="KGEN_PRICE_IN"):
            proposer(server).propose(request(tmp_path, budget=Budget(cost_usd=1.0)))
        assert not server.seen


def test_a_malformed_answer_is_explained_to_the_model(tmp_path: Path) -> None:
    with srv.serving(srv.ok("Use mma."), srv.ok()) as server:
        proposer(server).propose(request(tmp_path))
        roles = [m["role"] for m in server.seen[1].body["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert "no Python code block" in server.seen[1].body["messages"][-1]["content"]
    assert server.seen[1].body["messages"][2]["content"] == "Use mma."


def test_an_answer_that_was_already_tried_is_sent_back(tmp_path: Path) -> None:
    other = f"x = 1\n{srv.CODE}"
    with srv.serving(srv.ok(), srv.ok(srv.answer(other))) as server:
        history = (attempt(srv.CODE, failing("slow")),)
        got = proposer(server).propose(request(tmp_path, history=history))
        assert len(server.seen) == 2
    assert [c.source for c in got] == [other]
    assert entries(tmp_path)[0][0].outcome == "answer.duplicate"


def test_candidates_found_before_a_failure_are_kept(tmp_path: Path) -> None:
    with srv.serving(srv.ok(), srv.status(401)) as server:
        got = proposer(server).propose(request(tmp_path, count=3))
    assert len(got) == 1
    assert "401" in got.note


def test_an_answer_kept_before_a_crash_is_not_bought_twice(tmp_path: Path) -> None:
    with srv.serving(srv.ok()) as server:
        first = proposer(server).propose(request(tmp_path))
        again = proposer(server).propose(request(tmp_path))  # the loop died before it stored the candidate
        assert len(server.seen) == 1
        assert [c.id for c in again] == [c.id for c in first]
        assert again.usage.attempts == 0
        (tmp_path / "answers" / "0001.md").write_text("damaged")
        proposer(server).propose(request(tmp_path))
        assert len(server.seen) == 2


def test_the_origin_says_model_prompt_and_answer(tmp_path: Path) -> None:
    with srv.serving(srv.ok()) as server:
        candidate = proposer(server).propose(request(tmp_path)).candidates[0]
    detail = candidate.origin.detail
    assert candidate.origin.proposer == "openai"
    assert detail["model"] == "m"
    assert detail["template"] == "propose.md"
    assert (tmp_path / detail["answer"]).read_text() == srv.answer()
    assert all(len(detail[k]) == 64 for k in ("templates_sha256", "prompt_sha256", "answer_sha256"))


def test_retries_are_told_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kgen.proposers"), srv.serving(srv.status(500), srv.ok()) as server:
        proposer(server).propose(request(tmp_path))
    assert "500" in caplog.text
