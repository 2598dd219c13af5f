"""Points with wgmma: right in the PTX interpreter, built for what is served, rings and clusters as their limits say.

Not covered: their speed, which needs a GPU; how the interpreter judges wgmma and TMA (the tests of its matrix parts).
"""

import random
from pathlib import Path
from typing import Any

import pytest
from support.families import built, functions, interpreted

from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES, Space, Variant
from kgen.proposers.families.wgmma import CLUSTER, HEAD, MLP, TEMPLATE

PROJECTIONS = ("oproj_partial", "kda_in_proj", "mla_in_proj", "moe_latent_down")
OPS = (*PROJECTIONS, "lm_head_argmax", "dense_mlp")
TEMPLATES = (TEMPLATE, HEAD, MLP)
NANO: dict[str, Any] = {  # small rings, that stages come round at the small sizes
    TEMPLATE: {"ctas": 16, "parts": 1, "share": 2, "ring": 22},
    HEAD: {"ctas": 16, "share": 2, "ring": 26},
    MLP: {"ctas": 32, "share": 2, "ring": 34},
}


def known(op: str) -> list[Variant]:
    return [v for v in FAMILIES[op].known if v.template in TEMPLATES]


def projection(op: str, parts: int, share: int = 1) -> Variant:
    """Whatever the order of the known points is."""
    return Variant(TEMPLATE, {**known(op)[0].values, "ctas": 132, "ring": 108, "parts": parts, "share": share})


def space(op: str) -> Space:
    (found,) = [s for s in FAMILIES[op].spaces if s.template in TEMPLATES]
    return found


def small(op: str, **change: object) -> Variant:
    first = known(op)[0]
    return Variant(first.template, {**first.values, **NANO[first.template], **change})


@pytest.mark.parametrize(
    ("op", "ctas", "wanted"),
    [
        # n * parts / 132, up to a multiple of 16: rows a CTA; n / rows, up: groups
        ("oproj_partial", (7168, 1536), (2, 112, 1, 64)),
        ("kda_in_proj", (6288, 7168), (2, 96, 1, 66)),
        ("mla_in_proj", (3648, 7168), (4, 112, 1, 33)),
        ("moe_latent_down", (448, 7168), (8, 32, 1, 14)),
    ],
)
def test_all_rows_have_a_cta_and_no_sm_has_two(op: str, ctas: tuple[int, int], wanted: tuple[int, ...]) -> None:
    shape = functions(projection(op, parts=wanted[0]))["shape"]
    assert shape(*ctas, 64) == wanted
    parts, rows, _, groups = wanted
    assert rows * groups >= ctas[0] and parts * groups <= 132


def test_ctas_that_share_activations_have_eight_tokens_each_to_bring() -> None:
    shape = functions(projection("oproj_partial", parts=2, share=4))["shape"]
    assert [shape(7168, 1536, few)[2] for few in (8, 16, 32, 64)] == [1, 2, 4, 4]


@pytest.mark.parametrize("op", OPS)
def test_clusters_of_drawn_points_are_placed_on_any_gpu(op: str) -> None:
    for seed in range(50):
        point = space(op).draw(random.Random(seed))
        assert max(point.get("parts", 1), point.get("down_parts", 1)) * point["share"] <= CLUSTER


def test_projections_build_for_what_is_served_and_for_where_there_is_no_wgmma(tmp_path: Path) -> None:
    op = REGISTRY.get("oproj_partial")
    problems = [op.problem("k3-tp8", 64, "sm_90a"), op.problem("k3-tp16", 16, "sm_103a")]
    wide, other = built(op, projection(op.name, parts=2), problems, tmp_path)
    (launch,) = wide.record.launches
    assert (launch.grid, launch.cluster, launch.block) == ((2, 64, 1), (2, 1, 1), (256, 1, 1))
    assert 2 * (launch.dynamic_smem + 1024) <= 228 * 1024, "a CTA of the next kernel fits beside this one"
    assert other.record.launches[0].cluster == (1, 1, 1)
    assert {k.stack_bytes for made in (wide, other) for k in made.record.kernels} == {0}


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("tokens", [1, 3, 16, 64])
def test_small_points_are_right_in_the_interpreter(op: str, tokens: int, tmp_path: Path) -> None:
    found = REGISTRY.get(op)
    result = interpreted(found, small(op), [found.problem("nano", tokens, "sm_90a")], tmp_path)
    assert result.passed, result.message


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("op", PROJECTIONS)
@pytest.mark.parametrize("share", [1, 2])
def test_clusters_along_k_are_right_in_the_interpreter(op: str, share: int, tmp_path: Path) -> None:
    found = REGISTRY.get(op)
    result = interpreted(found, small(op, parts=2, share=share), [found.problem("nano", 16, "sm_90a")], tmp_path)
    assert result.passed, result.message


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_the_known_points_build_at_all_dims(op: str, arch: str, tmp_path: Path) -> None:
    found = REGISTRY.get(op)
    problems = [found.problem(d, t, arch) for d in found.dims for t in (1, 8, 16, 64)]
    for variant in known(op):
        for artefact in built(found, variant, problems, tmp_path):
            assert {k.stack_bytes for k in artefact.record.kernels} == {0}
