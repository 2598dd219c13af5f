"""The kernel family of oproj_allreduce_residual: right in the PTX interpreter, built for what is served, within limits.

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
from kgen.proposers.families.oproj_allreduce_residual import BASE, PARAMETERS, SPACE

OP = REGISTRY.get("oproj_allreduce_residual")
FAMILY = FAMILIES["oproj_allreduce_residual"]
KNOWN = FAMILY.known
DELTA, FIRST = ({"variant": x} for x in ("delta", "prefix_only"))


def test_within_the_limits_the_queues_of_an_sm_fit_it() -> None:
    """Bytes from the shapes: K steps of 32 bf16 of all rows of a CTA, as many as are in flight."""
    names = [p.name for p in PARAMETERS]
    kept = [
        point
        for values in itertools.product(*(p.options for p in PARAMETERS))
        if not SPACE.complaints(point := dict(zip(names, values, strict=True)))
    ]
    for point in kept:
        rows, per_sm = (64, 1) if point["ctas"] == 132 else (32, 2)
        queue = rows * 64 * min(48, point["depth"] * point["warps_k"])
        assert queue * per_sm < SMEM_BYTES and rows // 16 % point["warps_r"] == 0
        assert point["warps_r"] * point["warps_k"] <= 16
    assert len(kept) > 60
    assert SPACE.complaints({**BASE, "warps_r": 2, "warps_k": 12}), "24 warps"


@pytest.mark.deep  # recorded: benchmarks/families.json
def test_one_token_is_right_in_the_interpreter(tmp_path: Path) -> None:
    """All families of the contract: every depth of blocks, and an own slot full of infinities, among them."""
    result = interpreted(OP, KNOWN[0], [OP.problem("nano", 1, "sm_90a", FIRST)], tmp_path)
    assert result.passed and result.code == "numeric.ptx_pass", result.message


def test_the_known_point_has_all_weights_of_112_ctas_in_flight(tmp_path: Path) -> None:
    few, many = built(OP, KNOWN[0], [OP.problem("k3-tp8", t, "sm_90a", DELTA) for t in (1, 64)], tmp_path)
    assert [(x.grid, x.cluster) for x in few.record.launches] == [((112, 1, 1), (1, 1, 1)), ((8, 1, 1), (8, 1, 1))]
    assert [x.grid for x in many.record.launches] == [(112, 1, 1), (2, 64, 1)]
    assert few.record.ptx["cp_async"] == 12 * 2 * 2, "12 steps of 2 row tiles, all before the wait"
    for made in (few, many):
        assert made.record.ptx["pdl_wait"] == 2
        assert {k.stack_bytes for k in made.record.kernels} == {0}


@pytest.mark.deep
@pytest.mark.parametrize("known", range(len(KNOWN)))
@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_the_known_points_build_at_all_dims(known: int, arch: str, tmp_path: Path) -> None:
    points = itertools.product(OP.dims, (1, 8, 64), (DELTA, FIRST))
    for artefact in built(OP, KNOWN[known], [OP.problem(d, t, arch, a) for d, t, a in points], tmp_path):
        assert {k.stack_bytes for k in artefact.record.kernels} == {0}


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("known", range(len(KNOWN)))
@pytest.mark.parametrize("tokens", OP.pack.bins)
def test_the_known_points_are_right_at_every_bin(tokens: int, known: int, tmp_path: Path) -> None:
    result = interpreted(OP, KNOWN[known], [OP.problem("nano", tokens, "sm_90a", a) for a in (DELTA, FIRST)], tmp_path)
    assert result.passed, result.message


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(8))
def test_samples_build_and_are_right(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    variant, tokens = FAMILY.sample(rng), rng.choice((1, 7, 16, 64))
    made = built(OP, variant, [OP.problem("k3-tp16", t, "sm_90a", DELTA) for t in (1, 64)], tmp_path)
    assert {k.stack_bytes for one in made for k in one.record.kernels} == {0}
    result = interpreted(OP, variant, [OP.problem("nano", tokens, "sm_90a", DELTA)], tmp_path)
    assert result.passed, result.message
