"""Typed spaces of all families: every point within limits, points and values convert back and forth, docs agree."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgen.gates.screen import screen
from kgen.ops import REGISTRY
from kgen.ops.projection import Projection
from kgen.proposers.families import FAMILIES, Choice, Limit, Space, Whole, render

SPACES = [(op, index) for op, family in FAMILIES.items() for index in range(len(family.spaces))]
OF_ONE_SPACE = (
    "attn_res",
    "kda_core",
    "mla_dcp_merge",
    "mla_decode",
    "mla_kv_append",
    "mla_out_gate",
    "mla_q",
    "moe_router",
    "moe_tail",
    "oproj_allreduce_residual",
)  # whose known points lie in it; those of other families need not
PAGE = Path(__file__).parents[1] / "docs/search.md"


def test_every_op_that_the_search_is_asked_to_cover_has_a_family() -> None:
    wanted = {"moe_shared", "attn_res", "moe_router", "kda_core", "mla_out_gate", "dense_mlp"}
    plain = {n for n, op in REGISTRY.ops.items() if isinstance(op, Projection) and len(op.tensors) == 3}
    assert plain >= {"kda_in_proj", "mla_in_proj", "oproj_partial", "moe_latent_down"}
    assert set(FAMILIES) >= wanted | plain


@pytest.mark.parametrize(("op", "index"), SPACES)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_a_drawn_point_is_within_all_limits_and_comes_back_from_its_values(op: str, index: int, seed: int) -> None:
    space = FAMILIES[op].spaces[index]
    point = space.draw(random.Random(seed))
    assert space.complaints(point) == []
    assert set(point) == {p.name for p in space.parameters}
    assert space.point(space.variant(point)) == point
    assert [s.name for s in FAMILIES[op].spaces if s.point(space.variant(point)) is not None] == [space.name]


@pytest.mark.parametrize("op", FAMILIES)
def test_known_and_drawn_points_are_sources_that_the_screen_admits(op: str) -> None:
    family, rng = FAMILIES[op], random.Random(3)
    for variant in (*family.known, *(s.variant(s.draw(rng)) for s in family.spaces)):
        source = render(variant)
        assert screen(source) == [] and source.count("\n") <= 400


@pytest.mark.parametrize("op", OF_ONE_SPACE)
def test_the_known_points_belong_to_the_space_and_samples_stay_in_it(op: str) -> None:
    family, rng = FAMILIES[op], random.Random(1)
    (space,) = family.spaces
    assert [space.point(v) for v in family.known] == [dict(v.values) for v in family.known]
    assert None not in [space.point(family.sample(rng)) for _ in range(50)]


EVEN = Limit(("a", "b"), lambda p: "" if (p["a"] + p["b"]) % 2 == 0 else "a + b is odd")
SMALL = Space("s", "t", (Choice("a", (1, 2, 4)), Whole("b", 0, 9, step=3), Choice("c", ("x", True))), (EVEN,))


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ({"a": 1, "b": 3, "c": "x"}, ""),
        ({"a": 1, "b": 6, "c": "x"}, "a + b is odd"),
        ({"a": 3, "b": 3, "c": "x"}, "a cannot be 3"),
        ({"a": 1, "b": 4, "c": "x"}, "b cannot be 4"),
        ({"a": 1, "b": 12, "c": "x"}, "b cannot be 12"),
        ({"a": True, "b": 3, "c": "x"}, "a cannot be True"),
        ({"a": 1, "b": 3, "c": 1}, "c cannot be 1"),
        ({"a": 1, "b": 3}, "exactly the parameters a, b, c"),
    ],
)
def test_what_is_no_point_is_said_in_one_line(point: dict[str, object], words: str) -> None:
    complaints = SMALL.complaints(point)
    assert bool(complaints) == bool(words) and all(words in line for line in complaints)


def test_repairing_draws_only_what_a_limit_is_about() -> None:
    for seed in range(20):
        point = SMALL.repaired({"a": 1, "b": 6, "c": True}, random.Random(seed))
        assert point["c"] is True and (point["a"] + point["b"]) % 2 == 0


def test_a_space_without_any_point_is_said_and_does_not_spin() -> None:
    never = Space("s", "t", (Choice("a", (1, 2)),), (Limit(("a",), lambda p: "never"),))
    with pytest.raises(ValueError, match="no point of the space s"):
        never.draw(random.Random(0))


def test_logarithmic_numbers_stay_inside_and_reach_both_ends() -> None:
    wide = Whole("n", 1, 64, log=True)
    drawn = [wide.draw(random.Random(s)) for s in range(400)]
    assert min(drawn) == 1 and max(drawn) > 48 and all(wide.holds(n) for n in drawn)
    assert sum(n <= 8 for n in drawn) > sum(n > 8 for n in drawn) * 0.8, "ratios count, not differences"


def test_only_rising_numbers_are_ordered() -> None:
    assert Choice("a", (1, 2, 4)).ordered and not Choice("a", (4, 2)).ordered
    assert not Choice("a", (True, False)).ordered and not Choice("a", ("a", "b")).ordered


def test_the_page_lists_every_family_with_its_spaces() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {op: rows.get(op) for op in FAMILIES} == {
        op: ", ".join(f"{s.name} ({len(s.parameters)})" for s in family.spaces) for op, family in FAMILIES.items()
    }
