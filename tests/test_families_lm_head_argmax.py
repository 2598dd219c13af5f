"""The kernel family of lm_head_argmax: right in the PTX interpreter, built for what is served, within its limits.

Not covered: its speed, which needs a GPU.
"""

import itertools
import random
from pathlib import Path

import pytest
from support.families import built, functions, interpreted

from kgen.gates.audit.limits import SMEM_BYTES
from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES, Variant
from kgen.proposers.families.lm_head_argmax import BASE, PARAMETERS, SPACE, TEMPLATE

OP = REGISTRY.get("lm_head_argmax")
FAMILY = FAMILIES["lm_head_argmax"]
KNOWN = FAMILY.known
YES, NO = ({"logits": x} for x in ("yes", "no"))


@pytest.mark.parametrize("ctas", [132, 264])
def test_every_row_of_the_vocabulary_has_one_block_and_all_blocks_are_equal(ctas: int) -> None:
    blocks = functions(Variant(TEMPLATE, {**BASE, "ctas": ctas}))["blocks"]
    for dims in OP.dims:
        vocab = OP.dims[dims]["vocab"]
        count, tiles = blocks(vocab)
        assert count * tiles * 16 == vocab and count <= ctas
    assert blocks(20480) == ((128, 10) if ctas == 132 else (256, 5))


def test_within_the_limits_the_queue_of_every_cta_of_an_sm_fits_it() -> None:
    """The queue in bytes from the shapes: stages of (rows + tokens) x K steps of 32 bf16."""
    names = [p.name for p in PARAMETERS]
    kept = [
        point
        for values in itertools.product(*(p.options for p in PARAMETERS))
        if not SPACE.complaints(point := dict(zip(names, values, strict=True)))
    ]
    for point in kept:
        rows = 20480 // (128 if point["ctas"] == 132 else 256)
        queue = point["depth"] * (rows + 64) * 64 * point["unroll"] * point["warps_k"]
        assert queue * (point["ctas"] // 132) < SMEM_BYTES and rows // 16 % point["warps_r"] == 0
    assert len(kept) > 60


@pytest.mark.deep  # recorded: benchmarks/families.json
def test_one_token_is_right_in_the_interpreter(tmp_path: Path) -> None:
    """All families of the contract: ties, NaN and infinities among them."""
    result = interpreted(OP, KNOWN[0], [OP.problem("nano", 1, "sm_90a", YES)], tmp_path)
    assert result.passed and result.code == "numeric.ptx_pass", result.message


def test_the_known_point_streams_128_blocks_through_a_full_queue(tmp_path: Path) -> None:
    wide, narrow = built(
        OP, KNOWN[0], [OP.problem("k3-tp8", 64, "sm_90a", NO), OP.problem("k3-tp16", 1, "sm_103a", YES)], tmp_path
    )
    for made, stages in ((wide, 6), (narrow, 6)):
        (launch,) = made.record.launches
        assert launch.grid == (128, 1, 1)
        assert {k.stack_bytes for k in made.record.kernels} == {0}
        row_tiles = 2 if made is wide else 1  # of a warp
        token_tiles = 8 if made is wide else 1
        assert made.record.ptx["cp_async"] == stages * (2 * row_tiles + token_tiles), "the last stage in the loop"
        assert made.record.ptx["pdl_wait"] == 1
    assert wide.record.workspaces == (("i32", (128, 64, 2)), ("i32", (1,)))


@pytest.mark.deep
@pytest.mark.parametrize("known", range(len(KNOWN)))
@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_the_known_points_build_at_all_dims(known: int, arch: str, tmp_path: Path) -> None:
    problems = [OP.problem(d, t, arch, a) for d, t, a in itertools.product(OP.dims, (1, 8, 64), (YES, NO))]
    for artefact in built(OP, KNOWN[known], problems, tmp_path):
        assert {k.stack_bytes for k in artefact.record.kernels} == {0}


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("known", range(len(KNOWN)))
@pytest.mark.parametrize("tokens", OP.pack.bins)
def test_the_known_points_are_right_at_every_bin(tokens: int, known: int, tmp_path: Path) -> None:
    result = interpreted(OP, KNOWN[known], [OP.problem("nano", tokens, "sm_90a", a) for a in (YES, NO)], tmp_path)
    assert result.passed, result.message


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(8))
def test_samples_build_and_are_right(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    variant, tokens = FAMILY.sample(rng), rng.choice((1, 7, 16, 64))
    built(OP, variant, [OP.problem("k3-tp8", t, "sm_90a", NO) for t in (1, 64)], tmp_path)
    result = interpreted(OP, variant, [OP.problem("nano", tokens, "sm_90a", YES)], tmp_path)
    assert result.passed, result.message
