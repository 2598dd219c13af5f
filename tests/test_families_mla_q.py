"""The kernel family of mla_q: right in the PTX interpreter, built for what is served, within its limits.

Not covered: its speed, which needs a GPU.
"""

import itertools
import random
from pathlib import Path

import pytest
from support.families import built, interpreted, ready

from kgen.gates.audit.limits import SMEM_BYTES
from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES
from kgen.proposers.families.mla_q import BASE, SPACE

OP = REGISTRY.get("mla_q")
FAMILY = FAMILIES["mla_q"]
KNOWN = FAMILY.known


@pytest.mark.parametrize(("warps", "tokens"), [("warps", 16), ("warps_many", 64)])
def test_within_the_limits_q_b_fits_registers_and_sums_of_warps_fit_shared_memory(warps: str, tokens: int) -> None:
    """All combinations; what a thread and a CTA hold at least is counted here from the shapes."""
    kept = 0
    names = ("parts", "ksplit", warps, "vector")
    for values in itertools.product((2, 4), (1, 2, 4), (4, 6, 8), (2, 4, 8)):
        point = {**BASE, **dict(zip(names, values, strict=True))}
        if SPACE.complaints(point):
            continue
        kept += 1
        ctas = point["parts"] * point["ksplit"]
        weights = (192 * 1536 + 128 * 512) // ctas // (32 * point[warps])  # bf16 values of a thread
        assert ctas <= 8 and weights <= 2 * 160, point
        assert tokens * (2 * 1536 // point["ksplit"] + 4 * 192 // point["parts"] * point[warps]) < SMEM_BYTES, point
    assert kept >= 6


@pytest.mark.deep  # recorded: benchmarks/families.json
def test_one_token_is_right_in_the_interpreter(tmp_path: Path) -> None:
    result = interpreted(OP, KNOWN[0], [OP.problem("nano", 1, "sm_90a", {"cache": "e4m3"})], tmp_path)
    assert result.passed and result.code == "numeric.ptx_pass", result.message


def test_the_known_point_gives_every_head_a_cluster_of_8_with_all_weights_in_flight(tmp_path: Path) -> None:
    few, _ = ready(OP, KNOWN[0], tmp_path, 1, ("k3-tp8", "k3-tp16"))
    (launch,) = few.record.launches
    assert (launch.grid, launch.cluster) == ((8, 12, 1), (8, 1, 1)), "12 heads: 96 CTAs"
    assert few.record.ptx["no_allocate"] == 3 * 2 * 3 + 4, "3 row tiles of 2 halves by 3 K steps, and 4 rows of W_UK"


@pytest.mark.deep
@pytest.mark.parametrize("known", range(len(KNOWN)))
@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_the_known_points_build_at_all_dims(known: int, arch: str, tmp_path: Path) -> None:
    axes = [{"cache": c} for c in OP.axes["cache"]]
    problems = [OP.problem(d, t, arch, a) for d, t, a in itertools.product(OP.dims, (1, 16, 64), axes)]
    for artefact in built(OP, KNOWN[known], problems, tmp_path):
        assert {k.stack_bytes for k in artefact.record.kernels} == {0}


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("known", range(len(KNOWN)))
@pytest.mark.parametrize("tokens", OP.pack.bins)
def test_the_known_points_are_right_at_every_bin(tokens: int, known: int, tmp_path: Path) -> None:
    axes = [{"cache": c} for c in OP.axes["cache"]]
    result = interpreted(OP, KNOWN[known], [OP.problem("nano", tokens, "sm_90a", a) for a in axes], tmp_path)
    assert result.passed, result.message


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(8))
def test_samples_build_and_are_right(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    variant, tokens = FAMILY.sample(rng), rng.choice((1, 7, 16, 64))
    built(OP, variant, [OP.problem("k3-tp8", t, "sm_90a") for t in (16, 64)], tmp_path)
    result = interpreted(OP, variant, [OP.problem("nano", tokens, "sm_90a", {"cache": "e4m3"})], tmp_path)
    assert result.passed, result.message
