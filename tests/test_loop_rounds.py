"""The loop in one process, with the real compiler: tiers, feedback, bounds, and what a round leaves behind."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.loops import BROKEN, FORBIDDEN, OP, Here, ListProposer, fails_at, source

from kgen.loop.events import Event
from kgen.loop.graph import CHECKPOINT
from kgen.loop.plans import read_plans
from kgen.loop.rounds import read_rounds
from kgen.loop.session import Ended, begin, work_on
from kgen.loop.settings import Settings
from kgen.proposers.base import Proposal, ProposalRequest
from kgen.records import GATES, Status
from kgen.store import LockBusy, Run, Runs

CHOSEN = "compile.not_chosen"
Go = Callable[..., tuple[Run, Ended, list[Event]]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def go(tmp_path: Path, cache: Path) -> Go:
    def run(proposer: ListProposer, bins: tuple[int, ...] = (1, 8), **more: object) -> tuple[Run, Ended, list[Event]]:
        asked = Settings(OP.name, proposer.name, archs=("sm_90a",), dims=("nano",), bins=bins, interpret=False, **more)  # type: ignore[arg-type]
        settings = asked.checked(OP)
        made = begin(Runs(tmp_path / "runs"), OP, settings, "kgen propose")
        events: list[Event] = []
        ended = work_on(made, OP, settings, proposer, cache, events.append, executor=Here())
        return made, ended, events

    return run


def codes(run: Run) -> list[list[str]]:
    """The codes of each candidate's verdict."""
    found = []
    for folder in run.folders():
        verdict = folder.verdict()
        assert verdict is not None, f"{folder.path.name} has no verdict"
        found.append([r.code for r in verdict.results])
    return found


def test_a_round_sorts_candidates_into_staged_not_chosen_and_failed(go: Go) -> None:
    sources = [source("a"), FORBIDDEN, source("b"), BROKEN, source("c")]
    run, ended, _ = go(ListProposer(sources))
    assert ended.outcome == "staged"
    staged = ["compile.pass", "numeric.no_gpu", "fullmodel.no_gpu", "perf.no_gpu"]
    assert codes(run) == [staged, ["screen.import"], staged, ["compile.syntax"], [CHOSEN]]
    assert run.info.finished and run.info.outcome == "staged"


def test_a_skip_names_the_exact_next_command(go: Go) -> None:
    run, _, _ = go(ListProposer([source("a")]))
    (folder,) = run.folders()
    for gate in GATES[1:]:
        result = folder.result(gate)
        assert result is not None and result.status is Status.SKIP
        assert f"kgen kit {run.id} -o kit.pyz" in result.message


def test_finalists_hold_builds_of_every_point_and_of_the_mutants(go: Go) -> None:
    run, _, _ = go(ListProposer([source("a")]), bins=(1, 2, 8))
    (folder,) = run.folders()
    builds = folder.builds()
    assert [b.problem.tokens for b in builds if not b.defect] == [1, 2, 8]
    assert {(b.defect, b.problem.tokens) for b in builds if b.defect} == {("tile_scale", t) for t in (1, 2, 8)}
    compiled = folder.result("compile")
    assert compiled is not None
    assert compiled.evidence["mutants"]["tile_scale"] == "3 of 3 built"
    # nothing to drop in a copy: said, not hidden
    assert compiled.evidence["mutants"]["drop_last_k"].startswith("0 of 3 built; ")


def test_a_finalist_that_fails_in_the_full_matrix_makes_room_for_the_next(go: Go) -> None:
    sources = [fails_at(2, "a"), source("b"), source("c")]
    run, ended, _ = go(ListProposer(sources), bins=(1, 2, 8))
    assert [c[0] for c in codes(run)] == ["compile.build", "compile.pass", "compile.pass"]
    assert ended.outcome == "staged"


def test_failures_go_back_to_the_proposer_with_code_and_message(go: Go) -> None:
    proposer = ListProposer([BROKEN], [FORBIDDEN], [source("good")])
    run, ended, _ = go(proposer, rounds=5, candidates=5)
    assert ended.outcome == "staged"
    assert len(proposer.requests) == 3  # and not 5: a candidate is as far as it can get here
    told = [[(v.failed.gate, v.failed.code) for _, v in r.history if v.failed] for r in proposer.requests]
    assert told == [[], [("compile", "compile.syntax")], [("compile", "compile.syntax"), ("compile", "screen.import")]]
    message = proposer.requests[2].history[1][1].results[0].message
    assert "import of os" in message
    assert [r.judged for r in read_rounds(run)] == [True, True, True]


@pytest.mark.parametrize(
    ("limits", "asked", "why"),
    [
        ({"rounds": 2, "candidates": 9}, 2, "2 rounds done"),
        ({"rounds": 9, "candidates": 9}, 4, "the list is used up"),
        ({"rounds": 9, "candidates": 2}, 2, "2 candidates judged"),
    ],
)
def test_a_run_that_gets_nowhere_ends_at_its_bounds(go: Go, limits: dict[str, int], asked: int, why: str) -> None:
    proposer = ListProposer([BROKEN], [BROKEN + "#2\n"], [BROKEN + "#3\n"])
    run, ended, _ = go(proposer, **limits)
    assert (ended.outcome, ended.why) == ("refused", why)
    last = read_plans(run)[-1]
    assert last.stop is not None and last.stop.reason == why and not last.asks
    assert len({r.round for r in proposer.requests}) == asked


def test_when_time_is_up_candidates_say_so_and_can_be_tried_again(go: Go, cache: Path) -> None:
    run, ended, _ = go(ListProposer([source("late")]), minutes=1e-9)
    assert ended.outcome == "refused"
    assert codes(run) == [["compile.out_of_time"]]
    settings = Settings(OP.name, "list", archs=("sm_90a",), dims=("nano",), bins=(1, 8), interpret=False).checked(OP)
    assert work_on(run, OP, settings, ListProposer(), cache, executor=Here()).outcome == "staged"


def test_cost_ends_a_run(go: Go) -> None:
    class Costly(ListProposer):
        def propose(self, request: ProposalRequest) -> Proposal:
            from dataclasses import replace

            from kgen.proposers.base import Usage

            assert request.budget.cost_usd is not None
            return replace(super().propose(request), usage=Usage(cost_usd=0.6))

    proposer = Costly([BROKEN], [BROKEN + "#2\n"], [BROKEN + "#3\n"])
    _, ended, _ = go(proposer, rounds=3, candidates=3, max_usd=1.0)
    assert ended.why == "1.20 USD spent"
    assert [r.budget.cost_usd for r in proposer.requests] == [1.0, pytest.approx(0.4)]


def test_the_second_run_of_the_same_candidates_builds_nothing_and_says_so(go: Go) -> None:
    sources = [source("same a"), source("same b")]
    go(ListProposer(sources))
    _, _, events = go(ListProposer(sources))
    said = [e.text for e in events if e.text.startswith("compile:")]
    assert len(said) == 1 and said[0].startswith("compile: 0 builds made, ") and "taken from the cache" in said[0]


def test_a_finished_run_taken_up_again_does_nothing(go: Go, cache: Path) -> None:
    run, _, _ = go(ListProposer([source("a"), BROKEN]))
    before = {p: p.stat().st_mtime_ns for p in run.path.glob("0*/*")}
    settings = Settings(OP.name, "list", archs=("sm_90a",), dims=("nano",), bins=(1, 8), interpret=False).checked(OP)
    proposer = ListProposer([source("never asked for")])
    ended = work_on(run, OP, settings, proposer, cache, executor=Here())
    assert ended.outcome == "staged"
    assert not proposer.requests
    assert {p: p.stat().st_mtime_ns for p in run.path.glob("0*/*")} == before


def test_a_checkpoint_of_garbage_costs_nothing(go: Go, cache: Path) -> None:
    run, _, _ = go(ListProposer([source("a")]))
    (run.path / CHECKPOINT).write_bytes(b"\x00garbage" * 999)
    settings = Settings(OP.name, "list", archs=("sm_90a",), dims=("nano",), bins=(1, 8), interpret=False).checked(OP)
    assert work_on(run, OP, settings, ListProposer(), cache, executor=Here()).outcome == "staged"


def test_the_checkpoint_holds_ids_and_no_source(go: Go) -> None:
    run, _, _ = go(ListProposer([source("a secret of the source")]))
    data = b"".join(p.read_bytes() for p in run.path.glob("graph.sqlite*"))
    assert data and b"a secret of the source" not in data and b"RowCopy" not in data


def test_a_run_is_worked_on_by_one_process_at_a_time(go: Go, cache: Path) -> None:
    run, _, _ = go(ListProposer([source("a")]))
    settings = Settings(OP.name, "list", archs=("sm_90a",), dims=("nano",), bins=(1, 8), interpret=False).checked(OP)
    with run.lock(), pytest.raises(LockBusy):
        work_on(run, OP, settings, ListProposer(), cache)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"archs": ("sm_80",)}, "sm_80"),
        ({"dims": ("huge",)}, "huge"),
        ({"bins": (9,)}, "9"),
        ({"minutes": 0.0}, "minutes"),
        ({"max_usd": -1.0}, "max-usd"),
    ],
)
def test_settings_refuse_what_the_op_does_not_have(wrong: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Settings(OP.name, "list", **wrong).checked(OP)  # type: ignore[arg-type]
