"""The plan of the model evaluation: every build has a seat, claims keep their sizes, nothing is silently left out."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from kgen.gates.modeleval.census import Census
from kgen.gates.modeleval.exercise import FILLED, FORCED, FREE, LONG, TASKS, VERIFY, Exercise, Seeds
from kgen.gates.modeleval.plan import TABLE, Plan, plan, scaled
from kgen.gates.modeleval.questions import questions
from kgen.ops import PACK, REGISTRY
from kgen.records import Problem, from_json, to_json

ARCH, DIMS = "sm_90a", ("k3-tp8", "k3-tp16", "nano")


def problems(op: str, axes: Mapping[str, str], dims: tuple[str, ...] = DIMS) -> list[Problem]:
    """Every bin of an op at these values of its axes."""
    found = REGISTRY.get(op)
    return [found.problem(d, b, ARCH, axes) for d in dims for b in PACK.bins if b % int(axes.get("q", "1")) == 0]


def planned(op: str, axes: Mapping[str, str] | None = None, device: str = "cuda") -> Plan:
    return plan(problems(op, axes or {}), PACK.small, TABLE[device], device, Census(REGISTRY, ARCH))


def kinds(exercises: tuple[Exercise, ...]) -> set[str]:
    return {e.kind for e in exercises}


SEATED = [(op, {}) for op in sorted(REGISTRY.ops) if op != "lm_head_argmax"]


@pytest.mark.parametrize(
    ("op", "axes"),
    [
        *SEATED,
        ("lm_head_argmax", {"logits": "yes"}),
        ("attn_res", {"variant": "final"}),
        ("kda_core", {"q": "4"}),
        ("mla_decode", {"q": "8"}),
        ("mla_decode", {"lse": "yes"}),
        ("mla_kv_append", {"cache": "e4m3"}),
        ("moe_experts", {"acts": "mxfp8"}),
        ("oproj_allreduce_residual", {"variant": "prefix_only"}),
    ],
    ids=lambda v: v if isinstance(v, str) else "-".join(v.values()),
)
def test_every_build_of_any_op_sits_in_some_exercise(op: str, axes: Mapping[str, str]) -> None:
    found = planned(op, axes)
    assert found.unseated == ()
    assert set(found.models) == {"slice-tp8", "slice-tp16", "nano"} and all(found.models.values())
    names = [e.name for exercises in found.models.values() for e in exercises]
    assert len(names) == len(set(names)), "records are filed by name"


def test_builds_that_no_step_calls_are_named() -> None:
    assert planned("lm_head_argmax", {"logits": "no"}).unseated[0].startswith("lm_head_argmax/")


def test_a_verify_width_has_its_own_exercises_and_the_rest_is_reported() -> None:
    found = planned("kda_core", {"q": "8"})
    assert kinds(found.models["slice-tp8"]) == {FORCED, FILLED}
    assert all(e.q == 8 for e in found.models["slice-tp8"])
    assert {e.kind for e in found.models["nano"]} == {FORCED, VERIFY}
    assert any(name.startswith(TASKS) for name in found.not_run)


def test_the_claims_have_the_sizes_that_they_need() -> None:
    found = planned("moe_shared")
    by_kind = {e.kind: e for exercises in found.models.values() for e in exercises}
    assert by_kind[TASKS].items >= 4000 and by_kind[TASKS].count == 64
    assert by_kind[LONG].context >= 16_384 and by_kind[FILLED].context >= 131_072
    assert by_kind[FREE].steps >= 4096  # the last one is the small model's
    drift = [e for e in found.models["slice-tp8"] if e.states]
    assert [(e.steps >= 512, e.states) for e in drift] == [(True, 8)]
    assert {(e.q, e.drafter) for e in found.models["nano"] if e.kind == VERIFY} == {
        (q, d) for q in (4, 8) for d in ("lookup", "bad")
    }
    assert {(e.requests, e.count) for e in found.models["slice-tp8"] if e.kind == FORCED and e.q == 1} >= {
        *((b, b) for b in PACK.bins), (16, 12), (32, 24), (64, 48)
    }  # fmt: skip
    every = [e for exercises in found.models.values() for e in exercises]
    assert all(e.modes == (("eager", "graph") if e.brief else ("graph",)) for e in every)
    assert all(e.steps * e.count * e.q >= 64 for e in every if e.kind == FORCED)


def test_a_scaled_plan_keeps_what_it_claims() -> None:
    half = scaled(TABLE["cuda"], 0.5)
    assert half.rows == 32 and half.free[0] == 32
    kept = ("tasks", "long", "filled", "drift", "long_free")
    assert all(getattr(half, name) == getattr(TABLE["cuda"], name) for name in kept)


def test_the_second_dims_leave_out_what_the_first_measure_and_say_so() -> None:
    found = planned("moe_shared")
    assert {e.kind for e in found.models["slice-tp16"]} == {FORCED, FILLED}
    assert not any(e.states for e in found.models["slice-tp16"])
    assert found.not_run == {"drift and free slice-tp16": "measured at the first dims"}
    alone = plan(problems("moe_shared", {}, ("k3-tp16",)), PACK.small, TABLE["cuda"], "cuda", Census(REGISTRY, ARCH))
    assert any(e.states for e in alone.models["slice-tp16"]) and not alone.not_run


def test_the_profiler_looks_at_a_narrow_a_wide_and_a_drafted_batch_and_at_one_of_each_other_model() -> None:
    found = planned("moe_shared").models
    shown = {m: [(e.requests, e.q) for e in exercises if e.profiled] for m, exercises in found.items()}
    assert shown == {"slice-tp8": [(1, 1), (64, 1), (16, 4)], "slice-tp16": [(64, 1)], "nano": [(64, 1)]}
    assert any(e.profiled for e in planned("kda_core", {"q": "8"}).models["slice-tp8"])


def test_recall_is_asked_at_two_thousand_tokens_as_well() -> None:
    (asked,) = [e for e in planned("moe_shared").models["nano"] if e.kind == TASKS]
    batches = questions(replace(asked, count=16, items=5 * 128), Seeds(1, 2, 3))
    items = [item for batch in batches for item in batch]
    assert len(items) == 5 * 128 and all(len({(i.task, i.length) for i in batch}) == 1 for batch in batches)
    far = [i for i in items if i.length == 2048]
    assert len(far) == 128 // 8 and {i.task for i in far} == {"recall"} and min(len(i.prompt) for i in far) > 2000
    spread = [max(len(i.prompt) for i in b) - min(len(i.prompt) for i in b) for b in batches]
    assert sum(spread) < 4 * len(batches), "what a prefill cannot read of a batch takes steps"


def test_mutants_and_the_switched_off_run_have_narrow_middle_wide_and_drafted_batches() -> None:
    brief = [e for e in planned("moe_shared").models["slice-tp8"] if e.brief]
    assert [(e.requests, e.q) for e in brief] == [(1, 1), (6, 1), (64, 1), (16, 4), (8, 8)]


def test_without_the_small_dims_there_is_no_small_model() -> None:
    found = plan(problems("moe_shared", {}, DIMS[:1]), PACK.small, TABLE["cuda"], "cuda", Census(REGISTRY, ARCH))
    assert list(found.models) == ["slice-tp8"]


def test_dims_without_a_model_have_no_exercises_and_no_seats() -> None:
    given = problems("moe_shared", {}, DIMS[:1])
    found = plan(given, PACK.small, TABLE["cpu"], "cpu", Census(REGISTRY, ARCH))
    assert not found.models and found.unseated == tuple(sorted(p.key for p in given))


def test_exercises_travel_as_json() -> None:
    for exercise in planned("mla_decode", {"q": "4"}).models["nano"]:
        assert from_json(Exercise, to_json(exercise)) == exercise
