"""A whole run of `kgen propose --mailbox DIR`: an agent sees that folder only, the run keeps its own copy and replays.

The command is a process of its own and is killed while it waits. Not covered: the prompts' text (test_prompts_*).
"""

import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.loops import FORBIDDEN, SECONDS, called, kgen, source, started, the_run

from kgen.diagnosis.static import SMALL
from kgen.loop.building import quick_result
from kgen.loop.rounds import read_rounds
from kgen.store import Run

POINT = ("--op", "moe_shared", "--arch", "sm_90a", "--dims", "nano", "--tokens", "1", "--no-interpret")
RIGHT = source("from a folder")


@dataclass(frozen=True)
class Desk:
    """`desk` is what the agent saw; `first` its names before any answer; `done` the resumed command."""

    home: Path
    desk: Path
    first: set[str]
    done: "subprocess.CompletedProcess[str]"

    @property
    def run(self) -> Run:
        return the_run(self.home)


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir() if p.name != ".kgen-mailbox"} if folder.is_dir() else set()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    home, desk = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("agent") / "desk"
    more = ("--mailbox", str(desk), "--rounds", "1", "--candidates", "2", "--quiet")
    process = started(home, "propose", *POINT, *more)
    while not {"0001-prompt.md", "0002-prompt.md"} <= names(desk) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=SECONDS)
    first = names(desk)
    for number, text in ((2, RIGHT), (1, FORBIDDEN)):  # in any order, while nobody listens
        (desk / "draft").write_text(text)
        (desk / "draft").rename(desk / f"000{number}-answer.py")
    return Desk(home, desk, first, kgen(home, "resume"))


def test_the_empty_folder_gets_the_guide_and_all_questions_of_the_round(finished: Desk) -> None:
    assert finished.first == {"AGENTS.md", "0001-prompt.md", "0002-prompt.md"}
    guide = (finished.desk / "AGENTS.md").read_text()
    assert finished.run.id in guide and "0001-answer.py" in guide


def test_a_killed_run_takes_the_answers_that_came_meanwhile(finished: Desk) -> None:
    assert finished.done.returncode == 0, finished.done.stderr
    assert [f.candidate().source for f in finished.run.folders()] == [FORBIDDEN.rstrip() + "\n", RIGHT.rstrip() + "\n"]
    (entry,) = read_rounds(finished.run)
    assert len(entry.candidates) == 2


def test_the_folder_tells_each_verdict_and_the_end(finished: Desk) -> None:
    first, second = ((finished.desk / f"000{n}-verdict.md").read_text() for n in (1, 2))
    assert "refused at `compile` with `screen.import`" in first and ": staged" in second.splitlines()[0]
    assert "The run is over: staged" in (finished.desk / "done.md").read_text()


def test_verdicts_and_the_end_say_the_cost_the_rank_and_what_it_is_made_of(finished: Desk) -> None:
    first, second = ((finished.desk / f"000{n}-verdict.md").read_text() for n in (1, 2))
    right = finished.run.folders()[1]
    quick = quick_result(right)
    assert quick is not None
    cost = f"static cost {quick.evidence['cost']['us']:.2f} µs"
    assert f"It is the best so far, number 1 of the 1 candidate that no gate refused: {cost}." in second
    assert f"the best so far is {right.short_id} (`0002-answer.py`): {cost}." in first and "It has no rank" in first
    done = (finished.desk / "done.md").read_text()
    assert f"| 1 | {right.short_id} | 0002-answer.py | {cost} |" in done
    for page in (second, done):
        assert "The run's order: by static cost (summed over 1 tokens), least first." in page
        assert " launches (" in page and SMALL in page and "What lowers it, largest term first" in page
    assert "static bytes by phase" in second and "resident an SM" in second and "Fix: " not in second


def test_no_verdict_of_the_last_round_asks_for_another_candidate(finished: Desk) -> None:
    for number in (1, 2):
        page = (finished.desk / f"000{number}-verdict.md").read_text()
        assert "Nothing more is asked in this run: " in page
        assert "write a faster one" not in page and "in the next answer" not in page


def test_the_run_holds_prompts_as_written_and_answers_as_received(finished: Desk) -> None:
    record = finished.run.path / "mailbox"
    assert names(record) == names(finished.desk)
    assert {n: (record / n).read_bytes() for n in names(record)} == {
        n: (finished.desk / n).read_bytes() for n in names(record)
    }


def test_it_replays_to_the_same_candidates_codes_and_decisions(
    finished: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    place = ("--runs", str(tmp_path / "again"), "--cache", str(finished.home / "cache"))
    recorded = tmp_path / "carried"  # as a committed one, away from where it was made
    shutil.copytree(finished.run.path, recorded)
    assert called(["replay", str(recorded), "--check", "--quiet", *place]) == 0
    assert "the same: 1 rounds" in capsys.readouterr().out


def test_a_folder_goes_with_the_mailbox_only(tmp_path: Path) -> None:
    assert called(["propose", *POINT, "--proposer", "search", "--mailbox", str(tmp_path / "desk")]) == 2
