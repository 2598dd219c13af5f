"""The kernel family of kda_core: right in the PTX interpreter, built for what is served, whole for every parameter.

Not covered: its speed, which needs a GPU.
"""

import itertools
import random
from pathlib import Path

import pytest
from support.families import built, functions, interpreted, ready

from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES, Variant
from kgen.proposers.families.kda_core import CLUSTER, SPACE

OP = REGISTRY.get("kda_core")
FAMILY = FAMILIES["kda_core"]
KNOWN = FAMILY.known
HEAD = 128
SAMPLES = 12


def test_every_point_divides_every_head_without_a_rest() -> None:
    """Channels and state rows of a head, 16-byte pieces of a row, at all dims, bins and q."""
    shapes = [OP.sizes(OP.problem(d, t, "sm_90a", {"q": q})) for d, t, q in cases()]
    options = [p.options for p in SPACE.parameters if p.name in ("ctas", "elements", "lanes")]
    for ctas, elements, lanes in itertools.product(*options):
        values = {"ctas": ctas, "elements": elements, "lanes": lanes, "early": True, "pdl": True}
        plan = functions(Variant(CLUSTER, values))["plan"]
        for sizes in shapes:
            split, threads, width = plan(sizes)
            own, groups = HEAD // split, threads // width
            assert split in (1, 2, 4, 8) and own * split == HEAD and own % 16 == 0
            assert 32 <= threads <= 1024 and threads % 32 == 0 and width <= 32
            assert groups * width == threads and own % groups == 0 and HEAD % (4 * width) == 0
            assert split == 8 or split * sizes["requests"] * sizes["heads"] >= ctas


def cases() -> list[tuple[str, int, str]]:
    found = itertools.product(OP.dims, OP.pack.bins, OP.axes["q"])
    return [(d, t, q) for d, t, q in found if t % int(q) == 0]  # whole requests


@pytest.mark.deep  # recorded: benchmarks/families.json
def test_one_token_is_right_in_the_interpreter(tmp_path: Path) -> None:
    result = interpreted(OP, KNOWN[0], [OP.problem("nano", 1, "sm_90a")], tmp_path)
    assert result.passed and result.code == "numeric.ptx_pass", result.message


def test_the_known_point_builds_for_what_is_served(tmp_path: Path) -> None:
    few, other = ready(OP, KNOWN[0], tmp_path, 1, ("k3-tp8", "k3-tp16"))
    (launch,) = few.record.launches
    assert (launch.grid, launch.cluster) == ((8, 12, 1), (8, 1, 1)), "one token of 12 heads over 96 CTAs"
    assert other.record.launches[0].grid == (8, 6, 1)


@pytest.mark.deep
@pytest.mark.parametrize("known", range(len(KNOWN)))
@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_the_known_points_build_at_all_dims_bins_and_q(known: int, arch: str, tmp_path: Path) -> None:
    problems = [OP.problem(d, t, arch, {"q": q}) for d, t, q in cases()]
    for artefact in built(OP, KNOWN[known], problems, tmp_path):
        assert {k.stack_bytes for k in artefact.record.kernels} == {0}


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("known", range(len(KNOWN)))
@pytest.mark.parametrize(("tokens", "q"), [(t, q) for d, t, q in cases() if d == "nano"])
def test_the_known_points_are_right_at_every_bin_and_q(tokens: int, q: str, known: int, tmp_path: Path) -> None:
    result = interpreted(OP, KNOWN[known], [OP.problem("nano", tokens, "sm_90a", {"q": q})], tmp_path)
    assert result.passed, result.message


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(SAMPLES))
def test_samples_are_right(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    tokens, q = rng.choice([(1, "1"), (3, "1"), (16, "1"), (8, "4"), (16, "8")])
    result = interpreted(OP, FAMILY.sample(rng), [OP.problem("nano", tokens, "sm_90a", {"q": q})], tmp_path)
    assert result.passed, result.message
