"""The kernel family of mla_out_gate: right in the PTX interpreter, built for what is served, within its limits.

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
from kgen.proposers.families.mla_out_gate import SPACE, VALUES

OP = REGISTRY.get("mla_out_gate")
FAMILY = FAMILIES["mla_out_gate"]
KNOWN = FAMILY.known


def test_within_the_limits_weights_fit_registers_and_sums_fit_shared_memory() -> None:
    """All combinations; what a thread and a CTA hold is counted here from the shapes, not by the space's own rule."""
    kept = 0
    for vector, warps, ksplit, tiles in itertools.product((2, 4, 8), (4, 8, 16), (1, 2, 4), (1, 2, 4)):
        point = {"vector": vector, "warps": warps, "ksplit": ksplit, "tiles": tiles, "pdl": True}
        weights_of_a_thread = 512 * 8 * vector // (32 * warps * ksplit)  # bf16 values of 8 * vector columns
        sums = [4 * warps * 8 * tiles * (8 * vector + 4)]
        fine = ksplit * warps <= 32 and weights_of_a_thread <= 128 and sums[0] <= SMEM_BYTES - 2048
        assert (SPACE.complaints(point) == []) == fine, point
        kept += fine
    assert 30 < kept < 81


def test_two_tokens_are_right_in_the_interpreter(tmp_path: Path) -> None:
    """All families of the contract: rows of length 0 full of NaN among them."""
    result = interpreted(OP, KNOWN[0], [OP.problem("nano", 2, "sm_90a")], tmp_path)
    assert result.passed and result.code == "numeric.ptx_pass", result.message


def test_a_known_point_spreads_every_head_over_8_ctas(tmp_path: Path) -> None:
    few, other = ready(OP, KNOWN[1], tmp_path, 1, ("k3-tp8", "k3-tp16"))
    (launch,) = few.record.launches
    assert (launch.grid, launch.cluster) == ((4, 24, 1), (4, 1, 1)), "12 heads: 96 CTAs, the latent over clusters of 4"
    assert other.record.launches[0].grid == (4, 12, 1)
    assert few.record.ptx["global_loads_16b"] >= 4, "all weights of a thread at once, 16 bytes each"


@pytest.mark.deep
@pytest.mark.parametrize("known", range(1, len(KNOWN)))
@pytest.mark.parametrize("tokens", [1, 8, 16, 64])
def test_every_known_point_is_right_at_every_width_of_tokens(known: int, tokens: int, tmp_path: Path) -> None:
    result = interpreted(OP, KNOWN[known], [OP.problem("nano", tokens, "sm_90a")], tmp_path)
    assert result.passed, result.message


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(8))
def test_sampled_points_build_everywhere_and_are_right(seed: int, tmp_path: Path) -> None:
    variant = FAMILY.sample(random.Random(seed))
    assert variant.template == VALUES
    problems = [OP.problem(d, t, a) for a in ("sm_90a", "sm_103a") for d in OP.dims for t in (1, 64)]
    made = built(OP, variant, problems, tmp_path)
    assert {k.stack_bytes for one in made for k in one.record.kernels} == {0}
    assert interpreted(OP, variant, [OP.problem("nano", 4, "sm_90a")], tmp_path).passed
