"""The kernel family of moe_tail: right in the PTX interpreter, built for what is served, within its limits.

Not covered: its speed, which needs a GPU.
"""

import itertools
import random
from pathlib import Path

import pytest
from support.families import built, interpreted

from kgen.gates.audit.limits import SMEM_BYTES
from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES
from kgen.proposers.families.moe_tail import BASE, PARAMETERS, SPACE

OP = REGISTRY.get("moe_tail")
FAMILY = FAMILIES["moe_tail"]
KNOWN = FAMILY.known


def test_within_the_limits_k_goes_over_ctas_and_warps_and_the_queue_fits() -> None:
    names = [p.name for p in PARAMETERS]
    kept = [
        point
        for values in itertools.product(*(p.options for p in PARAMETERS))
        if not SPACE.complaints(point := dict(zip(names, values, strict=True)))
    ]
    for point in kept:
        queue = 32 * 32 * point["warps_r"] * point["warps_k"] * point["depth"]  # a lane's two rows of 16 bytes
        assert 3584 % (32 * point["ksplit"] * point["warps_k"]) == 0
        assert queue + 64 * 2 * 3584 // point["ksplit"] < SMEM_BYTES
    assert len(kept) > 150


@pytest.mark.deep  # recorded: benchmarks/families.json
def test_one_token_is_right_in_the_interpreter(tmp_path: Path) -> None:
    """All families of the contract: sums that only the order of ranks gets right among them."""
    result = interpreted(OP, KNOWN[0], [OP.problem("nano", 1, "sm_90a")], tmp_path)
    assert result.passed and result.code == "numeric.ptx_pass", result.message


def test_the_known_point_has_all_weights_of_112_ctas_in_flight_and_adds_many_tokens_before(tmp_path: Path) -> None:
    few, many = built(OP, KNOWN[0], [OP.problem("k3-tp8", t, "sm_90a") for t in (1, 64)], tmp_path)
    (launch,) = few.record.launches
    assert (launch.grid, launch.cluster, launch.block) == ((8, 14, 1), (8, 1, 1), (256, 1, 1))
    assert few.record.ptx["cp_async"] == 2 * 7, "all 7 pieces before the wait, none after"
    assert [x.grid for x in many.record.launches] == [(64 * 3584 // 8 // 128, 1, 1), (8, 14, 1)]
    assert many.record.workspaces == (("bf16", (1, 64, 3584)),)
    assert {k.stack_bytes for made in (few, many) for k in made.record.kernels} == {0}


@pytest.mark.deep
@pytest.mark.parametrize("known", range(len(KNOWN)))
@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_the_known_points_build_at_all_dims(known: int, arch: str, tmp_path: Path) -> None:
    problems = [OP.problem(d, t, arch) for d, t in itertools.product(OP.dims, (1, 8, 64))]
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
    built(OP, variant, [OP.problem(d, t, "sm_90a") for d in ("k3-tp8", "vllm-tp1") for t in (1, 64)], tmp_path)
    result = interpreted(OP, variant, [OP.problem("nano", tokens, "sm_90a")], tmp_path)
    assert result.passed, result.message


def test_a_queue_that_does_not_fit_beside_all_tokens_is_no_point() -> None:
    assert SPACE.complaints({**BASE, "ksplit": 4, "warps_r": 2, "warps_k": 7, "depth": 14})
    assert SPACE.complaints({**BASE, "ksplit": 8, "warps_r": 8, "warps_k": 7})
