"""The two-shot all-reduce, from the real compiler, on all ranks: the bits of the one-shot, and its mistakes.

A mistake must be refused within SEEDS. Not covered: from how many ranks and tokens on it is the faster one, which only
GPUs show.
"""

from pathlib import Path

import numpy as np
import pytest
from support.deep import deep, listed
from support.ranked_faults import MISTAKES_TWO_SHOT, SEND_PARTS, TWO_SHOT
from support.ranks import FAMILIES, Ranked, built, execute

SEEDS = (0, 1)  # all in step, and one drawn order
SHOTS = 2  # parts and sums have a half of a mailbox each
NAN = 0x7FFF
ALWAYS = ("missing fence", "sums that nobody sends", "this rank's part left out")


def made(source: str, ranks: int, tokens: int, cache: Path) -> Ranked:
    return built(source, ranks, tokens, cache, slots=SHOTS)


@pytest.mark.parametrize(
    ("ranks", "tokens", "calls", "seed"),
    [deep(1, 1, 2, 0), (2, 3, 12, 1), deep(2, 16, 3, 2), (4, 2, 5, 1), deep(8, 1, 3, 1)],
)
def test_every_rank_has_the_bits_of_the_sum_in_rank_order_call_after_call(
    ranks: int, tokens: int, calls: int, seed: int, tmp_path: Path
) -> None:
    ran = execute(made(TWO_SHOT, ranks, tokens, tmp_path), "normal", calls, seed)
    assert ran.complaints == [] and ran.result.calls == (calls,) * ranks


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_same_under_more_orders(ranks: int, seed: int, tmp_path: Path) -> None:
    assert execute(made(TWO_SHOT, ranks, 2, tmp_path), "normal", 22, seed).complaints == []


def test_no_input_looks_like_an_empty_mailbox(tmp_path: Path) -> None:
    kernel = made(TWO_SHOT, 2, 1, tmp_path)
    for family in FAMILIES:
        assert execute(kernel, family, 3, seed=1).complaints == [], family


@pytest.mark.parametrize("name", listed(MISTAKES_TWO_SHOT, ALWAYS))
def test_a_mistake_is_refused_within_two_orders(name: str, tmp_path: Path) -> None:
    mistake = MISTAKES_TWO_SHOT[name]
    kernel = made(mistake.source, mistake.ranks, 1, tmp_path)
    complaints = [line for seed in SEEDS for line in execute(kernel, mistake.family, 4, seed).complaints]
    assert any(word in line for line in complaints for word in mistake.found), complaints


def test_a_rank_that_sends_nothing_is_named_and_every_call_ends(tmp_path: Path) -> None:
    silent, calls = 1, 3
    impatient = TWO_SHOT.replace("WAIT_NS = 4_000_000_000", "WAIT_NS = 4000").replace("LOOKS = 64", "LOOKS = 1")
    assert impatient != TWO_SHOT
    deaf = impatient.replace(SEND_PARTS, f"            if rank != {silent}:\n    {SEND_PARTS}")
    ran = execute(made(deaf, 2, 1, tmp_path), "normal", calls, seed=0)
    assert ran.result.calls == (calls,) * 2
    said = [of["calls"].view(np.int32)[:2].tolist() for of in ran.result.outputs]
    assert said == [[2, 1], [1, 1]]  # who misses a part sends no sums, so both miss each other in the first call
    for of in ran.result.outputs:
        assert all((of[f"o{call}"].view(np.uint16) == NAN).all() for call in range(calls))
