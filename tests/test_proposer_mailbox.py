"""The mailbox: a person or an agent answers with a file; nothing half-written is taken, nothing is lost by a kill."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.requests import failing, request

from kgen.proposers import ProposalRequest
from kgen.proposers.answers import MAX_ANSWER_BYTES
from kgen.proposers.mailbox import MailboxProposer
from kgen.records import Verdict
from kgen.store.errors import StoreError

CODE = "import cutlass\n\n\ndef build(dims, tokens, arch):\n    return None\n"
ANSWER = f"An idea.\n\n```python\n{CODE}```\n"


def looking() -> MailboxProposer:
    """Looks once, does not wait."""
    return MailboxProposer(wait_s=0.0, settle_s=0.05)


def put(run: Path, name: str, data: str | bytes) -> Path:
    """As the prompt's instruction says: another name first, then rename."""
    path = run / "mailbox" / name
    temp = path.with_name(f"{name}.part")
    temp.write_bytes(data.encode() if isinstance(data, str) else data)
    return temp.rename(path)


def asked(run: Path) -> ProposalRequest:
    """A request whose prompt lies in the mailbox already."""
    question = request(run)
    assert not looking().propose(question).candidates
    return question


def test_the_prompt_is_written_and_the_file_to_write_is_named(tmp_path: Path) -> None:
    got = looking().propose(request(tmp_path))
    assert len(got) == 0
    assert str(tmp_path / "mailbox" / "0001-answer.md") in got.pending
    prompt = (tmp_path / "mailbox" / "0001-prompt.md").read_text()
    assert "The candidate contract" in prompt and "# Task: `moe_shared`" in prompt


@pytest.mark.parametrize(("name", "data"), [("0001-answer.md", ANSWER), ("0001-answer.py", CODE)])
def test_an_answer_becomes_a_candidate(name: str, data: str, tmp_path: Path) -> None:
    question = asked(tmp_path)
    put(tmp_path, name, data)
    got = looking().propose(question)
    (candidate,) = got
    assert candidate.source == CODE and not got.pending
    assert candidate.origin.proposer == "mailbox"
    assert candidate.origin.detail["answer"] == f"mailbox/{name}"
    assert len(candidate.origin.detail["prompt_sha256"]) == 64


def test_an_answer_that_comes_while_waiting_is_taken_before_the_deadline(tmp_path: Path) -> None:
    asked(tmp_path)
    writer = threading.Timer(0.4, put, (tmp_path, "0001-answer.md", ANSWER))
    writer.start()
    started = time.monotonic()
    got = MailboxProposer(settle_s=0.05).propose(request(tmp_path, deadline_s=20.0))
    writer.join()
    assert len(got) == 1
    assert time.monotonic() - started < 10.0


def test_waiting_ends_at_the_deadline_with_what_to_do(tmp_path: Path) -> None:
    started = time.monotonic()
    got = MailboxProposer(settle_s=0.05).propose(request(tmp_path, deadline_s=0.6))
    assert got.pending and 0.2 < time.monotonic() - started < 3.0


def test_a_file_that_still_grows_is_not_taken(tmp_path: Path) -> None:
    question = asked(tmp_path)
    path = tmp_path / "mailbox" / "0001-answer.py"
    done = threading.Event()

    def write_slowly() -> None:
        with path.open("w") as file:
            for line in (f"# part {i}\n" for i in range(12)):
                file.write(line)
                file.flush()
                time.sleep(0.05)
            file.write(CODE)
        done.set()

    writer = threading.Thread(target=write_slowly)
    writer.start()
    while not done.is_set():
        time.sleep(0.02)
        if path.exists() and not done.is_set():
            early = MailboxProposer(wait_s=0.0, settle_s=0.2).propose(question)
            assert not early.candidates or done.is_set()
    writer.join()
    (candidate,) = MailboxProposer(wait_s=0.0, settle_s=0.2).propose(question)
    assert candidate.source.endswith(CODE) and "# part 11" in candidate.source


def test_an_empty_file_is_no_answer_yet(tmp_path: Path) -> None:
    question = asked(tmp_path)
    put(tmp_path, "0001-answer.md", "")
    got = looking().propose(question)
    assert got.pending and not (tmp_path / "mailbox" / "0001-error.md").exists()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ("no code at all", "answer.no-code"),
        (ANSWER + ANSWER, "answer.blocks"),
        (ANSWER.removesuffix("```\n"), "answer.unclosed"),
        (b"```python\nx = '\xff'\n```\n", "answer.encoding"),
        (b"x" * (MAX_ANSWER_BYTES + 500), "answer.size"),
    ],
    ids=["no code", "two blocks", "cut", "not UTF-8", "too large"],
)
def test_a_malformed_answer_is_explained_in_a_file_and_may_be_replaced(
    data: str | bytes, code: str, tmp_path: Path
) -> None:
    question = asked(tmp_path)
    put(tmp_path, "0001-answer.md", data)
    got = looking().propose(question)
    assert len(got) == 0 and "0001-error.md" in got.pending
    assert (tmp_path / "mailbox" / "0001-error.md").read_text().startswith(code)
    put(tmp_path, "0001-answer.md", ANSWER)
    assert [c.source for c in looking().propose(question)] == [CODE]


def test_two_answers_to_one_question_are_refused(tmp_path: Path) -> None:
    question = asked(tmp_path)
    put(tmp_path, "0001-answer.md", ANSWER)
    put(tmp_path, "0001-answer.py", CODE)
    assert len(looking().propose(question)) == 0
    assert "keep one" in (tmp_path / "mailbox" / "0001-error.md").read_text()


@pytest.mark.parametrize("kind", ["link", "folder", "fifo"])
def test_only_regular_files_are_answers(kind: str, tmp_path: Path) -> None:
    question = asked(tmp_path)
    secret = tmp_path / "secret.py"
    secret.write_text(CODE)
    path = tmp_path / "mailbox" / "0001-answer.py"
    if kind == "link":
        path.symlink_to(secret)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    assert looking().propose(question).pending


def test_the_next_question_is_asked_once_the_answer_is_in_the_history(tmp_path: Path) -> None:
    question = asked(tmp_path)
    put(tmp_path, "0001-answer.md", ANSWER)
    (candidate,) = looking().propose(question)
    (again,) = looking().propose(question)  # killed before the loop stored it: handed out again
    assert again.id == candidate.id
    verdict = Verdict(candidate.id, (failing("it is slow", "perf.slow", "perf-sweep"),))
    history = ((candidate, verdict),)
    got = looking().propose(request(tmp_path, history=history))
    assert "0002-answer.md" in got.pending
    assert "perf.slow" in (tmp_path / "mailbox" / "0002-prompt.md").read_text()
    put(tmp_path, "0002-answer.md", ANSWER)
    refused = looking().propose(request(tmp_path, history=history))
    assert len(refused) == 0 and "0002-error.md" in refused.pending
    assert (tmp_path / "mailbox" / "0002-error.md").read_text().startswith("answer.duplicate")


def test_a_killed_wait_goes_on_with_the_same_question(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from support.requests import request; from kgen.proposers.mailbox import MailboxProposer\n"
        "MailboxProposer().propose(request(Path(sys.argv[1]), deadline_s=60.0))"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)])
    prompt = tmp_path / "mailbox" / "0001-prompt.md"
    while not prompt.exists() and child.poll() is None:
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    asked_before = prompt.read_bytes()
    put(tmp_path, "0001-answer.md", ANSWER)
    assert [c.source for c in looking().propose(request(tmp_path))] == [CODE]
    assert prompt.read_bytes() == asked_before
    assert sorted(p.name for p in (tmp_path / "mailbox").iterdir()) == ["0001-answer.md", "0001-prompt.md", "AGENTS.md"]


def test_a_run_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "mailbox").write_text("in the way")
    with pytest.raises(StoreError) as caught:
        looking().propose(request(tmp_path))
    assert "\n" not in str(caught.value) and "mailbox" in str(caught.value)
