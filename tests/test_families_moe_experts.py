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
from kgen.proposers.families.moe_experts import BASE, TEMPLATE, TILES_TEMPLATE

OP = REGISTRY.get("moe_experts")
FAMILY = FAMILIES["moe_experts"]
KNOWN = FAMILY.known
SAMPLES = 6
# Few CTAs and warps, what the interpreter has time for: two groups of warps, slots that are used many times over.
FEW = {**BASE, "ctas": 3, "warps": 4, "k_warps": 2, "row_warps": 2, "stages": 3}
SMALL = Variant(TEMPLATE, FEW)
SMALL_TILES = tuple(Variant(TILES_TEMPLATE, {**FEW, "tiles": n}) for n in (1, 2))
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def test_every_point_covers_all_rows_and_all_of_k_once_and_fits_an_sm() -> None:
    sizes = {(d, t): OP.sizes(OP.problem(d, t, "sm_90a")) for d, t in itertools.product(OP.dims, OP.pack.bins)}
    rng = random.Random(2)
    for variant in (*KNOWN, SMALL, *SMALL_TILES, *(FAMILY.sample(rng) for _ in range(12))):
        plan, point = functions(variant)["plan"], variant.values
        for (_, tokens), s in sizes.items():
            vector, split, rows, warps, slot, stages, *tiles = plan(s, tokens)
            assert tiles in ([], [min(point.get("tiles", 1), -(-tokens // 8))]), "of 8 tokens in a segment"
            assert s["latent"] % (8 * vector * split) == 0 and s["width"] % (8 * vector) == 0, "K of both stages"
            assert s["latent"] % (16 * rows) == 0 and s["width"] % 8 == 0, "rows of both stages"
            assert warps % split == 0 and warps % rows == 0 and warps <= point["warps"]
            assert slot >= 17 * s["latent"] // 2 and slot >= 17 * rows * s["width"] // 2, "codes, and a 16th of scales"
            assert 2 <= stages <= point["stages"] and stages * slot < SMEM_BYTES - 1024


def test_each_known_point_lies_in_one_space() -> None:
    assert [[s.name for s in FAMILY.spaces if s.point(v)] for v in KNOWN] == 3 * [["stream"]] + 4 * [["tiles"]]


def test_a_product_brings_the_bits_of_every_code_to_their_places() -> None:
    names, rng = functions(KNOWN[3]), random.Random(1)
    for word in (rng.getrandbits(32) for _ in range(500)):
        for n in range(4):
            nibbles = word >> n // 2 * 8 & names["NIBBLES"] << 4 * (n % 2)
            product = nibbles * names["SPREAD"][n % 2]
            assert product < 1 << 32, "nothing is carried out of the word"
            for half in (0, 1):
                code, found = word >> 4 * (n + 4 * half) & 15, (product & names["PLACES"]) >> 16 * half & 0xFFFF
                exponent, fraction = found >> 7 & 255, found & 127
                value = 2.0 ** (max(exponent, 1) - 1) * (fraction / 128 + (exponent > 0))  # times 2^126
                assert (found >> 15, value) == (code >> 3, E2M1[code & 7]), "codes i and i + 4 are a pair"


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("small", [SMALL, *SMALL_TILES], ids=["stream", "one tile", "two tiles"])
@pytest.mark.parametrize("tokens", OP.pack.bins)
def test_a_small_point_is_right_at_every_bin(tokens: int, small: Variant, tmp_path: Path) -> None:
    result = interpreted(OP, small, [OP.problem("nano", tokens, "sm_90a")], tmp_path)
    assert result.passed and result.code == "numeric.ptx_pass", result.message


@pytest.mark.parametrize(("known", "slots", "tokens"), [(0, 6, 1), (3, 6, 1), (5, 5, 64)])
def test_known_points_build_for_what_is_served(known: int, slots: int, tokens: int, tmp_path: Path) -> None:
    mine, other = ready(OP, KNOWN[known], tmp_path, tokens, ("k3-tp8", "k3-tp16"))
    (launch,) = mine.record.launches
    assert (launch.grid, launch.block) == ((132, 1, 1), (512, 1, 1)), "14 warps that multiply, one that loads, one more"
    assert launch.attributes["cooperative"], "its CTAs wait for each other"
    assert launch.dynamic_smem >= slots * 16 * (3584 // 2 + 3584 // 32), "slots of 16 rows"
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
