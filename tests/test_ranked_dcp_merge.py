"""A context that ranks share, merged by the heads' owners: what its contract refuses, and a kernel on all ranks.

The real compiler builds the kernel, the interpreter runs it; a mistake in it must be refused within ranked_run.SEEDS.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support.collective_faults import MERGE, MISTAKES_MERGE, TO_OWNERS
from support.deep import deep, listed
from support.ranked_run import built, execute, refused

from kgen.contract.op import Values
from kgen.contract.ranks import AXIS
from kgen.contract.selftest import complaints
from kgen.ops import REGISTRY
from kgen.ops.ranked_mla_dcp_merge import RankedMlaDcpMerge
from kgen.records import Problem

OP = RankedMlaDcpMerge()
FAMILIES = tuple(f.name for f in OP.families)
HEADS = 2  # of a rank
SMEM = 232_448  # bytes that a CTA can have on sm_90a
EVERY_RUN = ("missing fence", "reads the other parity's lses", "the sentinel sent as an lse")


def drawn(family: str, ranks: str = "4", tokens: int = 3) -> tuple[Problem, Values]:
    problem = OP.problem("nano", tokens, "sm_90a", {AXIS: ranks})
    return problem, OP.inputs(problem, family, 5, "cpu")


# -- the contract


def test_the_contract_is_fit_to_judge() -> None:
    assert complaints(OP) == ()


@pytest.mark.parametrize("ranks", ["2", "16"])
def test_stock_passes_every_family(ranks: str) -> None:
    for family in FAMILIES:
        problem, values = drawn(family, ranks)
        got, (rounded, true) = OP.stock(problem)(values), (OP.reference(problem, values, way) for way in (True, False))
        assert not OP.rule(OP.tensors[-1]).judge(got["y"], got["y"], rounded["y"], true["y"], 1).complaint, family
        assert OP.hard_rules(problem, values, got) == []


@pytest.mark.parametrize("family", ["normal", "some_empty", "spread"])
def test_an_owner_merges_what_all_ranks_have_of_its_own_heads(family: str) -> None:
    problem, values = drawn(family)
    one, alone = REGISTRY.get("mla_dcp_merge"), REGISTRY.get("mla_dcp_merge").problem("nano", 3, "sm_90a")
    got = OP.reference(problem, values, rounded=True)["y"]
    for owner in range(4):
        heads = [HEADS * owner + h for h in range(HEADS)]
        slots = {n: values[n][:, :, heads] for n in ("lat", "lse")}
        want = one.reference(alone, {**slots, "w_uv": values["w_uv"][owner], "p": values["p"][owner]}, rounded=True)
        assert torch.equal(got[owner], want["y"])


def test_a_mean_that_is_worked_out_by_hand() -> None:
    problem, values = drawn("normal", ranks="2", tokens=1)
    lse = [float(values["lse"][rank, 0, HEADS]) for rank in range(2)]  # the first head of rank 1
    share = 1 / (1 + 2 ** (lse[0] - lse[1]))
    lat = (1 - share) * values["lat"][0, 0, HEADS].double() + share * values["lat"][1, 0, HEADS].double()
    gate = float(values["p"][1, 0, OP.sizes(problem)["gate_at"]])
    want = float(lat @ values["w_uv"][1, 0, :, 0].double()) / (1 + math.exp(-gate))
    assert float(OP.reference(problem, values, rounded=False)["y"][1, 0, 0]) == pytest.approx(want, rel=1e-9)


def test_a_part_that_was_left_out_and_a_y_that_is_not_finite_are_named() -> None:
    problem, values = drawn("one_full")
    got = OP.stock(problem)({**values, "lat": values["lat"].clone().index_fill_(0, torch.tensor([2]), 0.0)})
    true, rounded = (OP.reference(problem, values, way)["y"] for way in (False, True))
    assert OP.rule(OP.tensors[-1]).judge(got["y"], OP.stock(problem)(values)["y"], rounded, true, 1).complaint
    got["y"][3, 0, 0] = torch.nan
    assert OP.hard_rules(problem, values, got) == ["rank 3: y is not finite"]


# -- the kernel


@pytest.mark.parametrize(("ranks", "tokens", "calls", "seed"), [(2, 3, 5, 1), deep(4, 1, 2, 1), deep(2, 16, 1, 0)])
def test_every_owner_has_its_heads_and_they_are_right_call_after_call(
    ranks: int, tokens: int, calls: int, seed: int, tmp_path: Path
) -> None:
    ran = execute(built(OP, MERGE, ranks, tokens, tmp_path), "normal", calls, seed)
    assert ran.complaints == [] and ran.result.calls == (calls,) * ranks


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("ranks", "tokens"), [(2, 8), (4, 3), (8, 2)])
def test_the_same_under_more_orders(ranks: int, tokens: int, seed: int, tmp_path: Path) -> None:
    assert execute(built(OP, MERGE, ranks, tokens, tmp_path), "normal", 8, seed).complaints == []


def test_every_family_of_values(tmp_path: Path) -> None:
    made = built(OP, MERGE, 2, 2, tmp_path)
    for family in FAMILIES:
        assert execute(made, family, 2, seed=0).complaints == [], family


@pytest.mark.parametrize("name", listed(MISTAKES_MERGE, EVERY_RUN))
def test_a_mistake_is_refused_within_two_orders(name: str, tmp_path: Path) -> None:
    mistake = MISTAKES_MERGE[name]
    assert refused(built(OP, mistake.source, mistake.ranks, 1, tmp_path), mistake.family, mistake.found)


def test_a_rank_that_sends_nothing_is_named_and_every_call_ends(tmp_path: Path) -> None:
    impatient = MERGE.replace("WAIT_NS = 4_000_000_000", "WAIT_NS = 4000").replace("LOOKS = 64", "LOOKS = 1")
    assert impatient != MERGE
    deaf = impatient.replace(TO_OWNERS, TO_OWNERS.replace("rank:", "rank and rank == 0:"))
    made = built(OP, deaf, 2, 1, tmp_path)
    ran = execute(made, "normal", 2, seed=0)
    assert ran.result.calls == (2, 2), ran.complaints
    words = [of["workspace0"].view(np.int32)[:2].tolist() for of in ran.result.outputs]
    assert words == [[2, 1], [1, 2]]  # rank 0 missed rank 1 in call 0, and then sent nothing in call 1
    for call, got in enumerate(ran.outputs):
        for rank in range(2):
            lost = call == 1 or rank == 0
            assert bool(got["y"][rank].isnan().all()) == lost == bool(got["y"][rank].isnan().any()), (call, rank)


@pytest.mark.parametrize("tokens", [deep(1), 64])
def test_at_full_width_a_cta_has_a_head_and_all_are_resident(tokens: int, tmp_path: Path) -> None:
    launch = built(OP, MERGE, 2, tokens, tmp_path, "k3-tp8").launch
    assert launch.grid[0] == 12 * -(-tokens // 8) <= 132
    assert launch.dynamic_smem <= SMEM
