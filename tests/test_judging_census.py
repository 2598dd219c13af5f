"""Where a problem sits: the model and verify width that the census finds, and what an exercise's steps call."""

from collections.abc import Mapping

import pytest

from kgen.gates.modeleval.census import Census, config_of
from kgen.gates.modeleval.exercise import EAGER, FORCED, VERIFY, Exercise, Way
from kgen.ops import REGISTRY

ARCH, BASE = "sm_90a", Way("nano-random")
CENSUS = Census(REGISTRY, ARCH)
E4M3 = {op: {"cache": "e4m3"} for op in ("mla_decode", "mla_kv_append", "mla_q")}


def found(op: str, tokens: int, axes: Mapping[str, str] | None = None, base: Way = BASE) -> tuple[Way, int] | None:
    return CENSUS.way_for(REGISTRY.get(op).problem("nano", tokens, ARCH, axes or {}), base)


@pytest.mark.parametrize("tokens", [1, 4, 64])
def test_a_plain_problem_sits_in_the_given_model_itself(tokens: int) -> None:
    assert found("moe_shared", tokens) == (BASE, 1)


@pytest.mark.parametrize(("tokens", "q"), [(4, 4), (64, 4), (8, 8), (64, 8)])
def test_a_verify_width_sits_where_steps_have_it(tokens: int, q: int) -> None:
    assert found("kda_core", tokens, {"q": str(q)}) == (BASE, q)


def test_a_joined_projection_sits_in_a_model_that_joins_it() -> None:
    way, q = found("oproj_allreduce_residual", 2) or (BASE, 0)
    assert (way, q) == (Way("nano-random", fused_oproj=True), 1)


def test_a_split_context_sits_in_a_model_that_splits_it_in_two() -> None:
    assert found("mla_decode", 2, {"lse": "yes"}) == (Way("nano-random", dcp=2), 1)


def test_a_small_cache_is_chosen_for_every_op_that_has_one_and_for_no_other_axis() -> None:
    assert found("mla_kv_append", 4, {"cache": "e4m3"}) == (Way("nano-random", axes=E4M3), 1)


def test_axes_of_the_given_model_are_kept() -> None:
    split = Way("nano-random", axes={"moe_experts": {"acts": "mxfp8"}})
    way, _ = found("mla_decode", 4, {"lse": "yes", "cache": "e4m3"}, split) or (BASE, 0)
    assert way == Way("nano-random", dcp=2, axes={**split.axes, **E4M3, "mla_decode": {"cache": "e4m3", "lse": "yes"}})


@pytest.mark.parametrize("tokens", [1, 2, 8])
def test_what_no_step_calls_sits_nowhere(tokens: int) -> None:
    assert found("lm_head_argmax", tokens, {"logits": "no"}) is None


def key(op: str, tokens: int, axes: Mapping[str, str] | None = None) -> str:
    return REGISTRY.get(op).problem("nano", tokens, ARCH, axes or {}).key


def test_a_drafting_exercise_decodes_the_same_sequences_plainly_too() -> None:
    keys = {key("moe_shared", tokens) for tokens in (1, 2, 4, 8, 16)} | {key("kda_core", 8, {"q": "4"})}
    wide = {key("moe_shared", 8), key("kda_core", 8, {"q": "4"})}
    assert CENSUS.seats(Exercise(VERIFY, BASE, 2, 2, 5, (EAGER,), q=4), keys) == {*wide, key("moe_shared", 2)}
    assert CENSUS.seats(Exercise(FORCED, BASE, 2, 2, 5, (EAGER,), q=4), keys) == wide


def test_depth_keeps_the_first_layers() -> None:
    whole = config_of(BASE).layers
    assert config_of(Way("nano-random", depth=3)).layers == whole[:3] and len(whole) == 8
