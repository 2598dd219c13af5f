"""The kernel family of moe_router: right in the PTX interpreter, built for what is served, whole for every parameter.

Not covered: its speed, which needs a GPU.
"""

import itertools
import random
from pathlib import Path

import pytest
from support.families import built, functions, interpreted, ready

from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES, Variant
from kgen.proposers.families.moe_router import BASE, TEMPLATE

OP = REGISTRY.get("moe_router")
FAMILY = FAMILIES["moe_router"]
KNOWN = FAMILY.known
AXES = [dict(zip(OP.axes, values, strict=True)) for values in itertools.product(*OP.axes.values())]
SAMPLES = 8


def test_every_point_covers_all_experts_and_all_of_k_once() -> None:
    for rows, many, ctas in itertools.product((16, 32), (16, 32, 64), (132, 264)):
        plan = functions(Variant(TEMPLATE, {**BASE, "rows": rows, "rows_many": many, "ctas": ctas}))["plan"]
        for dims, tokens in itertools.product(OP.dims, OP.pack.bins):
            sizes = OP.sizes(OP.problem(dims, tokens, "sm_90a"))
            mine, splits = plan(sizes, tokens)
            assert mine % 16 == 0 and sizes["experts"] % mine == 0 and sizes["hidden"] // 32 % splits == 0
            assert sizes["experts"] // mine * splits <= ctas


@pytest.mark.deep  # recorded: benchmarks/families.json
def test_two_tokens_are_right_in_the_interpreter(tmp_path: Path) -> None:
    result = interpreted(OP, KNOWN[0], [OP.problem("nano", 2, "sm_90a")], tmp_path)
    assert result.passed and result.code == "numeric.ptx_pass", result.message


def test_the_known_point_builds_for_what_is_served(tmp_path: Path) -> None:
    few, _ = ready(OP, KNOWN[0], tmp_path, 1, ("k3-tp8", "k3-tp16"))
    (launch,) = few.record.launches
    assert launch.grid == (56, 2, 1), "112 CTAs"
    assert few.record.ptx["no_allocate"] == 28, "all weights of a warp, 2 rows x 14 K steps, are loaded before the wait"


@pytest.mark.deep
def test_many_tokens_are_chosen_by_a_kernel_of_their_own(tmp_path: Path) -> None:
    (made,) = built(OP, KNOWN[0], [OP.problem("k3-tp8", 64, "sm_90a")], tmp_path)
    assert [x.grid for x in made.record.launches] == [(14, 8, 1), (64, 1, 1)]
    assert {k.stack_bytes for k in made.record.kernels} == {0}


@pytest.mark.deep
@pytest.mark.parametrize("known", range(len(KNOWN)))
@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_the_known_points_build_at_all_dims_and_bins(known: int, arch: str, tmp_path: Path) -> None:
    problems = [OP.problem(d, t, arch, AXES[t % 4]) for d, t in itertools.product(OP.dims, OP.pack.bins)]
    for artefact in built(OP, KNOWN[known], problems, tmp_path):
        assert {k.stack_bytes for k in artefact.record.kernels} == {0}


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("known", range(len(KNOWN)))
@pytest.mark.parametrize("tokens", OP.pack.bins)
def test_the_known_points_are_right_at_every_bin(tokens: int, known: int, tmp_path: Path) -> None:
    result = interpreted(OP, KNOWN[known], [OP.problem("nano", tokens, "sm_90a", a) for a in AXES], tmp_path)
    assert result.passed, result.message


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_the_choice_among_all_the_experts_of_a_served_point_is_right(tmp_path: Path) -> None:
    """28 experts a lane, ties among hundreds: more than a bound's worth of candidates."""
    for variant in KNOWN:
        result = interpreted(OP, variant, [OP.problem("k3-tp16", 1, "sm_90a")], tmp_path)
        assert result.passed, result.message


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(SAMPLES))
def test_samples_are_right(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    problem = OP.problem("nano", rng.choice((1, 7, 16, 64)), "sm_90a", rng.choice(AXES))
    result = interpreted(OP, FAMILY.sample(rng), [problem], tmp_path)
    assert result.passed, result.message
