"""The kernel family of attn_res: right in the PTX interpreter for every variant, built for what is served.

Not covered: its speed, which needs a GPU; default axes in the interpreter (test_numeric_ptx.py).
"""

import itertools
import random
from pathlib import Path

import pytest
from support.families import built, interpreted, ready

from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES
from kgen.proposers.families.attn_res import SPACE

OP = REGISTRY.get("attn_res")
FAMILY = FAMILIES["attn_res"]
KNOWN = FAMILY.known
AXES = [dict(zip(OP.axes, values, strict=True)) for values in itertools.product(*OP.axes.values())]


@pytest.mark.deep  # recorded: benchmarks/families.json
def test_the_final_variant_with_a_copy_is_right_in_the_interpreter(tmp_path: Path) -> None:
    axes = {"variant": "final", "aux": "yes"}
    result = interpreted(OP, KNOWN[0], [OP.problem("nano", 1, "sm_90a", axes)], tmp_path)
    assert result.passed and result.code == "numeric.ptx_pass", result.message


def test_the_known_point_builds_for_what_is_served(tmp_path: Path) -> None:
    few, _ = ready(OP, KNOWN[0], tmp_path, 8, ("k3-tp8", "k3-tp16"), {"aux": "yes"})
    (launch,) = few.record.launches
    assert (launch.grid, launch.cluster, launch.block) == ((8, 8, 1), (8, 1, 1), (128, 1, 1))
    assert few.record.ptx["global_loads_16b"] == few.record.ptx["global_loads"] == 13, (
        "8 blocks, prefix, delta, weights"
    )


@pytest.mark.deep
@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_every_point_of_the_space_builds_at_served_dims(arch: str, tmp_path: Path) -> None:
    values = itertools.product(*(p.options for p in SPACE.parameters))
    points = [dict(zip((p.name for p in SPACE.parameters), v, strict=True)) for v in values]
    for point in points:
        if not SPACE.complaints(point):
            problems = [OP.problem("k3-tp8", t, arch, AXES[t % len(AXES)]) for t in (1, 8, 16, 64)]
            for artefact in built(OP, SPACE.variant(point), problems, tmp_path):
                assert {k.stack_bytes for k in artefact.record.kernels} == {0}


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("known", range(len(KNOWN)))
@pytest.mark.parametrize("axes", AXES, ids=lambda a: "-".join(a.values()))
def test_the_known_points_are_right_at_every_bin_and_axis(axes: dict[str, str], known: int, tmp_path: Path) -> None:
    problems = [OP.problem("nano", t, "sm_90a", axes) for t in OP.pack.bins]
    result = interpreted(OP, KNOWN[known], problems, tmp_path)
    assert result.passed, result.message


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(6))
def test_samples_are_right(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    problem = OP.problem("nano", rng.choice((1, 5, 16, 64)), "sm_90a", rng.choice(AXES))
    result = interpreted(OP, FAMILY.sample(rng), [problem], tmp_path)
    assert result.passed, result.message
