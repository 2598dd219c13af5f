"""The kernel family of mla_kv_append: right in the PTX interpreter, built for what is served.

Not covered: its speed, which needs a GPU.
"""

import itertools
import random
from pathlib import Path

import pytest
from support.families import built, functions, interpreted

from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES, Variant
from kgen.proposers.families.mla_kv_append import ROWS, SPACE

OP = REGISTRY.get("mla_kv_append")
FAMILY = FAMILIES["mla_kv_append"]
KNOWN = FAMILY.known
CACHES = OP.axes["cache"]


def test_every_point_covers_each_row_once_within_a_cta() -> None:
    """All combinations at all bins: lanes times their vectors are the latent, the key has lanes enough."""
    for lanes, own in itertools.product(*(p.options for p in SPACE.parameters if p.name in ("lanes", "tokens"))):
        values = {"lanes": lanes, "tokens": own, "early": True, "pdl": True}
        plan = functions(Variant(ROWS, values))["plan"]
        for dims, tokens in itertools.product(OP.dims, OP.pack.bins):
            vector, vectors, tokens_of_a_cta = plan(OP.sizes(OP.problem(dims, tokens, "sm_90a")))
            assert lanes * vectors * vector == 512 and 64 % vector == 0 and 64 // vector <= lanes
            assert tokens % tokens_of_a_cta == 0 and tokens_of_a_cta <= own and lanes * tokens_of_a_cta <= 1024


@pytest.mark.parametrize("cache", CACHES)
def test_the_known_point_builds_for_what_is_served(cache: str, tmp_path: Path) -> None:
    problems = [OP.problem(d, 2, a, {"cache": cache}) for d, a in (("k3-tp8", "sm_90a"), ("k3-tp16", "sm_103a"))]
    for artefact in built(OP, KNOWN[0], problems, tmp_path):
        (launch,) = artefact.record.launches
        assert (launch.grid, launch.block) == ((2, 1, 1), (64, 1, 1)), "a CTA a token, 16 bytes a lane"
        assert {k.stack_bytes for k in artefact.record.kernels} == {0}
        assert artefact.record.ptx["global_loads_16b"] == 3 and artefact.record.ptx["pdl_wait"] == 1


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("known", range(len(KNOWN)))
@pytest.mark.parametrize("tokens", OP.pack.bins)
def test_every_known_point_is_right_at_every_bin(tokens: int, known: int, cache: str, tmp_path: Path) -> None:
    result = interpreted(OP, KNOWN[known], [OP.problem("nano", tokens, "sm_90a", {"cache": cache})], tmp_path)
    assert result.passed, result.message


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(8))
def test_sampled_points_build_everywhere_and_are_right(seed: int, tmp_path: Path) -> None:
    variant, cache = FAMILY.sample(random.Random(seed)), CACHES[seed % 2]
    problems = [
        OP.problem(d, t, a, {"cache": cache}) for a in ("sm_90a", "sm_103a") for d in OP.dims for t in (1, 6, 64)
    ]
    made = built(OP, variant, problems, tmp_path)
    assert {k.stack_bytes for one in made for k in one.record.kernels} == {0}
    assert interpreted(OP, variant, [OP.problem("nano", 6, "sm_90a", {"cache": cache})], tmp_path).passed
