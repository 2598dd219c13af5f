"""The population and the plans are pure functions of a run's history: what they keep, what they ask for, and why."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgen.loop.plan import MAX_REPAIRS, STUCK, Policy, plan
from kgen.loop.plans import Plan
from kgen.loop.population import (
    BROKEN,
    BUILT,
    NOVEL,
    RIGHT,
    STATIC,
    TIMED,
    Score,
    Specimen,
    distance,
    last_gain,
    population,
    shape,
    span,
    techniques,
)
from kgen.loop.settings import Settings
from kgen.loop.stopping import Standing, stop
from kgen.records import from_json, to_json

RANGES = ("1-8", "9-16", "17-32")
few = settings(max_examples=40, deadline=None)
BINS = {"1-8": (1, 8), "9-16": (16,), "17-32": (32,)}
POLICY = Policy(seed=0, beam=3, explore=0.25)


def specimen(number: int, state: str = RIGHT, round_: int = 1, **more: object) -> Specimen:
    """Right ones cost `us` at the narrow range unless `scores` says otherwise."""
    us = float(str(more.pop("us", 10 + number)))
    given: dict[str, object] = {
        "kind": "design",
        "parents": (),
        "stage": 1 if state == RIGHT else 0,
        "code": "compile.pass" if state == RIGHT else "compile.name",
        "family": "mma",
        "scores": {"1-8": Score(STATIC, us)} if state == RIGHT else {},
        "bins": BINS,
        **more,
    }
    return Specimen(id=f"{number:064x}", number=number, round=round_, state=state, **given)  # type: ignore[arg-type]


@st.composite
def histories(draw: st.DrawFn) -> tuple[Specimen, ...]:
    found: list[Specimen] = []
    for number in range(1, draw(st.integers(0, 14)) + 1):
        state = draw(st.sampled_from((RIGHT, RIGHT, BROKEN, BUILT)))
        family = draw(st.sampled_from(("mma", "fma", "tma")))
        tiers = draw(st.dictionaries(st.sampled_from(RANGES), st.integers(1, 9), min_size=1))
        tier = draw(st.sampled_from((TIMED, STATIC)))
        kind, parents = "design", ()
        if found and draw(st.booleans()):
            kind, parents = draw(st.sampled_from(("repair", "optimise"))), (draw(st.sampled_from(found)).id,)
        found.append(
            specimen(
                number,
                state,
                round_=(number + 2) // 3,
                family=family,
                kind=kind,
                parents=parents,
                stage=draw(st.integers(0, 3)),
                scores={w: Score(tier, float(v)) for w, v in tiers.items()} if state == RIGHT else {},
                shape=frozenset(draw(st.sets(st.sampled_from("abcdefgh")))),
            )
        )
    return tuple(found)


def planned(history: Sequence[Specimen], count: int = 4, policy: Policy = POLICY) -> list[Plan]:
    """The plans of a whole run, each made from the rounds before it."""
    plans: list[Plan] = []
    for number in range(1, max((s.round for s in history), default=0) + 2):
        known = [s for s in history if s.round < number]
        plans.append(plan(number, known, plans, policy, count))
    return plans


@few
@given(histories(), st.integers(1, 5))
def test_the_best_of_every_range_and_family_is_kept_and_the_beam_is_bounded(
    history: tuple[Specimen, ...], beam: int
) -> None:
    found = population(history, beam)
    kept = {m.specimen.id for m in found.members}
    right = [s for s in history if s.right]
    for where in RANGES:
        for family in {s.family for s in right}:
            mine = [s for s in right if s.family == family and where in s.scores]
            if mine:
                lowest = min(s.scores[where] for s in mine)
                assert next(s.id for s in mine if s.scores[where] == lowest) in kept  # the earliest of equals
    assert len(found.beam) == min(beam, len(found.members))
    assert sum(not m.ranges for m in found.members) <= beam
    assert all(m.specimen.right for m in found.members) and len(kept) == len(found.members)


@few
@given(histories(), st.integers(1, 60))
def test_no_best_is_lost_but_to_a_better_one(history: tuple[Specimen, ...], us: int) -> None:
    before = {(w, m.specimen.family): m.specimen for m in population(history, 3).members for w in m.ranges}
    more = (*history, specimen(99, family="fma", scores={w: Score(STATIC, float(us)) for w in RANGES}))
    after = {(w, m.specimen.family): m.specimen for m in population(more, 3).members for w in m.ranges}
    for cell, best in before.items():
        assert after[cell].id == best.id or after[cell].scores[cell[0]] < best.scores[cell[0]]


@few
@given(histories(), st.integers(1, 6))
def test_a_plan_fills_its_slots_and_gives_a_reason_for_each(history: tuple[Specimen, ...], count: int) -> None:
    known = {s.id: s for s in history}
    for made in planned(history, count):
        assert sum(a.count for a in made.asks) == count
        assert [a.number for a in made.asks] == list(range(1, len(made.asks) + 1))
        for ask in made.asks:
            parents = [known[p] for p in ask.parents]
            wanted = {"design": 0, "restart": 0, "repair": 1, "optimise": 1, "crossover": 2}[ask.kind]
            assert len(parents) == wanted and ask.reason
            assert all(p.state == (BROKEN if ask.kind == "repair" else RIGHT) for p in parents)  # correctness first
            if ask.kind == "crossover":
                assert parents[0].id != parents[1].id
        assert all(d.reason for d in made.decisions)
        assert {(d.what, d.reason) for d in made.decisions} >= {(a.kind, a.reason) for a in made.asks}


@few
@given(histories())
def test_the_same_history_and_seed_give_the_same_plan_and_it_survives_storage(history: tuple[Specimen, ...]) -> None:
    plans = planned(history)
    assert plans == planned(history)
    assert [from_json(Plan, to_json(p)) for p in plans] == plans


def kinds(made: Plan) -> list[tuple[str, int]]:
    return [(a.kind, a.count) for a in made.asks]


def test_a_first_round_is_all_designs() -> None:
    assert kinds(plan(1, (), (), POLICY, 5)) == [("design", 5)]


def test_nothing_is_optimised_before_something_is_right() -> None:
    broken = (specimen(1, BROKEN, stage=0), specimen(2, BROKEN, stage=1, code="numeric.error", family="fma"))
    made = plan(2, broken, planned(broken)[:1], Policy(0, 3, 0.0), 3)
    assert [(a.kind, a.parents) for a in made.asks] == [
        ("repair", (broken[1].id,)),  # it came further
        ("repair", (broken[0].id,)),
        ("design", ()),
    ]
    assert "correctness first" in made.asks[0].reason and "unit-numeric with numeric.error" in made.asks[0].reason


def test_a_line_is_given_up_after_three_repairs() -> None:
    line = [specimen(1, BROKEN)]
    for number in range(2, MAX_REPAIRS + 2):
        line.append(specimen(number, BROKEN, round_=number, kind="repair", parents=(line[-1].id,)))
    plans = planned(line, count=1, policy=Policy(0, 3, 0.0))
    assert [kinds(p) for p in plans[1:]] == [[("repair", 1)]] * MAX_REPAIRS + [[("restart", 1)]]
    given_up = [d for d in plans[-1].decisions if d.what == "give-up"]
    assert [d.candidates for d in given_up] == [(line[-1].id,)] and "3 repairs" in given_up[0].reason


def test_a_family_with_a_right_candidate_is_not_repaired_for_ever() -> None:
    history = (specimen(1), specimen(2, BROKEN, round_=1), specimen(3, round_=2, us=5))
    made = plan(3, history, (), Policy(0, 3, 0.0), 2)  # number 2 failed two rounds ago
    assert [(a.kind, a.parents) for a in made.asks] == [("optimise", (history[2].id,))] * 2


def test_leaders_of_different_ranges_are_crossed_once() -> None:
    narrow = specimen(1, scores={"1-8": Score(STATIC, 3.0), "17-32": Score(STATIC, 9.0)})
    wide = specimen(2, family="fma", scores={"1-8": Score(STATIC, 5.0), "17-32": Score(STATIC, 6.0)})
    made = plan(2, (narrow, wide), (), Policy(0, 3, 0.0), 3)
    assert made.asks[0].kind == "crossover" and made.asks[0].parents == (narrow.id, wide.id)
    assert "leads 1-8" in made.asks[0].reason and "leads 17-32" in made.asks[0].reason
    again = plan(3, (narrow, wide), (made,), Policy(0, 3, 0.0), 3)
    assert "crossover" not in {a.kind for a in again.asks}


def test_one_parent_best_everywhere_is_not_crossed() -> None:
    best = specimen(1, scores={w: Score(STATIC, 1.0) for w in RANGES})
    other = specimen(2, family="fma", scores={w: Score(STATIC, 2.0) for w in RANGES})
    assert "crossover" not in {a.kind for a in plan(2, (best, other), (), POLICY, 6).asks}


def test_the_range_with_the_worst_ratio_is_what_an_optimisation_is_about() -> None:
    timed = specimen(1, scores={"1-8": Score(TIMED, 0.6), "9-16": Score(TIMED, 0.95), "17-32": Score(TIMED, 0.8)})
    (ask,) = plan(2, (timed,), (), Policy(0, 3, 0.0), 1).asks
    assert (ask.kind, ask.tokens) == ("optimise", (16,)) and "ratio 0.950 at 9-16" in ask.reason


def test_the_beam_takes_turns() -> None:
    three = tuple(specimen(n, family=f) for n, f in ((1, "mma"), (2, "fma"), (3, "tma")))
    made = plan(2, three, (), Policy(0, 3, 0.0), 6)
    assert [a.parents[0] for a in made.asks] == [three[i].id for i in (0, 1, 2, 0, 1, 2)]


def test_exploration_takes_its_share_of_the_asks_and_none_at_zero() -> None:
    right, plans = (specimen(1),), [plan(1, (), (), POLICY, 4)]
    for number in range(2, 7):  # no round is stuck: each has a better one
        right += (specimen(number, round_=number - 1, us=10.0 - number),)
        plans.append(plan(number, right, plans, POLICY, 4))
    fresh = sum(a.count for p in plans[1:] for a in p.asks if a.kind == "design")
    assert fresh == 5  # a quarter of 20
    assert all(a.kind == "optimise" for a in plan(2, right[:1], (), replace(POLICY, explore=0.0), 8).asks)


def test_a_stuck_run_starts_afresh_with_half_its_slots_and_then_waits() -> None:
    history = (specimen(1), *(specimen(n, round_=n, us=50) for n in range(2, 3 + STUCK)))
    plans = planned(history, count=4)
    restarts = [p.number for p in plans if "restart" in {a.kind for a in p.asks}]
    assert restarts == [2 + STUCK]
    stuck = plans[restarts[0] - 1]
    assert ("restart", 2) in kinds(stuck) and "the last gain was in round 1" in stuck.asks[0].reason
    assert restarts[0] + 1 <= len(plans)  # the round after it is given a chance


def test_a_gain_is_more_than_noise_a_new_range_or_a_clocks_word() -> None:
    first = specimen(1, us=10)
    assert last_gain((first, specimen(2, round_=2, us=9.95))) == 1
    assert last_gain((first, specimen(2, round_=2, us=9.5))) == 2
    assert last_gain((first, specimen(2, round_=2, scores={"17-32": Score(STATIC, 99.0)}))) == 2
    assert last_gain((first, specimen(2, round_=2, scores={"1-8": Score(TIMED, 1.4)}))) == 2
    assert last_gain((specimen(1, BROKEN), specimen(2, BROKEN, round_=2, stage=1))) == 2
    assert last_gain((specimen(1, BROKEN), specimen(2, BROKEN, round_=2))) == 1


@pytest.mark.parametrize(
    ("tokens", "where"), [(1, "1-8"), (8, "1-8"), (9, "9-16"), (16, "9-16"), (32, "17-32"), (64, "33-64")]
)
def test_ranges_double(tokens: int, where: str) -> None:
    assert span(tokens) == where


BODY = "def build(dims, tokens, arch):\n    return f({})\n"
OTHER = "class K:\n    def go(self):\n        for i in range(3):\n            self.x[i] = cute.arch.warp_sum(i)\n"


def test_numbers_do_not_make_a_source_novel_and_another_structure_does() -> None:
    one, same, other = shape(BODY.format(3)), shape(BODY.format(77) + "# a comment\n"), shape(OTHER)
    assert distance(one, same) == 0.0
    assert distance(one, other) > NOVEL
    assert distance(shape("not python ("), one) == 1.0
    assert distance(frozenset(), frozenset()) == 0.0


def test_a_right_candidate_unlike_all_is_kept_although_it_is_slow() -> None:
    fast, slow = specimen(1, us=3, shape=frozenset("abcd")), specimen(2, us=9, shape=frozenset("wxyz"))
    near = specimen(3, us=8, shape=frozenset("abcde"))
    found = population((fast, slow, near), 3)
    assert [(m.specimen.number, m.ranges, m.distance) for m in found.members] == [(1, ("1-8",), 0.0), (2, (), 1.0)]


def test_families_are_told_apart_by_what_a_source_uses() -> None:
    assert techniques("x = 1") == "plain"
    assert techniques("cute.nvgpu.warp.MmaF16BF16Op()\ngriddepcontrol_wait()") == "mma+pdl"


SETTINGS = Settings("moe_shared", "list", rounds=9, candidates=20)


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({}, ""),
        ({"patience": 3}, "patience"),
        ({"patience": 4}, ""),
        ({"stop_roofline": 0.8}, "roofline"),
        ({"stop_roofline": 0.9}, ""),
        ({"rounds": 4}, "rounds"),
    ],
)
def test_rules_end_a_run_and_say_which(more: dict[str, int], rule: str) -> None:
    history = (specimen(1, roofline=0.85), specimen(2, BROKEN, round_=4, roofline=0.99))
    ended = stop(Standing(4, history, 5, 60.0, 0.0, reached=False), replace(SETTINGS, **more))
    assert (ended.rule if ended else "") == rule and (ended is None or ended.reason)


def test_a_run_told_to_improve_goes_on_behind_the_first_candidate_that_got_far() -> None:
    standing = Standing(1, (specimen(1),), 5, 60.0, 0.0, reached=True)
    ended = stop(standing, SETTINGS)
    assert ended is not None and ended.rule == "reached"
    assert stop(standing, replace(SETTINGS, patience=2)) is None
    assert stop(standing, replace(SETTINGS, stop_roofline=0.9)) is None
