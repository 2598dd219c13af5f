"""Whole runs of `kgen propose` with the proposers that write or repeat: openai, mailbox, replay.

The command is a process of its own, the endpoint a real HTTP server, the compiler and the sandbox are the real ones. A
broken kernel comes first and the worked example of docs/ second. Not covered here: faults of endpoints, half-written
answers (test_proposer_*).
"""

import base64
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import openai_server as srv
from support.loops import SECONDS, kgen, only_json, started, the_run

from kgen.loop.rounds import read_rounds
from kgen.store import Run, Runs

GOOD = (Path(__file__).parents[1] / "docs/examples/moe_shared.py").read_text()
WORD = "no_such_reduction"
BROKEN = GOOD.replace("warp_reduction_sum", WORD)
POINT = ("--op", "moe_shared", "--arch", "sm_90a", "--dims", "nano", "--tokens", "1")
KEY = "sk-secret/0123+456789abcdef"
STAGED = ["compile.pass", "numeric.ptx_pass", "fullmodel.no_gpu", "perf.no_gpu"]
BUILT = ["compile.pass", "numeric.no_gpu", *STAGED[2:]]  # with --no-interpret


@dataclass(frozen=True)
class Asked:
    """A finished run of the openai proposer: what it left, said and sent."""

    home: Path
    run: Run
    stdout: str
    stderr: str
    seen: list[srv.Seen]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, kept: Path) -> Iterator[Asked]:
    """What the command builds goes into the cache of the session, where other files want the same."""
    home = tmp_path_factory.mktemp("asked")
    script = [srv.ok(srv.answer(BROKEN)), srv.ok(srv.answer(GOOD, intro=f"As you said. {KEY}"))]
    with srv.serving(*script) as server:
        prices = {"KGEN_MODEL": "m7", "KGEN_PRICE_IN": "2", "KGEN_PRICE_OUT": "10"}
        endpoint = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.url, **prices}
        done = kgen(home, "propose", *POINT, "--max-usd", "1", **endpoint, KGEN_CACHE=str(kept))
        assert done.returncode == 0, done.stderr
        yield Asked(home, the_run(home), done.stdout, done.stderr, server.seen)


def codes(run: Run) -> list[list[str]]:
    verdicts = [folder.verdict() for folder in run.folders()]
    return [[r.code for r in v.results] for v in verdicts if v is not None]


def sources(run: Run) -> list[str]:
    return [folder.candidate().source for folder in run.folders()]


def test_a_model_repairs_its_kernel_after_the_compilers_words(asked: Asked) -> None:
    assert sources(asked.run) == [BROKEN, GOOD]
    assert codes(asked.run) == [["compile.name"], STAGED]
    assert asked.run.info.outcome == "staged"
    assert "proposer: openai (OPENAI_API_KEY is set): model m7 at http://127.0.0.1" in asked.stderr


def test_the_second_question_holds_the_failure_and_the_source_that_failed(asked: Asked) -> None:
    assert len(asked.seen) == 2
    first, second = ("\n".join(m["content"] for m in seen.body["messages"]) for seen in asked.seen)
    failed = asked.run.folders()[0]
    result = failed.result("compile")
    assert result is not None and WORD in result.message
    assert WORD not in first
    for part in (result.code, result.message, failed.short_id, BROKEN.strip()):
        assert part in second


def test_tokens_and_cost_of_every_question_are_recorded_and_reported(asked: Asked) -> None:
    usages = [r.usage for r in read_rounds(asked.run)]
    assert [(u["prompt_tokens"], u["completion_tokens"], u["estimated"]) for u in usages] == [(1000, 200, False)] * 2
    assert [u["cost_usd"] for u in usages] == [pytest.approx(0.004)] * 2
    report = kgen(asked.home, "report", asked.run.id).stdout
    assert "| proposals | 2 requests, 2000 + 400 tokens, 0.008 USD, " in report
    assert "openai: m7" in report and "`compile.name` AttributeError: module 'cutlass.cute.arch' has no" in report


def content(path: Path) -> bytes:
    """Empty where another process has put its name in place meanwhile, under which it is found."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def test_the_key_is_nowhere_on_disk_nor_in_what_is_shown(asked: Asked, kept: Path) -> None:
    encoded = base64.b64encode(KEY.encode()).rstrip(b"=")
    assert all(seen.headers["authorization"] == f"Bearer {KEY}" for seen in asked.seen)
    files = [path for folder in (asked.home, kept) for path in folder.rglob("*") if path.is_file()]
    assert any(path.is_relative_to(kept) and path.suffix == ".json" for path in files)
    assert any("answers" in path.parts for path in files)
    for data in (*map(content, files), asked.stdout.encode(), asked.stderr.encode()):
        assert KEY.encode() not in data and encoded not in data


def test_replay_of_a_models_run_proposes_and_judges_the_same_again(asked: Asked, kept: Path) -> None:
    report = kgen(asked.home, "report", asked.run.id).stdout
    again = next(line for line in report.splitlines() if line.endswith(f" --replay {asked.run.id}"))
    done = kgen(asked.home, *shlex.split(again)[1:], "--json", KGEN_CACHE=str(kept))
    assert done.returncode == 0, done.stderr
    replayed = Runs(asked.home / "runs").find(only_json(done.stdout)["run"]["id"])
    assert replayed.id != asked.run.id and replayed.info.settings["proposer"] == "replay"
    assert sources(replayed) == [BROKEN, GOOD]
    assert codes(replayed) == codes(asked.run)


def test_what_was_paid_before_an_interruption_still_counts_towards_the_cost_limit(tmp_path: Path) -> None:
    dear = {"prompt_tokens": 450_000, "completion_tokens": 0, "total_tokens": 450_000}
    with srv.serving(srv.ok("no code", usage=dear), srv.status(401)) as server:
        endpoint = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.url}
        prices = {"KGEN_PRICE_IN": "2", "KGEN_PRICE_OUT": "10"}
        assert kgen(tmp_path, "propose", *POINT, "--max-usd", "1", **endpoint, **prices).returncode == 3
        assert kgen(tmp_path, "resume", **endpoint, **prices).returncode == 3
        asked_for = [seen.body["max_tokens"] for seen in server.seen]
    assert len(asked_for) == 3 and asked_for[0] == 32_000
    assert max(asked_for[1:]) <= 10_000  # 0.10 USD are left, and the prompt has to be paid from them too


def answered(home: Path, number: int, name: str, text: str) -> str:
    """Wait for the prompt of a run's mailbox, answer it as its instruction says, return the prompt."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for run in Runs(home / "runs").list():
            prompt = run.path / "mailbox" / f"{number:04d}-prompt.md"
            if prompt.exists():
                part = prompt.with_name(f"{name}.part")
                part.write_text(text)
                part.rename(prompt.with_name(name))
                return prompt.read_text()
        time.sleep(0.05)
    raise AssertionError(f"no prompt {number}")


def test_a_mailbox_run_is_answered_by_files_and_can_be_replayed_into_another_folder(tmp_path: Path, kept: Path) -> None:
    cache = {"KGEN_CACHE": str(kept)}
    process = started(tmp_path, "propose", *POINT, "--no-interpret", "--proposer", "mailbox", **cache)
    try:
        answered(tmp_path, 1, "0001-answer.py", BROKEN)
        second = answered(tmp_path, 2, "0002-answer.md", srv.answer(GOOD))
        _, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, err
    run = the_run(tmp_path)
    assert codes(run) == [["compile.name"], BUILT]
    assert WORD in second and "compile.name" in second
    assert "0001-prompt.md" in err and "0002-prompt.md" in err
    elsewhere = tmp_path / "my runs"
    where = ("--replay", str(run.path), "--runs", str(elsewhere))
    done = kgen(tmp_path, "propose", *POINT, "--no-interpret", *where, **cache)
    assert done.returncode == 0, done.stderr
    (replayed,) = Runs(elsewhere).list()
    assert sources(replayed) == [BROKEN, GOOD]
    following = next(line for line in done.stdout.splitlines() if line.startswith("next: "))
    assert shlex.split(following)[1:] == ["kgen", "kit", replayed.id, "-o", "kit.pyz", "--runs", str(elsewhere)]
