"""The end of the MoE block on all ranks: what its contract refuses, and a kernel of the real compiler on all ranks.

A mistake in it must be refused within ranked_run.SEEDS.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.collective_faults import MISTAKES_TAIL, SENDS_PIECE, TAIL
from support.deep import deep, listed
from support.ranked_run import built, execute, refused

from kgen.contract.op import Values
from kgen.contract.ranks import AXIS
from kgen.contract.selftest import complaints
from kgen.ops import REGISTRY
from kgen.ops.ranked_moe_tail import RankedMoeTail
from kgen.records import Problem

OP = RankedMoeTail()
FAMILIES = tuple(f.name for f in OP.families)
SMEM = 232_448  # bytes that a CTA can have on sm_90a
EVERY_RUN = ("missing fence", "another order of the sums", "a wait for the rows that orders nothing")


def drawn(family: str, ranks: str = "4", tokens: int = 4) -> tuple[Problem, Values]:
    problem = OP.problem("nano", tokens, "sm_90a", {AXIS: ranks})
    return problem, OP.inputs(problem, family, 5, "cpu")


# -- the contract


def test_the_contract_is_fit_to_judge() -> None:
    assert complaints(OP) == ()


@pytest.mark.parametrize("ranks", ["1", "2", "16"])
def test_stock_passes_every_family(ranks: str) -> None:
    for family in FAMILIES:
        problem, values = drawn(family, ranks)
        got, (rounded, true) = OP.stock(problem)(values), (OP.reference(problem, values, way) for way in (True, False))
        judged = OP.rule(OP.tensors[-1]).judge(got["delta"], got["delta"], rounded["delta"], true["delta"], 1)
        assert not judged.complaint and OP.hard_rules(problem, values, got) == [], family


@pytest.mark.parametrize("family", ["normal", "rank_order", "growing"])
def test_columns_are_those_that_their_owners_work_out_from_what_is_sent_to_them(family: str) -> None:
    problem, values = drawn(family, ranks="2")
    one, alone = REGISTRY.get("moe_tail"), REGISTRY.get("moe_tail").problem("nano", 4, "sm_90a")
    got = OP.reference(problem, values, rounded=True)["delta"]
    columns = values["shared"].shape[-1] // 2
    for owner in range(2):
        own = slice(owner * columns, (owner + 1) * columns)
        sent = {"parts": values["part"], "shared": values["shared"][:, :, own], "gamma": values["gamma"][owner]}
        want = one.reference(alone, {**sent, "w_up": values["w_up"][owner], "eps": values["eps"]}, rounded=True)
        assert all(torch.equal(got[rank][:, own], want["delta"]) for rank in range(2))


def test_bits_that_differ_and_a_zero_that_no_mailbox_carries_are_named() -> None:
    problem, values = drawn("zero_rows")
    good = OP.stock(problem)(values)["delta"]
    assert not good[:, 0].view(torch.int16).any()  # a row that is zero everywhere, and +0
    flipped, minus = good.clone(), good.clone()
    flipped.view(torch.int16)[2, 1, 7] ^= 1
    minus[:, 0] = -0.0
    assert OP.hard_rules(problem, values, {"delta": flipped}) == ["delta of rank 2 differs from rank 0's at [1, 7]"]
    assert OP.hard_rules(problem, values, {"delta": minus}) == ["a column of delta is -0, which no mailbox can carry"]


# -- the kernel


@pytest.mark.parametrize(
    ("ranks", "tokens", "calls", "seed"), [(2, 3, 5, 1), deep(1, 1, 2, 0), deep(4, 1, 2, 1), deep(2, 16, 1, 0)]
)
def test_every_rank_has_the_same_columns_and_they_are_right_call_after_call(
    ranks: int, tokens: int, calls: int, seed: int, tmp_path: Path
) -> None:
    ran = execute(built(OP, TAIL, ranks, tokens, tmp_path), "normal", calls, seed)
    assert ran.complaints == [] and ran.result.calls == (calls,) * ranks


@pytest.mark.parametrize("norms", [deep(1), 2])
def test_fewer_norming_blocks_than_tokens_take_them_one_after_another(norms: int, tmp_path: Path) -> None:
    few = TAIL.replace("UPS, NORMS = 112, 20", f"UPS, NORMS = 4, {norms}")  # and blocks of two tiles
    assert few != TAIL
    made = built(OP, few, 2, 4, tmp_path)
    assert made.launch.grid[0] == 4 + norms
    assert execute(made, "normal", 2, seed=1).complaints == []


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("ranks", "tokens"), [(2, 8), (4, 3), (8, 2)])
def test_the_same_under_more_orders(ranks: int, tokens: int, seed: int, tmp_path: Path) -> None:
    assert execute(built(OP, TAIL, ranks, tokens, tmp_path), "normal", 8, seed).complaints == []


def test_every_family_of_values(tmp_path: Path) -> None:
    made = built(OP, TAIL, 2, 2, tmp_path)
    for family in FAMILIES:
        assert execute(made, family, 2, seed=0).complaints == [], family


@pytest.mark.parametrize("name", listed(MISTAKES_TAIL, EVERY_RUN))
def test_a_mistake_is_refused_within_two_orders(name: str, tmp_path: Path) -> None:
    mistake = MISTAKES_TAIL[name]
    assert refused(built(OP, mistake.source, mistake.ranks, 1, tmp_path), mistake.family, mistake.found)


def test_a_rank_that_sends_no_latents_is_named_and_every_call_ends(tmp_path: Path) -> None:
    impatient = TAIL.replace("WAIT_NS = 4_000_000_000", "WAIT_NS = 4000").replace("LOOKS = 64", "LOOKS = 1")
    assert impatient != TAIL
    deaf = impatient.replace(SENDS_PIECE, SENDS_PIECE.replace("rank:", "rank and rank == 0:"))
    ran = execute(built(OP, deaf, 2, 1, tmp_path), "normal", 2, seed=0)
    assert ran.result.calls == (2, 2), ran.complaints
    words = [of["workspace0"].view(np.int32)[:2].tolist() for of in ran.result.outputs]
    assert words[0] == [2, 1] and words[1][0] == 1  # rank 0 missed rank 1 in call 0, and was missed in its turn
    assert all(bool(ran.outputs[1]["delta"][rank].isnan().all()) for rank in range(2))


@pytest.mark.parametrize(("ranks", "tokens"), [deep(2, 1), (2, 64), deep(16, 64)])
def test_at_full_width_all_blocks_are_resident_one_a_processor(ranks: int, tokens: int, tmp_path: Path) -> None:
    launch = built(OP, TAIL, ranks, tokens, tmp_path, "k3-tp8").launch
    assert launch.grid[0] <= 132 and launch.dynamic_smem <= SMEM
