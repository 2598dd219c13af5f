"""No byte of a key or password is ever written, logged or raised, whatever the endpoint does with it."""

import base64
import io
import logging
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import openai_server as srv
from support.requests import request

from kgen.proposers import Budget, Proposal, ProposerFailure, SetupError
from kgen.proposers.chat import Chat
from kgen.proposers.endpoint import Endpoint
from kgen.proposers.openai_chat import OpenAIProposer
from kgen.proposers.redact import MASK, MIN_SECRET, Redactor, shown_url
from kgen.records import canonical_json, to_json

pytestmark = pytest.mark.usefixtures("plain_http")
KEY = "sk-secret/0123+456789abcdef"
PASSWORD = "hunter2-p@ss"
QUOTED = "hunter2-p%40ss"

FAULTS = {
    "401 that echoes": srv.echo_key(401),
    "500 that echoes": srv.echo_key(500),
    "429 that echoes": srv.echo_key(429),
    "answer that echoes": srv.echo_key_in_answer(),
    "finish reason that echoes": lambda h: srv.ok(finish=h.authorization())(h),
    "content type that echoes": lambda h: h.reply(b"x", kind=f"text/{h.authorization().split()[-1]}"),
    "header that echoes": lambda h: srv.status(500, x_key=h.authorization())(h),
    "long echo, cut": lambda h: srv.status(400, "x" * 380 + h.authorization().split()[-1])(h),
    "stream error that echoes": lambda h: srv.sse({"error": {"message": h.authorization()}})(h),
    "reset": srv.reset(),
    "plain": srv.ok(),
}


def forms_of(secret: str) -> set[bytes]:
    raw = secret.encode()
    encoded = base64.b64encode(raw).rstrip(b"=")
    return {raw, encoded, encoded.replace(b"+", b"-").replace(b"/", b"_"), secret.replace("/", "%2F").encode()}


FORBIDDEN = forms_of(KEY) | forms_of(PASSWORD) | forms_of(f"user:{PASSWORD}") | {QUOTED.encode()}


def leaks(data: bytes) -> list[bytes]:
    return [form for form in FORBIDDEN if form in data]


def run_and_collect(server: srv.Server, run: Path, userinfo: str, stream: bool) -> tuple[bytes, Proposal | None]:
    """Everything that came out of one propose call: files, log of every library, exception with its chain, reprs."""
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    url = server.url.replace("://", f"://{userinfo}")
    endpoint = Endpoint(api_key=KEY, base_url=url, model="m", stream=stream)
    proposer, got, raised = OpenAIProposer(chat=Chat(endpoint, sleep=lambda _: None)), None, ""
    try:
        got = proposer.propose(request(run, budget=Budget(attempts=2)))
    except ProposerFailure as failure:
        raised = "".join(traceback.format_exception(failure)) + repr(failure) + repr(failure.__context__)
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
    shown = [log.getvalue(), raised, repr(proposer), repr(endpoint), str(endpoint), repr(endpoint.redactor)]
    written = [p.read_bytes() + p.name.encode() for p in sorted(run.rglob("*")) if p.is_file()]
    records = [canonical_json(to_json(c)) for c in (got or ())]
    return b"\0".join([text.encode() for text in shown] + written + records), got


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("userinfo", ["", f"user:{QUOTED}@"], ids=["key", "userinfo"])
def test_nothing_that_leaves_holds_key_bytes(name: str, stream: bool, userinfo: str, tmp_path: Path) -> None:
    with srv.serving(FAULTS[name]) as server:
        data, _ = run_and_collect(server, tmp_path, userinfo, stream)
        sent = server.seen[0].headers["authorization"]
    assert sent == (f"Basic {base64.b64encode(f'user:{PASSWORD}'.encode()).decode()}" if userinfo else f"Bearer {KEY}")
    assert not leaks(data)


def test_the_scanner_would_see_a_leak(tmp_path: Path) -> None:
    assert leaks(f"x {KEY} y".encode())
    assert leaks(b"Authorization: Basic " + base64.b64encode(f"user:{PASSWORD}".encode()))


def test_an_echoed_key_is_masked_in_the_kept_answer_and_the_candidate(tmp_path: Path) -> None:
    with srv.serving(srv.echo_key_in_answer()) as server:
        _, got = run_and_collect(server, tmp_path, "", stream=False)
    assert got and f"# {MASK}" in got.candidates[0].source
    assert MASK in (tmp_path / "answers" / "0001.md").read_text()


def test_the_key_does_not_follow_a_redirect_to_another_host(tmp_path: Path) -> None:
    with srv.serving(srv.ok()) as other:
        elsewhere = other.url.replace("127.0.0.1", "localhost") + "/chat/completions"
        with srv.serving(srv.redirect(elsewhere)) as server:
            data, _ = run_and_collect(server, tmp_path, "", stream=False)
    assert len(other.seen) == 1
    assert not leaks(repr([s.headers for s in other.seen]).encode())
    assert not leaks(data)


@pytest.mark.parametrize(
    ("env", "names"),
    [
        ({}, "OPENAI_API_KEY"),
        ({"OPENAI_API_KEY": "  "}, "OPENAI_API_KEY"),
        ({"OPENAI_API_KEY": "two words secret1"}, "OPENAI_API_KEY"),
        ({"OPENAI_API_KEY": "schlüssel-secret1"}, "OPENAI_API_KEY"),
        ({"OPENAI_API_KEY": "k" * 9, "OPENAI_BASE_URL": "ftp://u:secret1@h"}, "OPENAI_BASE_URL"),
        ({"OPENAI_API_KEY": "k" * 9, "OPENAI_BASE_URL": "http://u:secret1@h:port"}, "OPENAI_BASE_URL"),
        ({"OPENAI_API_KEY": "k" * 9, "OPENAI_BASE_URL": "http://[u:secret1@"}, "OPENAI_BASE_URL"),
        ({"OPENAI_API_KEY": "k" * 9, "KGEN_MAX_TOKENS": "secret1"}, "KGEN_MAX_TOKENS"),
        ({"OPENAI_API_KEY": "k" * 9, "KGEN_TEMPERATURE": "nan"}, "KGEN_TEMPERATURE"),
        ({"OPENAI_API_KEY": "k" * 9, "KGEN_PRICE_IN": "-1"}, "KGEN_PRICE_IN"),
    ],
)
def test_bad_settings_are_one_line_that_names_the_variable_and_no_secret(env: dict[str, str], names: str) -> None:
    with pytest.raises(SetupError) as caught:
        Endpoint.from_env(env)
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret1" not in "".join(traceback.format_exception(caught.value))


def test_a_proposer_is_made_without_a_key_and_without_loading_the_client() -> None:
    code = (
        "import sys; from kgen.proposers.openai_chat import OpenAIProposer; OpenAIProposer();"
        "assert 'openai' not in sys.modules; assert 'cutlass' not in sys.modules"
    )
    subprocess.run([sys.executable, "-I", "-c", code], check=True, timeout=60)


def test_openai_itself_is_asked_with_the_field_that_its_models_take() -> None:
    assert Endpoint(api_key=KEY).tokens_field == "max_completion_tokens"
    assert Endpoint(api_key=KEY, base_url="https://openai.com.example/v1").tokens_field == "max_tokens"


SECRETS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=MIN_SECRET, max_size=40)


@given(secret=SECRETS, before=st.text(max_size=30), after=st.text(max_size=30))
def test_a_known_secret_never_survives_redaction(secret: str, before: str, after: str) -> None:
    out = Redactor([secret]).text(before + secret + after)
    assert secret not in out.replace(MASK, "\0")


@given(st.text(max_size=200))
def test_text_without_secrets_is_left_as_it_is(text: str) -> None:
    if "://" not in text and "uthorization" not in text.lower():
        assert Redactor(["s3cret-value-that-is-absent"]).text(text) == text


@given(user=SECRETS, password=SECRETS)
def test_a_shown_url_has_no_userinfo(user: str, password: str) -> None:
    from urllib.parse import quote

    name, word = quote(user, safe=""), quote(password, safe="")
    url = f"https://{name}:{word}@host.example:8443/v1?token={word}"
    assert shown_url(url) == "https://host.example:8443/v1"
