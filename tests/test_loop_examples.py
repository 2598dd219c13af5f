"""The committed example runs, one of each proposer kind, replay offline to the same candidates, codes and decisions."""

import json
from pathlib import Path

import pytest
from support.checkout import ROOT
from support.loops import OP, called

from kgen.gates.sandbox import NoSandboxError, choose
from kgen.loop.plans import read_plans
from kgen.loop.rounds import read_rounds
from kgen.proposers.choose import MAKERS
from kgen.proposers.tune import PARENT
from kgen.records import sha256_bytes
from kgen.report import lineage, read
from kgen.store import Run, Runs

EXAMPLES = ROOT / "docs" / "examples" / "runs"
KINDS = ("search", "openai", "mailbox", "replay", "mcp", "tune")
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


def test_what_the_client_of_the_mcp_run_submitted_is_the_familys_point_and_says_so() -> None:
    wrong, right = (f.candidate() for f in Run(EXAMPLES / "mcp").folders())
    assert right.source in {f.candidate().source for f in Run(EXAMPLES / "search").folders()}
    assert {c.origin.detail["client"] for c in (wrong, right)} == {"scripted-client/1"}  # nobody takes it for an agent
    assert right.origin.detail["parents"] == [wrong.id] and right.origin.detail["kind"] == "repair"
    codes = [v.results[0].code for f in Run(EXAMPLES / "mcp").folders() if (v := f.verdict())]
    assert codes == ["compile.name", "compile.pass"]
    for candidate in (wrong, right):
        answer = (EXAMPLES / "mcp" / candidate.origin.detail["answer"]).read_bytes()
        assert sha256_bytes(answer) == candidate.origin.detail["answer_sha256"]


def test_what_the_tune_run_varies_is_an_agents_answer_but_for_the_declaration() -> None:
    agents = ROOT / "docs" / "examples" / "agents" / "mla_in_proj" / "mailbox" / "0003-answer.py"
    parent, *variants = (f.candidate() for f in Run(EXAMPLES / "tune").folders())
    assert (EXAMPLES / "tune" / PARENT).read_text(encoding="utf-8") == parent.source
    added = set(parent.source.splitlines()) - set(agents.read_text(encoding="utf-8").splitlines())
    assert [line.split(" = ")[0] for line in added] == ["TUNABLES"]
    assert variants and all(v.origin.detail["parents"] == [parent.id] for v in variants)
    numbers = [v.results[1].code for f in Run(EXAMPLES / "tune").folders() if (v := f.verdict())]
    assert numbers == ["numeric.ptx_pass"] * (1 + len(variants))


# tune: the loop over tunables runs in test_tunables.py, and all its variants are interpreted here
@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.deep] * (k == "tune")) for k in KINDS])
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
    assert said["compared"]["rounds"] == len(read_rounds(recorded)) and said["compared"]["decisions"] >= 4
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
