"""The kernel family of mla_decode: right in the PTX interpreter, built for what is served, within its limits.

Not covered: its speed, which needs a GPU.
"""

import itertools
import random
import re
from pathlib import Path

import pytest
from support.families import built, functions, interpreted

from kgen.gates import numeric
from kgen.gates.audit.limits import SMEM_BYTES
from kgen.gates.compile import CompileGate
from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES, Variant, render
from kgen.proposers.families.mla_decode import RING, shared_bytes
from kgen.records import Candidate, GateResult, Origin, Problem

OP = REGISTRY.get("mla_decode")
FAMILY = FAMILIES["mla_decode"]
KNOWN = FAMILY.known
ARCHS = ("sm_90a", "sm_103a")


def cases() -> list[tuple[str, int, dict[str, str]]]:
    """Dims, bins and axes, whole requests only."""
    found = itertools.product(OP.dims, OP.pack.bins, OP.axes["cache"], OP.axes["q"])
    return [(d, t, {"cache": c, "q": q, "lse": "yes"}) for d, t, c, q in found if t % int(q) == 0]


def test_every_column_and_every_sm_has_its_place_in_the_plan() -> None:
    rng = random.Random(5)
    for variant in (*KNOWN, *(FAMILY.sample(rng) for _ in range(20))):
        plan = functions(variant)["plan"]
        for (dims, tokens, axes), arch in itertools.product(cases(), ARCHS):
            sizes = OP.sizes(OP.problem(dims, tokens, arch, axes)) | {"q": int(axes["q"])}
            columns, groups, runs, share = plan(sizes, arch)
            wanted = sizes["q"] * sizes["heads"]
            assert columns % 8 == 0 and (groups - 1) * columns < wanted <= groups * columns
            sms = {"sm_90a": 132, "sm_103a": 148}[arch]
            assert sms - groups < groups * runs <= sms and 16 % share == 0


def test_every_point_has_two_tiles_and_fits_an_sm() -> None:
    rng = random.Random(6)
    for point in (dict(v.values) for v in (*KNOWN, *(FAMILY.sample(rng) for _ in range(50)))):
        assert 2 * point["rows"] * (1152 + 16) <= point["ring"] * 1024
        assert shared_bytes(point) <= SMEM_BYTES


def test_the_first_known_point_keeps_all_sms_busy_for_one_request(tmp_path: Path) -> None:
    problems = [OP.problem(d, 1, a, {"cache": "bf16"}) for d, a in (("k3-tp8", "sm_90a"), ("k3-tp16", "sm_103a"))]
    here, there = built(OP, KNOWN[0], problems, tmp_path)
    attend, merge = here.record.launches
    assert (attend.grid, attend.block, merge.grid) == ((1, 132, 1), (384, 1, 1), (48, 1, 1))
    assert there.record.launches[0].grid == (1, 148, 1)
    assert 5 * 32 * 1152 < attend.dynamic_smem <= shared_bytes(KNOWN[0].values), "five tiles of bf16 rows"
    for artefact in (here, there):
        assert {k.stack_bytes for k in artefact.record.kernels} == {0}
        assert artefact.record.ptx["pdl_wait"] == 2
        named = re.findall(r"bar\S*\.sync\S*\s+([1-9]\d*)\s*,", artefact.ptx.read_text())
        assert sorted(named) == ["1", "2"], "synccheck calls it divergent where warps meet a barrier at two places"


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("known", range(len(KNOWN)))
def test_the_known_points_build_at_all_dims_bins_and_axes(known: int, arch: str, tmp_path: Path) -> None:
    for artefact in built(OP, KNOWN[known], [OP.problem(d, t, arch, axes) for d, t, axes in cases()], tmp_path):
        assert {k.stack_bytes for k in artefact.record.kernels} == {0}


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("known", range(len(KNOWN)))
@pytest.mark.parametrize(("tokens", "axes"), [(t, axes) for d, t, axes in cases() if d == "nano"], ids=str)
def test_the_known_points_are_right_at_every_bin_and_axis(
    tokens: int, axes: dict[str, str], known: int, tmp_path: Path
) -> None:
    result = interpreted(OP, KNOWN[known], [OP.problem("nano", tokens, "sm_90a", axes)], tmp_path)
    assert result.passed, result.message


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bulk", [True, False])
def test_a_slot_of_the_ring_is_filled_anew_only_when_it_is_free(bulk: bool, tmp_path: Path) -> None:
    """Two slots and four tiles a run: the ring of a known point is longer than any run at nano."""
    point = Variant(RING, {"rows": 16, "ring": 40, "warps": 4, "columns": 8, "least": 4, "bulk": bulk})
    wait = "cute.arch.mbarrier_wait(free + slot, turn % 2 ^ 1)"
    source, problem = render(point), OP.problem("nano", 1, "sm_90a", {})
    assert wait in source
    hasty = source.replace(wait, "pass")
    found = [_interpreted(text, problem, tmp_path) for text in (source, hasty)]
    assert [result.code for result in found] == ["numeric.ptx_pass", "numeric.race"]


def _interpreted(source: str, problem: Problem, folder: Path) -> GateResult:
    with CompileGate(OP, folder) as gate:
        report = gate.run(Candidate(OP.name, source, Origin("test")), [problem])
    assert report.result.passed, report.result.message
    return numeric.interpret(OP, list(report.artefacts), cache=folder / "linked")


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(8))
def test_samples_build_for_what_is_served_and_are_right(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    variant, cache, q = FAMILY.sample(rng), rng.choice(OP.axes["cache"]), rng.choice(OP.axes["q"])
    axes = {"cache": cache, "q": q}
    problems = [OP.problem(d, 8, a, axes) for d, a in itertools.product(("k3-tp8", "k3-tp16"), ARCHS)]
    assert {k.stack_bytes for one in built(OP, variant, problems, tmp_path) for k in one.record.kernels} == {0}
    result = interpreted(OP, variant, [OP.problem("nano", int(q), "sm_90a", axes)], tmp_path)
    assert result.passed, result.message
