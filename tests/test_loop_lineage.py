"""Whole runs that plan: asks side by side, descent in origins, what ends a run, the tree, plans of a resumed run."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.loops import BROKEN, OP, Here, ListProposer, called, source

from kgen.loop.asking import ask_all, at_once, singles
from kgen.loop.plans import read_plans
from kgen.loop.replaying import difference
from kgen.loop.rounds import read_rounds
from kgen.loop.session import Ended, begin, work_on
from kgen.loop.settings import Settings
from kgen.loop.steps import Waiting
from kgen.proposers.base import Ask, Budget, Proposal, ProposalRequest, ProposerError, ProposerExhausted, Usage
from kgen.proposers.replay import ReplayProposer
from kgen.records import Candidate, Origin
from kgen.report import lineage, read
from kgen.report.markdown import markdown
from kgen.store import Run, Runs

Go = Callable[..., tuple[Run, Ended]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def small(**more: object) -> Settings:
    asked = {"archs": ("sm_90a",), "dims": ("nano",), "bins": (8,), "interpret": False, **more}
    return Settings(OP.name, "list", **asked).checked(OP)  # type: ignore[arg-type]


@pytest.fixture
def go(tmp_path: Path, cache: Path) -> Go:
    def run(proposer: object, **more: object) -> tuple[Run, Ended]:
        settings = small(**more)
        made = begin(Runs(tmp_path / "runs"), OP, settings, "kgen propose")
        return made, work_on(made, OP, settings, proposer, cache, executor=Here())  # type: ignore[arg-type]

    return run


class Answering:
    """A writer that answers every kind of ask: what it was asked last round by round is in `asks`."""

    name, concurrent = "writer", True

    def __init__(self) -> None:
        self.asks, self._lock = list[tuple[int, Ask]](), threading.Lock()

    def propose(self, request: ProposalRequest) -> Proposal:
        ask = request.ask
        assert ask is not None and request.count == ask.count == 1
        with self._lock:
            self.asks.append((request.round, ask))
        name = f"{request.round} {ask.number} {ask.index} {ask.kind}"
        text = BROKEN + f"# {name}\n" if request.round == 1 and ask.index == 1 else source(name)
        return Proposal((Candidate(OP.name, text, Origin(self.name)),), Usage(attempts=1))


@pytest.fixture(scope="module")
def improved(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Run:
    """Three rounds of two: a failure beside a right one, its repair, optimisations; no gain from the second on."""
    settings = small(rounds=5, candidates=10, patience=2, explore=0.0)
    run = begin(Runs(tmp_path_factory.mktemp("runs")), OP, settings, "kgen propose")
    ended = work_on(run, OP, settings, Answering(), cache, executor=Here())
    assert (ended.outcome, ended.why) == ("staged", "no gain in 2 rounds (the last was in round 1)")
    return run


def test_candidates_know_their_parents_and_what_was_asked(improved: Run) -> None:
    first, second, *later = [f.candidate() for f in improved.folders()]
    repair, optimise = later[:2]
    assert [c.origin.detail["kind"] for c in (first, second, repair, optimise)] == [
        "design", "design", "repair", "optimise",
    ]  # fmt: skip
    assert repair.origin.detail["parents"] == [first.id] and optimise.origin.detail["parents"] == [second.id]
    assert [len(r.candidates) for r in read_rounds(improved)] == [2, 2, 2]


def test_every_round_has_a_plan_with_reasons_and_the_last_says_why_it_ended(improved: Run) -> None:
    plans = read_plans(improved)
    assert [p.number for p in plans] == [1, 2, 3, 4]
    assert [sum(a.count for a in p.asks) for p in plans] == [2, 2, 2, 0]
    assert all(d.reason for p in plans for d in p.decisions)
    assert [p.stop.rule if p.stop else "" for p in plans] == ["", "", "", "patience"]
    assert "correctness first" not in plans[1].asks[0].reason  # something was right already
    assert "1 right candidates, but this one failed" in plans[1].asks[0].reason


def test_the_tree_shows_descent_state_and_code(improved: Run) -> None:
    document = read(improved, OP)
    lines = list(lineage.plain(lineage.roots(lineage.nodes(document))))
    ids = [f.short_id for f in improved.folders()]
    assert lines[0] == f"1 {ids[0]} design: compile.syntax (round 1)"
    assert lines[1].startswith(f"  3 {ids[2]} repair: staged, cost ")
    assert any(line.startswith(f"  4 {ids[3]} optimise: staged") for line in lines)
    said = lineage.decision_lines(document.plans)
    assert said[0].startswith("round 1: design × 2: nothing has been tried yet")
    assert said[-1] == "end: no gain in 2 rounds (the last was in round 1)"
    graph = markdown(document)
    assert "```mermaid" in graph and "n1 --> n3" in graph and '["1 design, compile.syntax"]' in graph


def test_the_command_shows_the_tree_and_gives_it_as_json(
    improved: Run, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(["runs", "show", str(improved.path)]) == 0
    assert "\n  3 " in capsys.readouterr().out
    assert called(["runs", "show", str(improved.path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["lineage"]
    assert [1, 3] in said["edges"] and [2, 4] in said["edges"]
    assert [n["kind"] for n in said["nodes"][:4]] == ["design", "design", "repair", "optimise"]
    assert len(said["plans"]) == 4


def test_a_replay_comes_to_the_same_candidates_codes_and_decisions(improved: Run, tmp_path: Path, cache: Path) -> None:
    settings = small(rounds=5, candidates=10, patience=2, explore=0.0)
    settings = replace(settings, proposer="replay", replay=str(improved.path))
    again = begin(Runs(tmp_path), OP, settings, "kgen replay")
    work_on(again, OP, settings, ReplayProposer(improved.path), cache, executor=Here())
    found = difference(improved, again)
    assert found.said == "" and found.compared["candidates"] == 6 and found.compared["decisions"] > 8
    path = again.path / "rounds" / "0002-plan.json"
    path.write_text(path.read_text().replace("not built on yet", "built on 9 times"))
    assert difference(improved, again).said.startswith("round 2, asks 2: optimise: ")
    verdict = again.folders()[0].path / "verdict.json"
    path.write_text((improved.path / "rounds" / "0002-plan.json").read_text())
    verdict.write_text(verdict.read_text().replace("compile.syntax", "compile.name"))
    assert "compile.syntax | compile.name" in difference(improved, again).said


def test_a_plan_that_was_not_carried_out_is_kept_to(go: Go, cache: Path, tmp_path: Path) -> None:
    class Silent(ListProposer):
        def propose(self, request: ProposalRequest) -> Proposal:
            self.requests.append(request)
            return Proposal(pending="write it")

    settings = small(rounds=2, candidates=2)
    with pytest.raises(Waiting, match="write it"):
        go(Silent(), rounds=2, candidates=2)
    (run,) = Runs(tmp_path / "runs").list()
    (planned,) = read_plans(run)
    proposer = ListProposer([BROKEN], [source("then")])
    assert work_on(run, OP, settings, proposer, cache, executor=Here()).outcome == "staged"
    assert read_plans(run)[0] == planned
    assert [r.ask.kind for r in proposer.requests if r.ask] == ["design", "repair"]


def request(tmp_path: Path, **more: object) -> ProposalRequest:
    problems = (OP.problem("nano", 8, "sm_90a", {}),)
    return ProposalRequest(op=OP, problems=problems, archs=("sm_90a",), run=tmp_path, **more)  # type: ignore[arg-type]


def test_asks_run_side_by_side_and_their_answers_keep_their_order(tmp_path: Path) -> None:
    barrier = threading.Barrier(3, timeout=60)

    class Slow(Answering):
        def propose(self, request: ProposalRequest) -> Proposal:
            barrier.wait()  # passes only when three are under way at once
            return super().propose(request)

    asks = (Ask(1, "design", count=2), Ask(2, "repair", ("f" * 64,)))
    answers = ask_all(Slow(), request(tmp_path, budget=Budget(cost_usd=3.0)), asks, 3)
    assert [c.origin.detail["ask"] for c in answers.candidates] == [1, 1, 2]
    names = [c.source.splitlines()[-1] for c in answers.candidates]
    assert names == ["# 0 1 1 design", "# 0 1 2 design", "# 0 2 1 repair"]
    assert answers.candidates[2].origin.detail["parents"] == ["f" * 64] and answers.usage.attempts == 3


def test_what_may_be_spent_is_divided_between_asks_at_once(tmp_path: Path) -> None:
    budgets: list[float | None] = []

    class Counting(Answering):
        def propose(self, request: ProposalRequest) -> Proposal:
            budgets.append(request.budget.cost_usd)
            return super().propose(request)

    ask_all(Counting(), request(tmp_path, budget=Budget(cost_usd=3.0)), (Ask(1, "design", count=3),), 1)
    assert budgets == [1.0, 1.0, 1.0]


def test_an_ask_that_fails_does_not_lose_what_the_others_gave(tmp_path: Path) -> None:
    class Failing(Answering):
        def propose(self, request: ProposalRequest) -> Proposal:
            if request.ask and request.ask.index == 2:
                raise ProposerError("the line is dead", Usage(attempts=4))
            return super().propose(request)

    answers = ask_all(Failing(), request(tmp_path), (Ask(1, "design", count=3),), 2)
    assert len(answers.candidates) == 2 and [str(f) for f in answers.failures] == ["the line is dead"]
    assert answers.usage.attempts == 6


def test_one_after_the_other_is_told_what_was_given_and_stops_at_the_end(tmp_path: Path) -> None:
    class Ending(ListProposer):
        def propose(self, request: ProposalRequest) -> Proposal:
            if len(self.requests) == 2:
                self.requests.append(request)
                raise ProposerExhausted("no more")
            return super().propose(request)

    proposer = Ending([source("a")], [source("b")])
    answers = ask_all(proposer, request(tmp_path), [Ask(n, "design") for n in (1, 2, 3, 4)], 4)
    assert [len(r.taken) for r in proposer.requests] == [0, 1, 2]
    assert len(answers.candidates) == 2 and len(answers.failures) == 1


def test_an_exception_in_a_thread_is_raised_where_it_is_waited_for() -> None:
    def wrong() -> None:
        raise ZeroDivisionError("here")

    with pytest.raises(ZeroDivisionError, match="here"):
        at_once([wrong, lambda: None], 2)


def test_an_ask_for_several_becomes_so_many_numbered_ones() -> None:
    assert [(a.count, a.index, a.of) for a in singles(Ask(1, "design", count=3))] == [(1, 1, 3), (1, 2, 3), (1, 3, 3)]
