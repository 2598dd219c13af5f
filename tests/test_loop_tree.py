"""A whole run of the built-in search from the first design on: stuck, it starts afresh; what then leads a range is
crossed with what leads the other; the beam takes turns; and the tree that is drawn is that of the record.

Gates, compiler's audit and graph are the real ones; builds are taken from a cache that is kept (support/tree.py).
Not covered: what other histories lead to (test_loop_population), and models as proposers (test_loop_lineage).
"""

import json
from pathlib import Path
from typing import Any

import pytest
from support.loops import called
from support.tree import BINS, OP, SETTINGS, grown, unpack

from kgen.loop.cost import static_cost
from kgen.loop.plans import Decision, Plan, read_plans
from kgen.loop.rounds import read_rounds
from kgen.store import Run


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Run:
    made, ended = grown(tmp_path_factory.mktemp("tree"), cache)
    assert (ended.outcome, ended.why) == ("staged", "6 rounds done")
    return made


@pytest.fixture(scope="module")
def ids(run: Run) -> list[str]:
    """From 1 on, as the tree numbers them."""
    return ["", *(f.candidate().id for f in run.folders())]


@pytest.fixture(scope="module")
def plans(run: Run) -> dict[int, Plan]:
    return {p.number: p for p in read_plans(run)}


def detail(run: Run, number: int) -> dict[str, Any]:
    return dict(run.folders()[number - 1].candidate().origin.detail)


def decided(plan: Plan, what: str) -> Decision:
    (found,) = [d for d in plan.decisions if d.what == what]
    return found


def test_each_round_asks_for_one_thing_and_the_answer_says_which(run: Run, ids: list[str]) -> None:
    kinds = [detail(run, n)["kind"] for n in range(1, 7)]
    assert kinds == ["design", "optimise", "optimise", "restart", "crossover", "optimise"]
    parents = [[ids.index(p) for p in detail(run, n)["parents"]] for n in range(1, 7)]
    assert parents == [[], [1], [1], [], [1, 4], [4]]
    assert [len(r.candidates) for r in read_rounds(run)] == [1] * 6
    assert all(v is not None and v.staged for v in (f.verdict() for f in run.folders()))


def test_two_rounds_without_gain_start_afresh_with_a_point_unlike_the_best(run: Run, plans: dict[int, Plan]) -> None:
    restart = decided(plans[4], "restart")
    assert restart.reason == "stuck: 2 rounds without gain (the last gain was in round 1; from 2 on)"
    assert restart.candidates == () and "restart" not in {d.what for n in (1, 2, 3, 5, 6) for d in plans[n].decisions}
    first, fresh = (detail(run, n)["values"] for n in (1, 4))
    assert sum(first[name] != fresh[name] for name in first) >= 2


def costs(run: Run, tokens: int) -> list[float]:
    """Of each candidate there, worked out from the builds that its folder records."""
    return [
        static_cost(OP, [b for b in f.builds() if not b.defect and b.problem.tokens == tokens]) for f in run.folders()
    ]


def test_the_leaders_of_two_ranges_are_crossed_and_each_choice_of_the_child_is_a_parents(
    run: Run, ids: list[str], plans: dict[int, Plan]
) -> None:
    narrow, wide = (costs(run, tokens)[:4] for tokens in BINS)
    assert narrow.index(min(narrow)) == 0 and wide.index(min(wide)) == 3  # the earliest of equals
    keeps = {d.candidates: d for d in plans[5].decisions if d.what == "keep"}
    assert keeps[(ids[1],)].reason.endswith("leads 1-8") and keeps[(ids[4],)].reason.endswith("leads 33-64")
    assert keeps[(ids[4],)].numbers["33-64"] == pytest.approx(wide[3], abs=1e-4)
    cross = decided(plans[5], "crossover")
    assert cross.candidates == (ids[1], ids[4])
    assert cross.reason == f"{ids[1][:12]} leads 1-8 and {ids[4][:12]} leads 33-64: the best of both"
    one, other, child = (detail(run, n)["values"] for n in (1, 4, 5))
    assert all(child[name] in (one[name], other[name]) for name in child)
    assert child not in (one, other)


def test_the_beam_is_bounded_and_its_least_used_member_is_built_on(ids: list[str], plans: dict[int, Plan]) -> None:
    optimised = decided(plans[6], "optimise")
    used = [p for n in range(1, 6) for a in plans[n].asks for p in a.parents]
    assert (used.count(ids[1]), used.count(ids[4])) == (3, 1)
    assert optimised.candidates == (ids[4],) and optimised.reason.endswith("built on 1 times so far")
    for plan in plans.values():
        kept = [d for d in plan.decisions if d.what in ("keep", "novel")]
        assert sum("not in the beam" not in d.reason for d in kept) <= SETTINGS.beam
        assert all(d.reason for d in plan.decisions)


def test_the_tree_is_drawn_with_both_parents_and_all_reasons(
    run: Run, ids: list[str], plans: dict[int, Plan], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(["runs", "show", str(run.path)]) == 0
    shown = capsys.readouterr().out
    drawn = [line for line in shown.splitlines() if ": staged, cost" in line]
    assert [(line[: len(line) - len(line.lstrip())], int(line.split()[0])) for line in drawn] == [
        ("", 1), ("  ", 2), ("  ", 3), ("  ", 5), ("", 4), ("  ", 6),
    ]  # fmt: skip
    assert f"  5 {ids[5][:12]} crossover × 4: staged" in shown and f"4 {ids[4][:12]} restart: staged" in shown
    assert f"round 4: restart: {decided(plans[4], 'restart').reason}" in shown
    assert "end: 6 rounds done" in shown
    assert called(["runs", "show", str(run.path), "--json"]) == 0
    lineage = json.loads(capsys.readouterr().out)["lineage"]
    assert sorted(lineage["edges"]) == [[1, 2], [1, 3], [1, 5], [4, 5], [4, 6]]


def test_it_replays_to_the_same_tree(run: Run, cache: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(["replay", str(run.path), "--check", "--json", "--quiet", "--cache", str(cache)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["same"] is True and said["compared"]["rounds"] == 6 and said["compared"]["candidates"] == 6
