"""The projection that sends its partials straight to peers, from the real compiler, on all ranks: numbers and mistakes.

A mistake must be refused within SEEDS. Not covered: the sentinel as data, which a sum of products that begins at +0 is
only where it underflows; widths beyond nano in the interpreter, of which only the launch is looked at.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.deep import deep, listed
from support.ranked_faults import FUSED, MISTAKES_FUSED, SENDS
from support.ranked_oproj import FAMILIES, built, execute

SEEDS = (0, 1)  # all in step, and one drawn order
SMEM = 232_448  # bytes that a CTA can have on sm_90a
ALWAYS = ("missing fence", "one parity for all calls", "a mix that does not wait for the row")


@pytest.mark.parametrize(
    ("ranks", "tokens", "variant", "calls", "seed"),
    [(2, 2, "delta", 5, 1), deep(2, 1, "prefix_only", 3, 2), deep(4, 1, "delta", 2, 1), deep(1, 1, "delta", 2, 0)],
)
def test_every_rank_has_the_same_row_and_it_is_right_call_after_call(
    ranks: int, tokens: int, variant: str, calls: int, seed: int, tmp_path: Path
) -> None:
    ran = execute(built(FUSED, ranks, tokens, tmp_path, variant), "normal", calls, seed)
    assert ran.complaints == [] and ran.result.calls == (calls,) * ranks


@pytest.mark.parametrize("variant", ["delta", deep("prefix_only")])
def test_tokens_beyond_the_ctas_that_only_mix_are_mixed_by_those_that_have_projected(
    variant: str, tmp_path: Path
) -> None:
    few = FUSED.replace("MIXERS = 20", "MIXERS = 1")
    assert few != FUSED
    made = built(few, 2, 3, tmp_path, variant)
    assert made.launch.grid[0] == 16 + 1
    assert execute(made, "normal", 2, seed=1).complaints == []


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("ranks", "tokens"), [(2, 9), (4, 3), (8, 2)])
def test_the_same_under_more_orders(ranks: int, tokens: int, seed: int, tmp_path: Path) -> None:
    assert execute(built(FUSED, ranks, tokens, tmp_path), "normal", 6, seed).complaints == []


def test_every_family_of_values(tmp_path: Path) -> None:
    made = built(FUSED, 2, 1, tmp_path)
    for family in FAMILIES:
        assert execute(made, family, 2, seed=0).complaints == [], family


@pytest.mark.parametrize("name", listed(MISTAKES_FUSED, ALWAYS))
def test_a_mistake_is_refused_within_two_orders(name: str, tmp_path: Path) -> None:
    mistake = MISTAKES_FUSED[name]
    made = built(mistake.source, mistake.ranks, 1, tmp_path)
    complaints: list[str] = []
    for seed in SEEDS:
        complaints += execute(made, mistake.family, 4, seed).complaints
        if any(word in line for line in complaints for word in mistake.found):
            return
    raise AssertionError(complaints)


def test_a_rank_that_sends_nothing_is_named_and_every_call_ends(tmp_path: Path) -> None:
    impatient = FUSED.replace("WAIT_NS = 4_000_000_000", "WAIT_NS = 40_000").replace("LOOKS = 64", "LOOKS = 1")
    assert impatient != FUSED
    deaf = impatient.replace(SENDS, SENDS.replace("peer != rank", "peer != rank and rank == 0"))
    ran = execute(built(deaf, 2, 1, tmp_path), "normal", 2, seed=0)
    assert ran.result.calls == (2, 2)
    words = [of["workspace0"].view(np.int32)[:2].tolist() for of in ran.result.outputs]
    assert words == [[2, 1], [1, 2]]  # rank 0 missed rank 1 in call 0, and then sent nothing in call 1
    for call, got in enumerate(ran.outputs):
        for rank in range(2):
            lost = call == 1 or rank == 0
            assert all(bool(torch.isnan(got[name][rank]).all()) == lost for name in ("out", "prefix")), (call, rank)


@pytest.mark.parametrize("tokens", [deep(1), 64])
def test_at_full_width_all_blocks_are_resident_one_a_processor(tokens: int, tmp_path: Path) -> None:
    launch = built(FUSED, 2, tokens, tmp_path, dims="k3-tp8").launch
    assert launch.grid[0] == 112 + min(tokens, 20) <= 132
    assert launch.dynamic_smem <= SMEM
