"""The tools of a run with the real compile gate: a model may try sources, and what it tried is built already later."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.loops import BROKEN, FORBIDDEN, OP, ListProposer, source

from kgen.loop import matrix
from kgen.loop.session import begin
from kgen.loop.settings import Settings
from kgen.loop.tools import tools_of
from kgen.loop.work import Work
from kgen.proposers.tools import Toolbox, ToolUse
from kgen.proposers.wire import ToolCall
from kgen.records import Candidate, Origin, canonical_json
from kgen.store import Runs


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    home = tmp_path_factory.mktemp("tools")
    asked = Settings(OP.name, "openai", archs=("sm_90a",), dims=("nano",), bins=(1,), interpret=False).checked(OP)
    made = Work(begin(Runs(home / "runs"), OP, asked, "kgen propose"), OP, asked, ListProposer(), home / "cache")
    yield made
    made.close()


def tried(work: Work, text: str) -> ToolUse:
    arguments = canonical_json({"source": text}).decode()
    return Toolbox(tools_of(work)).use(ToolCall("1", "check_compile", arguments))


@pytest.mark.parametrize(("text", "code"), [(BROKEN, "compile.syntax"), (FORBIDDEN, "screen.import")])
def test_a_model_hears_what_the_gate_says(work: Work, text: str, code: str) -> None:
    use = tried(work, text)
    assert use.code == "ok" and f"fail: {code}" in use.result


def test_a_name_that_does_not_exist_is_told_with_near_ones_and_nothing_is_built(work: Work) -> None:
    before = work.gate.built + work.gate.cached
    use = tried(work, source("misnamed").replace("cute.arch.thread_idx", "cute.arch.thread_indx"))
    assert "fail: compile.name" in use.result and "cutlass.cute.arch.thread_idx" in use.result
    assert work.gate.built + work.gate.cached == before


def test_what_compiles_is_told_with_its_registers_and_is_not_built_again(work: Work) -> None:
    use = tried(work, source("tried"))
    assert "pass: compile.pass" in use.result and " registers, " in use.result and "local memory" in use.result
    before = work.gate.built
    problems = matrix.quick(work.op, work.settings)
    report = work.gate.run(Candidate(OP.name, source("tried"), Origin("openai")), problems)
    assert report.result.passed and work.gate.built == before
    (facts,) = report.result.evidence["problems"].values()
    assert {p["kernel"] for p in facts["phases"]} == {launch["kernel"] for launch in facts["launches"]}


def test_trying_leaves_no_candidate_and_no_verdict_in_the_run(work: Work) -> None:
    before = sorted(p.name for p in work.run.path.iterdir())
    tried(work, BROKEN)
    assert sorted(p.name for p in work.run.path.iterdir()) == before and not work.run.folders()


def test_without_time_left_a_model_is_told_to_answer(work: Work) -> None:
    late = Work(work.run, OP, replace(work.settings, minutes=1e-9), ListProposer(), Path(work.cache))
    use = tried(late, source("late"))
    assert use.code == "refused" and "answer now" in use.result and "gate" not in late.__dict__
