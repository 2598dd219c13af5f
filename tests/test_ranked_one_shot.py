"""The one-shot all-reduce made for speed, from the real compiler, on all ranks: its numbers, its waits, its mistakes.

A mistake must be refused within SEEDS: the orders of ranks and warps are drawn from the seed alone. Not covered: how
long %globaltimer's nanoseconds are, which only a GPU shows; here the time goes on with what is executed.
"""

from pathlib import Path

import numpy as np
import pytest
from support.deep import deep, listed
from support.ranked_faults import MISTAKES_ONE_SHOT, ONE_SHOT, TO_PEERS
from support.ranks import FAMILIES, Ran, built, execute

SEEDS = (0, 1)  # all in step, and one drawn order
LONG = 22  # calls
NAN = 0x7FFF
ALWAYS = ("missing fence", "one parity for all calls", "looks once", "the sentinel sent as data")


@pytest.mark.parametrize(
    ("ranks", "tokens", "calls", "seeds"),
    [deep(1, 1, 2, (0,)), (2, 5, LONG, (1,)), deep(2, 8, 4, (0, 2)), deep(8, 1, 3, (1,))],
)
def test_every_rank_has_the_bits_of_the_sum_in_rank_order_call_after_call(
    ranks: int, tokens: int, calls: int, seeds: tuple[int, ...], tmp_path: Path
) -> None:
    made = built(ONE_SHOT, ranks, tokens, tmp_path)
    for seed in seeds:
        ran = execute(made, "normal", calls, seed)
        assert ran.complaints == [] and ran.result.calls == (calls,) * ranks


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_same_under_more_orders(ranks: int, seed: int, tmp_path: Path) -> None:
    assert execute(built(ONE_SHOT, ranks, 3, tmp_path), "normal", LONG, seed).complaints == []


def test_no_input_looks_like_an_empty_mailbox(tmp_path: Path) -> None:
    made = built(ONE_SHOT, 2, 1, tmp_path)
    for family in FAMILIES:
        assert execute(made, family, 3, seed=1).complaints == [], family


@pytest.mark.parametrize("name", listed(MISTAKES_ONE_SHOT, ALWAYS))
def test_a_mistake_is_refused_within_two_orders(name: str, tmp_path: Path) -> None:
    mistake = MISTAKES_ONE_SHOT[name]
    made = built(mistake.source, mistake.ranks, 1, tmp_path)
    complaints = [line for seed in SEEDS for line in execute(made, mistake.family, 4, seed).complaints]
    assert any(word in line for line in complaints for word in mistake.found), complaints


def _silent(rank: int) -> str:
    """The kernel with a short patience, on a world in which one rank sends nothing."""
    impatient = ONE_SHOT.replace("WAIT_NS = 4_000_000_000", "WAIT_NS = 1500").replace("LOOKS = 64", "LOOKS = 1")
    assert impatient != ONE_SHOT
    return impatient.replace(TO_PEERS, TO_PEERS.replace("lost == 0", f"lost == 0 and rank != {rank}"))


def _said(ran: Ran, rank: int) -> list[int]:
    """A rank's words about who was missed, and when."""
    words: list[int] = ran.result.outputs[rank]["calls"].view(np.int32)[:2].tolist()
    return words


@pytest.mark.parametrize("ranks", [2, deep(4)])
def test_a_rank_that_sends_nothing_is_named_and_every_call_ends(ranks: int, tmp_path: Path) -> None:
    silent, calls = 1, 3
    ran = execute(built(_silent(silent), ranks, 1, tmp_path), "normal", calls, seed=0)
    assert ran.result.whole and ran.result.calls == (calls,) * ranks
    for rank in range(ranks):
        missed, when = (0, 1) if rank == silent else (silent, 0)  # who gave up sends nothing from the next call on
        assert _said(ran, rank) == [missed + 1, when + 1]
        for call in range(calls):
            o = ran.result.outputs[rank][f"o{call}"].view(np.uint16)
            assert (o == NAN).all() == (call >= when), (rank, call)
        assert (ran.result.outputs[rank]["prefix"].view(np.uint16) == NAN).all()


@pytest.mark.parametrize("tokens", [1, 64])
def test_at_full_width_a_thread_owns_sixteen_bytes_and_all_blocks_are_resident(tokens: int, tmp_path: Path) -> None:
    launch = built(ONE_SHOT, 2, tokens, tmp_path, "k3-tp8").launch
    threads = launch.grid[0] * launch.block[0]
    assert threads * 16 == tokens * 7168 * 2 and launch.block[0] % 32 == 0
    assert threads < 132 * 1024  # half of what an H200 holds at a time


def test_with_dependent_launches_nothing_is_touched_before_the_wait_for_the_call_before(tmp_path: Path) -> None:
    ahead = ONE_SHOT.replace("PDL = False", "PDL = True")
    text = built(ahead, 2, 1, tmp_path).ptx
    plain = built(ONE_SHOT, 2, 1, tmp_path).ptx
    assert "griddepcontrol" not in plain
    wait = text.index("griddepcontrol.wait")
    assert all(text.find(word) > wait for word in ("ld.global", "ld.relaxed", "st.relaxed", "st.global", "fence"))
