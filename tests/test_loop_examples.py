"""The committed example runs, one of each proposer kind, replay offline to the same candidates, codes and decisions."""

import json
from pathlib import Path

import pytest
from support.checkout import ROOT
from support.loops import OP, called

from kgen.gates.sandbox import NoSandboxError, choose
from kgen.loop.plans import read_plans
from kgen.proposers.choose import MAKERS
from kgen.report import lineage, read
from kgen.store import Run, Runs

EXAMPLES = ROOT / "docs" / "examples" / "runs"
KINDS = ("search", "openai", "mailbox", "replay")
PAGE = (ROOT / "docs" / "loop.md").read_text()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all: the runs have sources in common."""
    return tmp_path_factory.mktemp("cache")


def test_there_is_an_example_of_every_kind_and_each_says_what_it_is() -> None:
    assert {p.name for p in EXAMPLES.iterdir() if p.is_dir()} == set(KINDS) <= set(MAKERS)
    for kind in KINDS:
        run = Run(EXAMPLES / kind)
        assert run.info.settings["proposer"] == kind and run.info.finished
        assert all(f.candidate().origin.proposer == kind and f.verdict() for f in run.folders())
    models = {f.candidate().origin.detail["model"] for f in Run(EXAMPLES / "openai").folders()}
    assert models == {"scripted-answers"}  # nobody takes it for a model's work
    assert Run(EXAMPLES / "openai").info.settings["interpret"] is True


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_replays_to_the_same_run(
    kind: str, home: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        choose()
    except NoSandboxError as error:
        pytest.skip(str(error))
    assert called(["replay", str(EXAMPLES / kind), "--check", "--json", "--quiet", "--cache", str(cache)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["same"] is True and said["difference"] == ""
    recorded = Run(EXAMPLES / kind)
    assert said["compared"]["candidates"] == len(recorded.folders()) >= 2
    assert said["compared"]["rounds"] >= 2 and said["compared"]["decisions"] >= 4
    (again,) = Runs(home / "runs").list()
    assert [p.stop for p in read_plans(again)] == [p.stop for p in read_plans(recorded)]


def test_another_run_is_told_from_the_one_that_was_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert called(["runs", "diff", str(EXAMPLES / "search"), str(EXAMPLES / "openai")]) == 1
    assert capsys.readouterr().out.startswith("differs: round 1, asks 1: design: ")
    assert called(["runs", "diff", str(EXAMPLES / "search"), str(EXAMPLES / "search")]) == 0


def test_the_page_shows_the_tree_of_a_recorded_run_as_it_is() -> None:
    document = read(Run(EXAMPLES / "openai"), OP)
    drawn = [*lineage.plain(lineage.roots(lineage.nodes(document))), *lineage.decision_lines(document.plans)]
    assert "```text\n" + "\n".join(drawn) + "\n```" in PAGE
    assert "```mermaid\n" + lineage.mermaid(lineage.nodes(document)) + "\n```" in PAGE
