"""The greedy token over a vocabulary that ranks share: what its contract refuses, and a kernel of the real compiler.

The kernel runs in the interpreter on all ranks; a mistake in it must be refused within ranked_run.SEEDS. Not covered: a
logit that is -0 in the kernel, since the interpreter's sums of products begin at +0.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.collective_faults import HEAD, MISTAKES_HEAD, SEND_PAIR
from support.deep import deep, listed
from support.ranked_run import built, execute, refused

from kgen.contract.op import Values
from kgen.contract.ranks import AXIS, Outputs
from kgen.ops.ranked_lm_head_argmax import RankedLmHeadArgmax
from kgen.records import Problem

OP = RankedLmHeadArgmax()
FAMILIES = tuple(f.name for f in OP.families)
EVERY_RUN = ("missing fence", "a rank left out of the choice", "zeros sent as -0")


def drawn(family: str, ranks: str = "4", tokens: int = 4) -> tuple[Problem, Values, Outputs]:
    problem = OP.problem("nano", tokens, "sm_90a", {AXIS: ranks})
    values = OP.inputs(problem, family, 5, "cpu")
    return problem, values, OP.stock(problem)(values)


# -- the contract


@pytest.mark.parametrize("family", ["normal", "exact_ties", "nan_logit", "all_negative"])
def test_the_token_is_the_first_maximum_of_all_logits_whichever_rank_has_it(family: str) -> None:
    _, values, got = drawn(family)
    logits = torch.cat([values["h"][0].double() @ w.double().T for w in values["w_head"]], dim=1)
    for token, row in enumerate(logits):
        best = next((at for at, value in enumerate(row) if value.isnan()), int(row.argmax()))
        near = row[best] - row[int(got["id"][0, token])]
        assert int(got["id"][0, token]) == best or 0 <= near < 0.1
    assert len({int(i) // 512 for i in got["id"][0]}) > 1 or family == "nan_logit"  # winners of several ranks


def test_equal_rows_on_all_ranks_give_an_id_of_the_first_rank() -> None:
    _, _, got = drawn("twins", ranks="8")
    assert (got["id"] < 512).all()


def test_a_zero_is_plus_zero_and_the_lowest_id_has_it() -> None:
    problem, _, got = drawn("sentinel")
    assert not got["id"].any() and not got["val"].view(torch.int32).any()
    minus = {**got, "val": -got["val"]}
    assert OP.hard_rules(problem, drawn("sentinel")[1], minus) == ["val is -0, which no mailbox can carry"]


def test_a_rank_that_takes_its_own_best_is_named() -> None:
    problem, values, got = drawn("twins")
    own = {**got, "id": got["id"] + 512 * torch.arange(4, dtype=torch.int32)[:, None]}
    assert "id of rank 1 differs from rank 0's at [0]" in OP.hard_rules(problem, values, own)
    last = {**got, "id": got["id"] + 512 * 3}
    assert any("ties with a lower id" in line for line in OP.hard_rules(problem, values, last))


# -- the kernel


@pytest.mark.parametrize(
    ("ranks", "tokens", "calls", "seed"), [(2, 3, 5, 1), deep(1, 1, 2, 0), deep(4, 1, 2, 1), deep(2, 16, 1, 0)]
)
def test_every_rank_has_the_same_token_and_it_is_right_call_after_call(
    ranks: int, tokens: int, calls: int, seed: int, tmp_path: Path
) -> None:
    ran = execute(built(OP, HEAD, ranks, tokens, tmp_path), "normal", calls, seed)
    assert ran.complaints == [] and ran.result.calls == (calls,) * ranks


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("ranks", "tokens"), [(2, 8), (4, 3), (8, 2)])
def test_the_same_under_more_orders(ranks: int, tokens: int, seed: int, tmp_path: Path) -> None:
    assert execute(built(OP, HEAD, ranks, tokens, tmp_path), "normal", 12, seed).complaints == []


def test_every_family_of_values(tmp_path: Path) -> None:
    made = built(OP, HEAD, 2, 2, tmp_path)
    for family in FAMILIES:
        assert execute(made, family, 2, seed=0).complaints == [], family


@pytest.mark.parametrize("name", listed(MISTAKES_HEAD, EVERY_RUN))
def test_a_mistake_is_refused_within_two_orders(name: str, tmp_path: Path) -> None:
    mistake = MISTAKES_HEAD[name]
    assert refused(built(OP, mistake.source, mistake.ranks, 1, tmp_path), mistake.family, mistake.found)


def test_a_rank_that_sends_nothing_is_named_and_every_call_ends(tmp_path: Path) -> None:
    impatient = HEAD.replace("WAIT_NS = 4_000_000_000", "WAIT_NS = 4000").replace("LOOKS = 64", "LOOKS = 1")
    assert impatient != HEAD
    deaf = impatient.replace(SEND_PAIR, SEND_PAIR.replace("lane != rank", "lane != rank and rank == 0"))
    ran = execute(built(OP, deaf, 2, 1, tmp_path), "normal", 2, seed=0)
    assert ran.result.calls == (2, 2), ran.complaints
    words = [of["workspace0"].view(np.int32)[:2].tolist() for of in ran.result.outputs]
    assert words == [[2, 1], [1, 2]]  # rank 0 missed rank 1 in call 0, and then sent nothing in call 1
    for call, got in enumerate(ran.outputs):
        for rank in range(2):
            lost = call == 1 or rank == 0
            assert bool(got["val"][rank].isnan()) == lost == (int(got["id"][rank]) == -1), (call, rank)


@pytest.mark.parametrize("tokens", [deep(1), 64])
def test_at_full_width_a_warp_has_a_tile_of_rows(tokens: int, tmp_path: Path) -> None:
    launch = built(OP, HEAD, 2, tokens, tmp_path, "k3-tp8").launch
    assert launch.grid[0] * launch.block[0] // 32 == 20480 // 16
