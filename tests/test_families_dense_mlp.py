"""The kernel family of dense_mlp: moe_shared's template with rolled loops, right in the PTX interpreter.

Not covered: its speed, which needs a GPU.
"""

import random
from pathlib import Path

import pytest
from support.families import built, interpreted

from kgen.gates.audit.limits import SMEM_BYTES
from kgen.ops import REGISTRY
from kgen.proposers.families import FAMILIES, render
from kgen.proposers.families.dense_mlp import HALF, WIDTHS
from kgen.proposers.families.gated import TEMPLATE, TOKEN_RANGES, fits

OP = REGISTRY.get("dense_mlp")
FAMILY = FAMILIES["dense_mlp"]
KNOWN = [v for v in FAMILY.known if v.template == TEMPLATE]  # those with wgmma: test_families_wgmma.py
WIDE, SHORT = KNOWN
SPACE = FAMILY.spaces[0]


def test_the_source_names_its_op_and_is_of_readable_size() -> None:
    for variant in (*KNOWN, *(SPACE.variant(SPACE.draw(random.Random(s))) for s in range(10))):
        source = render(variant)
        assert source.startswith('"""dense_mlp for a few tokens') and source.count("\n") <= 400


def test_moe_shared_keeps_its_unrolled_loop() -> None:
    source = render(FAMILIES["moe_shared"].known[0])
    assert source.startswith('"""moe_shared for a few tokens') and "def step(" not in source


def test_known_rows_fit_an_sm() -> None:
    for variant in KNOWN:
        for tokens, megabytes, row in variant.values["tuning"]:
            octets = WIDTHS.octets // (
                2 if megabytes == HALF else 1
            )  # rows for half of the weights serve half the width
            assert fits(row, tokens, octets=octets), (tokens, row)


@pytest.mark.deep  # recorded: benchmarks/families.json
def test_loops_that_are_rolled_up_are_right_in_the_interpreter(tmp_path: Path) -> None:
    """Queues of 3 steps before K loops of 4 (gate_up) and 8 (down): several turns, and a rest behind them."""
    result = interpreted(OP, SHORT, [OP.problem("nano", 1, "sm_90a")], tmp_path)
    assert result.passed and result.code == "numeric.ptx_pass", result.message


def test_the_known_point_builds_at_the_width_of_a_rank(tmp_path: Path) -> None:
    (artefact,) = built(OP, WIDE, [OP.problem("k3-tp16", 1, "sm_90a")], tmp_path)
    gate_up, down = artefact.record.launches
    assert (gate_up.grid, down.grid) == ((1, 132, 1), (112, 1, 1))
    assert {k.stack_bytes for k in artefact.record.kernels} == {0}
    assert gate_up.dynamic_smem < SMEM_BYTES


@pytest.mark.parametrize("seed", range(10))
def test_sampled_rows_fit_shared_memory_and_registers(seed: int) -> None:
    table = SPACE.variant(SPACE.draw(random.Random(seed))).values["tuning"]
    assert [entry[0] for entry in table] == list(TOKEN_RANGES)
    assert all(fits(row, tokens, octets=WIDTHS.octets) for tokens, _, row in table)


@pytest.mark.deep
@pytest.mark.parametrize("known", range(2))
def test_the_known_points_build_everywhere_without_a_spill(known: int, tmp_path: Path) -> None:
    problems = [OP.problem(d, t, a) for a in ("sm_90a", "sm_103a") for d in OP.dims for t in (1, 8, 16, 64)]
    made = built(OP, KNOWN[known], problems, tmp_path)
    assert {k.stack_bytes for one in made for k in one.record.kernels} == {0}


@pytest.mark.deep
@pytest.mark.parametrize("known", range(2))
@pytest.mark.parametrize("tokens", [4, 16])
def test_the_known_points_are_right_at_more_tokens(known: int, tokens: int, tmp_path: Path) -> None:
    result = interpreted(OP, KNOWN[known], [OP.problem("nano", tokens, "sm_90a")], tmp_path)
    assert result.passed, result.message
