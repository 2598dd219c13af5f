"""The kernel family of mla_dcp_merge: right in the PTX interpreter, built for what is served, within its limits.

Not covered: its speed, which needs a GPU.
"""

import itertools
import random
from pathlib import Path

import pytest
from support.families import built, interpreted, ready

from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES
from kgen.proposers.families.mla_dcp_merge import BASE, PARAMETERS, SPACE

OP = REGISTRY.get("mla_dcp_merge")
FAMILY = FAMILIES["mla_dcp_merge"]
KNOWN = FAMILY.known


def test_within_the_limits_weights_and_sums_fit_registers() -> None:
    """All combinations; what a thread holds is counted here from the shapes, not by the space's own rule."""
    names = [p.name for p in PARAMETERS]
    kept = 0
    for values in itertools.product(*(p.options for p in PARAMETERS)):
        point = dict(zip(names, values, strict=True))
        if SPACE.complaints(point):
            continue
        kept += 1
        columns, threads = 8 * point["vector"] * point["groups"], 32 * point["warps"]
        weights = 512 // point["ksplit"] * columns / threads / 2  # two bf16 values a register
        sums = columns * 8 * point["tiles"] / 32
        assert columns <= 128 and weights <= 128 and weights + sums <= 192, point
    assert kept > 200
    assert SPACE.complaints({**BASE, "vector": 8, "groups": 2, "warps": 2, "ksplit": 1})


@pytest.mark.deep  # recorded: benchmarks/families.json
def test_two_tokens_are_right_in_the_interpreter(tmp_path: Path) -> None:
    """All families of the contract: empty shards, and logarithms beyond what float32 can raise, among them."""
    result = interpreted(OP, KNOWN[0], [OP.problem("nano", 2, "sm_90a")], tmp_path)
    assert result.passed and result.code == "numeric.ptx_pass", result.message


def test_a_known_point_spreads_every_head_over_8_ctas(tmp_path: Path) -> None:
    few, _ = ready(OP, KNOWN[1], tmp_path, 1, ("k3-tp8", "k3-tp16"))
    (launch,) = few.record.launches
    assert (launch.grid, launch.cluster) == ((4, 24, 1), (4, 1, 1)), "12 heads: 96 CTAs, the latent over clusters of 4"
    assert few.record.ptx["no_allocate"] == 8, "eight latent rows of 16 bytes, before the wait"


@pytest.mark.deep
@pytest.mark.parametrize("known", range(len(KNOWN)))
@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_the_known_points_build_at_all_dims(known: int, arch: str, tmp_path: Path) -> None:
    problems = [OP.problem(d, t, arch) for d, t in itertools.product(OP.dims, (1, 16, 64))]
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
@pytest.mark.parametrize("seed", range(8))
def test_samples_build_and_are_right(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    variant, tokens = FAMILY.sample(rng), rng.choice((1, 7, 16, 64))
    made = built(OP, variant, [OP.problem("k3-tp16", t, "sm_90a") for t in (1, 64)], tmp_path)
    assert {k.stack_bytes for one in made for k in one.record.kernels} == {0}
    result = interpreted(OP, variant, [OP.problem("nano", tokens, "sm_90a")], tmp_path)
    assert result.passed, result.message
