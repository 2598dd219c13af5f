"""The committed runs that a coding agent answered: whole, as they were written and received, and replayable."""

from collections import Counter
from pathlib import Path

import pytest
from support.checkout import ROOT
from support.loops import called

from kgen.records import Status, sha256_bytes
from kgen.store import Run

AGENTS = ROOT / "docs" / "examples" / "agents"
RUNS = sorted(p for p in AGENTS.iterdir() if p.is_dir())
KEY = "kit.key"  # signs evidence of a run: never committed


@pytest.mark.parametrize("path", RUNS, ids=lambda p: p.name)
def test_answers_are_the_candidates_and_prompts_are_those_that_were_asked(path: Path) -> None:
    run = Run(path)
    assert run.info.op == path.name and run.info.settings["proposer"] == "mailbox" and run.info.finished
    assert not (path / KEY).exists()
    for folder in run.folders():
        detail = folder.candidate().origin.detail
        answer = path / detail["answer"]
        assert sha256_bytes(answer.read_bytes()) == detail["answer_sha256"]
        assert folder.candidate().source == answer.read_text(encoding="utf-8")
        prompt = answer.with_name(answer.name.replace("-answer.py", "-prompt.md")).read_text(encoding="utf-8")
        assert f"# Task: `{run.info.op}`" in prompt and "## What to do" in prompt
        verdict = folder.verdict()
        assert verdict is not None and verdict.candidate == folder.candidate().id


def test_the_page_says_how_many_answers_were_refused() -> None:
    found = [v for path in RUNS for f in Run(path).folders() if (v := f.verdict()) is not None]
    states = Counter("refused" if v.failed is not None and v.failed.status is Status.FAIL else "staged" for v in found)
    assert all(v.staged for v in found if v.failed is None)
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    words += ("thirteen", "fourteen", "fifteen", "sixteen")
    page = " ".join((AGENTS / "README.md").read_text(encoding="utf-8").split())
    refused = states["refused"]
    said = f"{words[refused].capitalize()} {'answer' if refused == 1 else 'answers'} of {words[len(found)]}"
    assert said in page


@pytest.mark.deep
@pytest.mark.parametrize("path", RUNS, ids=lambda p: p.name)
def test_an_agents_run_replays_to_the_same_candidates_codes_and_decisions(path: Path, home: Path) -> None:
    assert called(["replay", str(path), "--check", "--quiet", "--cache", str(home / "cache")]) == 0
