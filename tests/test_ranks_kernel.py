"""A one-shot all-reduce of the real compiler on all ranks: right numbers over many calls, and every mistake found.

A mistake must be refused within SEEDS: the orders of ranks and warps are drawn from the seed alone.
"""

from pathlib import Path

import pytest
from support.deep import deep
from support.ranked_faults import MISTAKES, SOURCE
from support.ranks import FAMILIES, built, execute

SEEDS = (0, 1)  # all in step, and one drawn order
LONG = 22  # calls


@pytest.mark.parametrize(("ranks", "tokens", "calls", "seeds"), [(2, 2, LONG, (0, 1)), deep(8, 1, 3, (1,))])
def test_every_rank_has_the_bits_of_the_sum_in_rank_order_call_after_call(
    ranks: int, tokens: int, calls: int, seeds: tuple[int, ...], tmp_path: Path
) -> None:
    made = built(SOURCE, ranks, tokens, tmp_path)
    for seed in seeds:
        ran = execute(made, "normal", calls, seed)
        assert ran.complaints == [] and ran.result.calls == (calls,) * ranks


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_same_for_eight_ranks_and_other_orders(ranks: int, seed: int, tmp_path: Path) -> None:
    ran = execute(built(SOURCE, ranks, 2, tmp_path), "normal", LONG, seed)
    assert ran.complaints == []


def test_no_input_looks_like_an_empty_mailbox(tmp_path: Path) -> None:
    made = built(SOURCE, 2, 1, tmp_path)
    for family in FAMILIES:
        assert execute(made, family, 3, seed=1).complaints == [], family


@pytest.mark.parametrize("name", list(MISTAKES))
def test_a_mistake_is_refused_within_two_orders(name: str, tmp_path: Path) -> None:
    mistake = MISTAKES[name]
    made = built(mistake.source, mistake.ranks, 1, tmp_path)
    complaints = [line for seed in SEEDS for line in execute(made, mistake.family, 4, seed).complaints]
    assert any(word in line for line in complaints for word in mistake.found), complaints
