"""The kernel family of moe_experts: right in the PTX interpreter, built for what is served, whole for every parameter.

Not covered: its speed, which needs a GPU.
"""

import itertools
import random
from pathlib import Path

import pytest
from support.families import built, functions, interpreted, ready

from kgen.gates.audit.limits import SMEM_BYTES
from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES, Variant
from kgen.proposers.families.moe_experts import BASE, TEMPLATE

OP = REGISTRY.get("moe_experts")
FAMILY = FAMILIES["moe_experts"]
KNOWN = FAMILY.known
SAMPLES = 6
# Few CTAs and warps, what the interpreter has time for: two groups of warps, slots that are used many times over.
SMALL = Variant(TEMPLATE, {**BASE, "ctas": 3, "warps": 4, "k_warps": 2, "row_warps": 2, "stages": 3})


def test_every_point_covers_all_rows_and_all_of_k_once_and_fits_an_sm() -> None:
    sizes = {(d, t): OP.sizes(OP.problem(d, t, "sm_90a")) for d, t in itertools.product(OP.dims, OP.pack.bins)}
    rng = random.Random(2)
    for point in [v.values for v in (*KNOWN, SMALL, *(FAMILY.sample(rng) for _ in range(12)))]:
        plan = functions(Variant(TEMPLATE, point))["plan"]
        for (_, tokens), s in sizes.items():
            vector, split, rows, warps, slot, stages = plan(s, tokens)
            assert s["latent"] % (8 * vector * split) == 0 and s["width"] % (8 * vector) == 0, "K of both stages"
            assert s["latent"] % (16 * rows) == 0 and s["width"] % 8 == 0, "rows of both stages"
            assert warps % split == 0 and warps % rows == 0 and warps <= point["warps"]
            assert slot >= 17 * s["latent"] // 2 and slot >= 17 * rows * s["width"] // 2, "codes, and a 16th of scales"
            assert 2 <= stages <= point["stages"] and stages * slot < SMEM_BYTES - 1024


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("tokens", OP.pack.bins)
def test_a_small_point_is_right_at_every_bin(tokens: int, tmp_path: Path) -> None:
    result = interpreted(OP, SMALL, [OP.problem("nano", tokens, "sm_90a")], tmp_path)
    assert result.passed and result.code == "numeric.ptx_pass", result.message


def test_the_known_point_builds_for_what_is_served(tmp_path: Path) -> None:
    few, other = ready(OP, KNOWN[0], tmp_path, 1, ("k3-tp8", "k3-tp16"))
    (launch,) = few.record.launches
    assert (launch.grid, launch.block) == ((132, 1, 1), (512, 1, 1)), "14 warps that multiply, one that loads, one more"
    assert launch.attributes["cooperative"], "its CTAs wait for each other"
    assert launch.dynamic_smem >= 6 * 16 * (3584 // 2 + 3584 // 32), "six slots of 16 rows"
    assert other.record.launches[0].grid == (132, 1, 1)


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("known", range(len(KNOWN)))
@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_the_known_points_build_at_all_dims_and_bins(known: int, arch: str, tmp_path: Path) -> None:
    problems = [OP.problem(d, t, arch) for d, t in itertools.product(OP.names(), OP.pack.bins)]
    for artefact in built(OP, KNOWN[known], problems, tmp_path):
        assert {k.stack_bytes for k in artefact.record.kernels} == {0}


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("known", range(len(KNOWN)))
@pytest.mark.parametrize("tokens", OP.pack.bins)
def test_the_known_points_are_right_at_every_bin(tokens: int, known: int, tmp_path: Path) -> None:
    result = interpreted(OP, KNOWN[known], [OP.problem("nano", tokens, "sm_90a")], tmp_path)
    assert result.passed, result.message


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(SAMPLES))
def test_samples_are_right(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    problem = OP.problem("nano", rng.choice((1, 7, 16, 64)), "sm_90a")
    result = interpreted(OP, FAMILY.sample(rng), [problem], tmp_path)
    assert result.passed, result.message
