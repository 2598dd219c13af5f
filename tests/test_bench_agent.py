"""The benchmark of the loop: its problems are sound, what is expected stays hidden, these prompts have their rows."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.checkout import ROOT, imports, modules, parsed

from kgen.bench.problems import BenchProblem, Hidden, problems, recorded
from kgen.bench.running import NEAR, KeptExecutor, attempt
from kgen.bench.table import Row, add, lines, read, row
from kgen.gates.screen import screen
from kgen.loop.settings import Settings
from kgen.ops import REGISTRY
from kgen.proposers.base import ProposalRequest
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


def test_a_replayed_problem_is_measured(tmp_path: Path) -> None:
    # the fault that the screen finds and the right answer: one build of each kind and one interpretation
    problem = next(p for p in ALL if p.hidden.plant_code == "screen.import")
    executor = KeptExecutor()
    try:
        result = attempt(problem, ReplayProposer, tmp_path, executor)
    finally:
        executor.end()
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


@pytest.mark.parametrize("proposer", ["search", "replay"])
def test_the_prompts_as_they_are_have_their_row(proposer: str) -> None:
    rows = [r for r in read(RECORD) if (r.prompts, r.proposer) == (packaged().sha256, proposer)]
    assert len(rows) == 1, "the prompts have changed: make bench-agent, and commit benchmarks/agent.json"
    assert {r.problem for r in rows[0].results} == {p.name for p in ALL} and rows[0].breaches == []
