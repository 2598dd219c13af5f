"""The benchmark of the loop: its problems are sound, what is expected stays hidden, these prompts have their rows."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support import openai_server as srv
from support.checkout import ROOT, imports, modules, parsed
from support.loops import called, environment

from kgen.bench.problems import BenchProblem, Hidden, problems, recorded
from kgen.bench.running import NEAR, KeptExecutor, Result, attempt
from kgen.bench.table import Row, add, compared, line, lines, read, row
from kgen.gates.screen import screen
from kgen.loop.settings import Settings
from kgen.ops import REGISTRY
from kgen.proposers.base import ProposalRequest
from kgen.proposers.choose import choose
from kgen.proposers.render import packaged
from kgen.proposers.replay import ReplayProposer
from kgen.records import from_json, to_json

RECORD = ROOT / "benchmarks" / "agent.json"
ALL = problems()


def test_there_are_enough_problems_over_enough_ops() -> None:
    assert len(ALL) >= 8 and len({p.op for p in ALL}) >= 6 and len({p.name for p in ALL}) == len(ALL)


@pytest.mark.parametrize("problem", ALL, ids=lambda p: p.name)
def test_a_problem_can_be_asked_and_its_fault_can_be_planted(problem: BenchProblem) -> None:
    op = REGISTRY.get(problem.op)
    asked = Settings(op.name, "replay", archs=("sm_90a",), dims=(problem.dims,), bins=problem.bins).checked(op)
    assert asked.bins == problem.bins
    wrong, right = recorded(problem)
    assert wrong != right and screen(right) == []
    assert [f.code for f in screen(wrong)][:1] == (
        [problem.hidden.plant_code] if "screen." in problem.hidden.plant_code else []
    )


def test_a_fault_that_has_no_place_is_said() -> None:
    hidden = Hidden(1.0, ("no such text", ""), "numeric.error")
    with pytest.raises(ValueError, match="stands 0 times"):
        recorded(replace(ALL[0], hidden=hidden))


@pytest.mark.parametrize("problem", ALL, ids=lambda p: p.name)
def test_what_is_expected_is_in_no_prompt(problem: BenchProblem, tmp_path: Path) -> None:
    op = REGISTRY.get(problem.op)
    points = tuple(op.problem(problem.dims, tokens, "sm_90a") for tokens in problem.bins)
    prompt = packaged().prompt(ProposalRequest(op=op, problems=points, archs=("sm_90a",), run=tmp_path))
    text = prompt.system + prompt.user
    assert text and f"{problem.hidden.best_us}" not in text and "best_us" not in text and "plant_code" not in text


def test_nothing_that_a_proposer_imports_reads_the_problems() -> None:
    known = modules()
    users = {
        name
        for name, path, tree in parsed()
        if any(m.startswith("kgen.bench") for m in imports(name, path, tree, known))
    }
    assert {name.split(".")[1] for name in users} <= {"bench", "cli"}


# the fault that the screen finds and the right answer: one build of each kind and one interpretation
QUICKEST = next(p for p in ALL if p.hidden.plant_code == "screen.import")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, KeptExecutor]]:
    """A folder for runs and builds, and what builds there."""
    executor = KeptExecutor()
    yield tmp_path_factory.mktemp("bench"), executor
    executor.end()


def test_a_replayed_problem_is_measured(bench: tuple[Path, KeptExecutor], tmp_path: Path) -> None:
    result = attempt(QUICKEST, ReplayProposer, *bench)
    assert result.breaches == () and result.ended == "staged" and result.candidates == 2
    assert result.gates["compile"] == (1, 2) and result.gates["unit-numeric"] == (1, 1)
    assert result.staged_s is not None and 0 < result.staged_s <= result.seconds and result.usd == result.tokens == 0
    assert result.ratio is not None and (result.near_s is not None) == (result.ratio <= NEAR)
    made = row("replay", "", 0, 0.5, [result])
    assert lines(made)[-1][:6] == ["all", "2", "1/2", "1/1", "1/1", "1/1"]
    assert from_json(Row, json.loads(json.dumps(to_json(made)))) == made
    file = tmp_path / "agent.json"
    add(file, made)
    other = replace(made, prompts="0" * 64)
    add(file, other)
    assert add(file, replace(made, seed=1)) == read(file) == (other, replace(made, seed=1))


@pytest.fixture
def priced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands run that ask a model at 2 and 10 USD per million tokens."""
    prices = {"KGEN_MODEL": "m7", "KGEN_PRICE_IN": "2", "KGEN_PRICE_OUT": "10", "OPENAI_API_KEY": "sk-none"}
    for name, value in (environment(tmp_path) | prices).items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_a_model_is_measured_in_money_up_to_the_first_staged_one(
    priced: Path, bench: tuple[Path, KeptExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    with srv.serving(*(srv.ok(srv.answer(source)) for source in recorded(QUICKEST))) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        result = attempt(QUICKEST, lambda _: choose("openai").proposer, *bench, max_usd=1.0)
    assert len(server.seen) == 2 and QUICKEST.hidden.plant_code in str(server.seen[1].body)
    assert (result.candidates, result.gates["compile"], result.ended) == (2, (1, 2), "staged")
    # both questions were paid for by then: 2000 tokens at 2 USD and 400 at 10 USD per million
    assert result.staged_usd == result.usd == pytest.approx(0.008) and result.tokens == 2400
    assert result.ratio is not None and (result.near_usd == result.staged_usd) == (result.ratio <= NEAR)
    shown = line(result)
    assert shown[4] == f"{result.staged_s:.1f} s, 0.0080 USD" and shown[7:9] == ["0.01", "2400"]


def test_no_question_is_asked_that_could_cost_more_than_the_limit_of_a_problem(
    priced: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with srv.serving(srv.ok(srv.answer())) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        asked = ["--problem", ALL[0].name, "--max-usd", "0.001", "--json"]
        assert called(["bench-agent", "--proposer", "openai", *asked]) == 0
        assert server.seen == []
    (got,) = json.loads(capsys.readouterr().out)["rows"]
    (result,) = got["results"]
    assert (got["proposer"], got["model"], got["prompts"]) == ("openai", "m7", packaged().sha256)
    assert (result["candidates"], result["usd"]) == (0, 0) and result["staged_usd"] is None


def test_rows_of_two_prompt_sets_are_compared_where_both_have_the_problem(tmp_path: Path) -> None:
    def result(name: str, staged: float | None, near: float | None, usd: float) -> Result:
        gates = {"compile": (1, 2), "unit-numeric": (1, 1)} if staged else {"compile": (0, 2)}
        seconds = (5.0 if staged else None, 5.0 if near else None)
        return Result(name, 2, gates, seconds[0], staged, seconds[1], near, 1.0, 9.0, usd, 100, "staged")

    old = replace(row("openai", "m7", 0, 0.5, []), prompts="a" * 64)
    old = replace(old, results=(result("x", 0.25, None, 0.5), result("gone", 1.0, 1.0, 1.0)))
    new = replace(old, prompts="b" * 64, results=(result("x", 0.125, 0.25, 0.25), result("more", None, None, 4.0)))
    assert compared((old, new), new) == (
        f"openai m7, prompts {'a' * 12} -> {'b' * 12}: compile 1/2 -> 1/2, unit-numeric 1/1 -> 1/1, staged 1/1 -> 1/1,"
        " within 1.25× 0/1 -> 1/1, USD to staged 0.2500 -> 0.1250, USD to within 1.25× 0.0000 -> 0.2500,"
        " USD in all 0.5000 -> 0.2500"
    )
    assert compared((replace(old, model="m8"), replace(old, proposer="search"), new), new) == ""
    latest = replace(old, prompts="c" * 64)
    assert f"prompts {'c' * 12} -> " in compared((old, latest, new), new)


@pytest.mark.parametrize("proposer", ["search", "replay"])
def test_the_prompts_as_they_are_have_their_row(proposer: str) -> None:
    rows = [r for r in read(RECORD) if (r.prompts, r.proposer) == (packaged().sha256, proposer)]
    assert len(rows) == 1, "the prompts have changed: make bench-agent, and commit benchmarks/agent.json"
    assert {r.problem for r in rows[0].results} == {p.name for p in ALL} and rows[0].breaches == []
