"""Search by a model of the space: determinism, constraints, what the gates' words become, and a record of its worth.

optuna is real; the gates' answers are written here. The record (search_record.py) is of real builds.
"""

import builtins
import json
import random
from pathlib import Path
from typing import Any

import pytest
import search_record as record
from support.checkout import ROOT
from support.loops import called
from support.requests import failing, passing, request

from kgen.loop import matrix
from kgen.loop.ranking import costs
from kgen.loop.rounds import Ranked, Round
from kgen.loop.settings import Settings
from kgen.ops import REGISTRY
from kgen.proposers.base import SetupError
from kgen.proposers.families import FAMILIES, Choice, Limit, Space
from kgen.proposers.search import SearchProposer
from kgen.proposers.studies import METHODS, NSGA, RANDOM, TPE, Trial, next_point, outcomes, ready
from kgen.records import Candidate, GateResult, Origin, PerfPoint, Status, Verdict, from_json, to_json

RUN = Path("unused")


def us_of(candidate: Candidate) -> float:
    """A smooth cost over kda_in_proj's points: best at 8 warps, and on tensor cores."""
    values = candidate.origin.detail["values"]
    return 20.0 + abs(values["warps"] - 8) + abs(values["unroll"] - 4) + (0 if "blocks" in values else 8)


def rounds(method: str, seed: int, count: int = 4, per_round: int = 4) -> list[Candidate]:
    """Candidates of a run of so many rounds, each judged as `us_of` says."""
    made: list[Candidate] = []
    for _ in range(count):
        history = tuple((c, Verdict(c.id, (passing(),))) for c in made)
        asked = request(
            RUN, "kda_in_proj", history=history, costs={c.id: {1: us_of(c), 8: us_of(c)} for c in made},
            count=per_round, seed=seed,
        )  # fmt: skip
        made += SearchProposer(method).propose(asked).candidates
    return made


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_and_history_give_the_same_candidates_and_another_seed_others(method: str) -> None:
    first, again, other = ([c.id for c in rounds(method, seed)] for seed in (5, 5, 6))
    assert first == again and first != other
    assert len(set(first)) == 16


def test_without_a_method_the_search_is_the_one_it_was() -> None:
    plain = [c.id for c in SearchProposer().propose(request(RUN, "kda_in_proj", count=8)).candidates]
    assert plain == [c.id for c in SearchProposer("").propose(request(RUN, "kda_in_proj", count=8)).candidates]
    assert plain[:2] == [c.id for c in rounds(TPE, 0)][:2], "known good points come first in every search"


@pytest.mark.parametrize("method", [TPE, NSGA])
def test_every_point_of_a_model_is_within_the_limits(method: str) -> None:
    for candidate in SearchProposer(method).propose(request(RUN, "moe_shared", count=12)).candidates[2:]:
        spaces = FAMILIES["moe_shared"].spaces
        assert any(record.point_of(space, candidate) is not None for space in spaces)


PLAIN = Space("s", "t", (Choice("x", tuple(range(16))), Choice("y", tuple(range(16)))))


def bowl(point: Any) -> float:
    return float((point["x"] - 11) ** 2 + (point["y"] - 3) ** 2)


def test_tpe_goes_where_earlier_points_were_good() -> None:
    done = [Trial(p, (bowl(p),), 0) for p in ({"x": x, "y": y} for x in range(0, 16, 3) for y in range(0, 16, 3))]
    chosen = [bowl(next_point(PLAIN, done, (), TPE, random.Random(s))) for s in range(12)]
    by_chance = [bowl(next_point(PLAIN, done, (), RANDOM, random.Random(s))) for s in range(12)]
    assert sorted(chosen)[6] < sorted(by_chance)[6] / 2


def test_points_that_failed_gates_are_avoided_however_fast_they_look() -> None:
    """The left half is broken and looks best by far."""
    done = [
        Trial({"x": x, "y": y}, (float(x) + 100.0 * (x >= 8),), 4 if x < 8 else 0)
        for x in range(0, 16, 2)
        for y in range(0, 16, 3)
    ]
    chosen = [next_point(PLAIN, done, (), TPE, random.Random(s)) for s in range(20)]
    assert sum(p["x"] >= 8 for p in chosen) >= 15


def test_nsga_builds_on_both_ends_of_the_front() -> None:
    done = [Trial({"x": x, "y": y}, (float(x), 15.0 - x + y), 0) for x in range(0, 16, 2) for y in (0, 5, 10, 15)]
    chosen = [next_point(PLAIN, done, (), NSGA, random.Random(s)) for s in range(40)]
    assert sum(p["y"] <= 5 for p in chosen) > 25, "y makes one objective worse and none better"
    assert {p["x"] < 8 for p in chosen} == {True, False}


def test_a_broken_limit_is_repaired_before_anything_is_proposed() -> None:
    diagonal = Space("s", "t", PLAIN.parameters, (Limit(("x", "y"), lambda p: "" if p["x"] == p["y"] else "no"),))
    done = [Trial({"x": n, "y": n}, (float(n),), 0) for n in range(12)]
    for seed in range(10):
        point = next_point(diagonal, done, ({"x": 1, "y": 1},), TPE, random.Random(seed))
        assert point["x"] == point["y"]


# --- what the gates' words become

CANDIDATES = [Candidate("kda_in_proj", f"source {i}", Origin("search")) for i in range(6)]


def judged(*results: GateResult) -> Any:
    return tuple((c, Verdict(c.id, (r,))) for c, r in zip(CANDIDATES, results, strict=False))


def test_a_failure_counts_by_the_gates_that_were_before_it_and_an_error_not_at_all() -> None:
    history = judged(
        failing("x", "compile.dsl"),
        failing("x", "numeric.error", "unit-numeric"),
        failing("x", "fullmodel.choice", "full-model-eval"),
        failing("x", "perf.no_win", "perf-sweep"),
        passing(),
        GateResult("compile", Status.ERROR, "compile.builder", "ours", {}),
    )
    known = outcomes(request(RUN, "kda_in_proj", history=history, costs={c.id: {8: 9.0} for c in CANDIDATES[2:]}))
    assert [known[c.id].distance for c in CANDIDATES[:5]] == [4, 3, 2, 0, 0]
    assert CANDIDATES[5].id not in known


def point(us: float, tokens: int) -> PerfPoint:
    key = f"kda_in_proj/k3-tp8/t{tokens}/sm_90a"
    return PerfPoint(key, tokens, "graph", "t", us, {"stock": 9.0}, "stock", us / 9, us / 9, us / 9, 0.5, 1.0, 3, "win")


def test_measured_times_count_and_bring_the_guesses_of_the_others_to_their_scale() -> None:
    history = judged(passing(), passing())
    first, second = (c.id for c in CANDIDATES[:2])
    known = outcomes(
        request(
            RUN,
            "kda_in_proj",
            history=history,
            costs={first: {1: 10.0, 8: 20.0}, second: {1: 30.0, 8: 40.0}},
            points={first: (point(5.0, 1), point(10.0, 8))},
        )
    )
    assert known[first].us == {1: 5.0, 8: 10.0}
    assert known[second].us == {1: 15.0, 8: 20.0}, "half of what was guessed, as for the first"


def test_what_candidates_were_ordered_by_is_kept_by_tokens_and_left_out_where_it_is_not_known() -> None:
    entry = Round(
        1, ("0001-a", "0002-b"), order=(Ranked("0001-a", 3.0, points=((1, 1.0), (8, 2.0))), Ranked("0002-b", 4.0))
    )
    again = from_json(Round, json.loads(json.dumps(to_json(entry))))
    assert again == entry and costs([again]) == {"0001-a": {1: 1.0, 8: 2.0}}
    assert "points" not in to_json(entry)["order"][1]


def test_a_search_with_two_objectives_builds_the_smallest_and_the_largest_bin_first() -> None:
    op = REGISTRY.get("kda_in_proj")
    assert [p.tokens for p in matrix.quick(op, Settings(op.name, "search", search=NSGA).checked(op))] == [1, 64]
    assert [p.tokens for p in matrix.quick(op, Settings(op.name, "search", search=TPE).checked(op))] == [1, 8]


# --- without optuna, and wrong words


def test_without_optuna_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> Any:
        if name == "optuna":
            raise ModuleNotFoundError("No module named 'optuna'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(SetupError, match="needs optuna: pip install"):
        ready(TPE)
    ready(RANDOM)
    assert called(["propose", "--op", "kda_in_proj", "--search", "nsga", "--runs", str(tmp_path / "runs")]) == 3
    said = capsys.readouterr().err.strip()
    assert "needs optuna: pip install 'kgen[tune]'" in said and "\n" not in said
    assert not (tmp_path / "runs").exists()


def test_a_wrong_method_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(["propose", "--op", "kda_in_proj", "--search", "best", "--runs", str(tmp_path)]) == 2
    assert "tpe" in capsys.readouterr().err


# --- the record


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(record.PATH.read_text(encoding="utf-8"))["rows"]
    return found


def bests(method: str) -> list[float]:
    return [min(us for _, us in row["us"] if us is not None) for row in rows() if row["method"] == method]


def test_the_page_shows_what_is_on_record_of_tpe_and_chance() -> None:
    """Whichever came out better."""
    page = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")
    tpe, chance = bests(TPE), bests(RANDOM)
    assert len(tpe) == len(chance) == len(record.SEEDS)
    for name, found in (("tpe", tpe), ("random", chance)):
        cells = " | ".join(f"{us:.3f}" for us in found)
        assert f"| `{name}` | {cells} | {sum(found):.2f} |" in page


@pytest.mark.parametrize("number", range(2))
def test_the_recorded_choices_are_those_of_today(number: int) -> None:
    row = rows()[number]
    chosen, known = record.Chosen(row["method"], row["seed"]), dict(row["us"])
    for _ in range(record.ROUNDS):
        for made in chosen.next():
            chosen.take(made, known[made.id[:12]])
    assert [c.id[:12] for c in chosen.made] == [name for name, _ in row["us"]], "cd tests && python -m search_record"
