"""Replay gives recorded answers again, in order, marked as replayed; choose picks a proposer and says why."""

from pathlib import Path

import pytest
from support import openai_server as srv
from support.requests import attempt, failing, request

from kgen.proposers import ProposerExhausted, SetupError
from kgen.proposers.chat import Chat
from kgen.proposers.choose import MAKERS, choose
from kgen.proposers.endpoint import Endpoint
from kgen.proposers.openai_chat import OpenAIProposer
from kgen.proposers.replay import ReplayProposer
from kgen.records import Candidate, Origin
from kgen.store.candidates import candidate_files, folder_name

SOURCES = [f"x = {i}\n{srv.CODE}" for i in range(3)]


def recorded_by_openai(run: Path) -> None:
    """A real run of the openai proposer with one unusable answer among the good ones."""
    good = [srv.ok(srv.answer(source)) for source in SOURCES]
    with srv.serving(good[0], srv.ok("no code"), *good[1:]) as server:
        chat = Chat(Endpoint(api_key="k" * 12, base_url=server.url, model="m"))
        OpenAIProposer(chat=chat).propose(request(run, count=3))


def recorded_by_mailbox(run: Path) -> None:
    for number, source in enumerate(SOURCES, 1):
        path = run / "mailbox" / f"{number:04d}-answer.{'py' if number == 2 else 'md'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source if number == 2 else srv.answer(source))


def recorded_as_candidates(run: Path) -> None:
    for number, source in enumerate(SOURCES, 1):
        candidate = Candidate("moe_shared", source, Origin("search", {"seed": 7}))
        folder = run / folder_name(number, candidate)
        folder.mkdir(parents=True)
        for name, (data, _) in candidate_files(candidate).items():
            (folder / name).write_bytes(data)


RECORDERS = [recorded_by_openai, recorded_by_mailbox, recorded_as_candidates]


@pytest.mark.parametrize("record", RECORDERS, ids=lambda f: f.__name__)
def test_a_recording_is_given_again_in_order_and_marked(record: object, tmp_path: Path) -> None:
    assert callable(record)
    record(tmp_path / "old")
    got = ReplayProposer(tmp_path / "old").propose(request(tmp_path / "new", count=9))
    assert [c.source for c in got] == SOURCES
    for candidate in got:
        assert candidate.origin.proposer == "replay"
        assert candidate.origin.detail["run"] == "old"
        assert len(candidate.origin.detail["answer_sha256"]) == 64


@pytest.mark.parametrize("record", RECORDERS, ids=lambda f: f.__name__)
def test_a_resumed_replay_goes_on_after_what_is_in_the_history_and_ends(record: object, tmp_path: Path) -> None:
    assert callable(record)
    record(tmp_path / "old")
    replay = ReplayProposer(tmp_path / "old")
    history = tuple(attempt(source, failing("m")) for source in SOURCES[:2])
    assert [c.source for c in replay.propose(request(tmp_path / "new", history=history))] == SOURCES[2:]
    with pytest.raises(ProposerExhausted, match="all 3 recorded answers"):
        replay.propose(request(tmp_path / "new", history=(*history, attempt(SOURCES[2], failing("m")))))


def test_the_recorded_origin_of_an_answer_is_kept(tmp_path: Path) -> None:
    recorded_by_openai(tmp_path)
    (candidate,) = ReplayProposer(tmp_path).propose(request(tmp_path))
    assert candidate.origin.detail["recorded"]["proposer"] == "openai"
    assert candidate.origin.detail["recorded"]["model"] == "m"


def test_a_recording_of_another_op_or_none_is_one_clear_line(tmp_path: Path) -> None:
    recorded_by_openai(tmp_path)
    with pytest.raises(SetupError, match="attn_res"):
        ReplayProposer(tmp_path).propose(request(tmp_path, "attn_res"))
    with pytest.raises(SetupError, match="not a run folder"):
        ReplayProposer(tmp_path / "missing").propose(request(tmp_path))


def test_openai_is_the_default_with_a_key_and_search_without() -> None:
    keyed = choose(env={"OPENAI_API_KEY": "sk-0123456789", "KGEN_MODEL": "m7", "OPENAI_BASE_URL": "http://u:pw@h/v1"})
    assert keyed.proposer.name == "openai"
    assert keyed.line == "proposer: openai (OPENAI_API_KEY is set): model m7 at http://h/v1"
    plain = choose(env={"OPENAI_API_KEY": " "})
    assert plain.proposer.name == "search"
    assert "OPENAI_API_KEY is not set" in plain.line and "\n" not in plain.line


@pytest.mark.parametrize("name", list(MAKERS))
def test_every_proposer_can_be_named(name: str, tmp_path: Path) -> None:
    source = tmp_path
    if name == "tune":  # takes a file, the others a run's folder or nothing
        source = tmp_path / "candidate.py"
        source.write_text('TUNABLES = {"THREADS": (128, 256)}\nTHREADS = 128\n')
    chosen = choose(name, {"OPENAI_API_KEY": "sk-0123456789"}, source)
    assert chosen.proposer.name == name
    assert chosen.line.startswith(f"proposer: {name}:")


UNWORKABLE = [("serch", "known: search, openai, mailbox, replay"), ("replay", "--replay"), ("openai", "OPENAI_")]


@pytest.mark.parametrize(("name", "says"), UNWORKABLE)
def test_a_choice_that_cannot_work_is_one_line(name: str, says: str) -> None:
    with pytest.raises(SetupError, match=says):
        choose(name, {})
