"""Several ranks in the PTX interpreter: what peers may rely on, mailboxes, ranks that are a call apart, deadlocks."""

import numpy as np
import pytest
from support.ptx import kernel, module
from support.ranks import launches

from kgen.gates.ptx import Buffer, Limits, PtxError
from kgen.gates.ptx.ranks import RankResult, Shared, run

ARMED = 0x8000_0000
# %d0 x (in), %d1 y (out), %d2 own box, %d3 addresses of all boxes; %d4 the other rank's box, %d6, %d7 this lane's place
# there and in the own one; boxes hold 32 words of data, then a flag; %r3 the rank (of the launch)
SETUP = """ld.param.b32 %r3, [p4];
mul.wide.u32 %d5, %r1, 4;
xor.b32 %r4, %r3, 1;
mul.wide.u32 %d8, %r4, 8;
add.s64 %d8, %d3, %d8;
ld.global.b64 %d4, [%d8];
add.s64 %d6, %d4, %d5;
add.s64 %d7, %d2, %d5;
add.s64 %d9, %d0, %d5;
ld.global.b32 %r5, [%d9];
add.s64 %d10, %d1, %d5;
"""
SEND, SYNC = "st.global.b32 [%d6], %r5;\n", "bar.sync 0;\n"
RAISE = "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra RAISED;\nst.{}.global.b32 [%d4+128], 1;\nRAISED:\n"
WAIT = "WAIT:\nld.{}.global.b32 %r6, [%d2+128];\nsetp.ne.s32 %p2, %r6, 1;\n@%p2 bra WAIT;\n"
TAKE = "ld.global.b32 %r7, [%d7];\nst.global.b32 [%d10], %r7;\n"
POLL = "POLL:\nld.relaxed.sys.global.b32 %r7, [%d7];\nsetp.eq.s32 %p2, %r7, -2147483648;\n@%p2 bra POLL;\n"
STRONG, KEEP = "st.relaxed.sys.global.b32 [%d6], %r5;\n", "st.global.b32 [%d10], %r7;\n"


def ptx(body: str) -> str:
    head = ", ".join(f".param .b64 p{i}" for i in range(4))
    return module(kernel(SETUP + body, params=4)).replace(head, head + ", .param .b32 p4")


def exchange(body: str, ranks: int = 2, calls: int = 1, seed: int = 1, flags: bool = True, **more) -> RankResult:
    """Every rank's x is its number in each of 32 words, plus the call's number times 100."""
    box = np.zeros(64, np.int32) if flags else np.full(64, ARMED, np.uint32)
    shared = Shared("box", "i32", (64,), box.view(np.uint8), None if flags else ARMED)
    arrays = []
    for rank in range(ranks):
        own = {f"x{n}": Buffer.of(np.full(32, rank + 1 + 100 * n, np.int32), "i32", "in") for n in range(calls)}
        own |= {f"y{n}": Buffer.of(np.zeros(32, np.int32), "i32", "out") for n in range(calls)}
        arrays.append(own)
    names = [("x{}", "y{}", "box", "box_peers", None)] * ranks
    return run(ptx(body), launches("k", names, calls), arrays, [shared], seed, **more)


def came(result: RankResult, call: int = 0) -> list[int]:
    """The value that each rank got, which is the same in all lanes."""
    found = [set(of[f"y{call}"].view(np.int32).tolist()) for of in result.outputs]
    assert all(len(values) == 1 for values in found)
    return [values.pop() for values in found]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("release", "acquire"),
    [
        ("release.sys", "acquire.sys"),
        ("fence.acq_rel.sys;\nst.relaxed.sys", "relaxed.sys"),
        ("fence.acq_rel.sys;\nst.volatile", "volatile"),
    ],
)
def test_data_behind_a_flag_of_system_scope_come_whole(release: str, acquire: str, seed: int) -> None:
    raised = RAISE.replace("st.{}", release if release.startswith("fence") else f"st.{release}")
    waited = WAIT.format(acquire) + ("" if acquire.startswith("acquire") else "fence.acq_rel.sys;\n")
    result = exchange(SEND + SYNC + raised + waited + TAKE, seed=seed)
    assert result.whole and result.complaints == [] and came(result) == [2, 1]


@pytest.mark.parametrize(
    ("release", "acquire"),
    [
        ("release.gpu", "acquire.sys"),
        ("release.sys", "acquire.gpu"),
        ("release.gpu", "acquire.gpu"),
        ("relaxed.sys", "acquire.sys"),  # no fence before the flag
        ("release.sys", "relaxed.sys"),  # none after it
        ("volatile", "volatile"),
    ],
)
def test_data_behind_a_flag_that_orders_nothing_among_ranks_are_a_race(release: str, acquire: str) -> None:
    result = exchange(SEND + SYNC + RAISE.format(release) + WAIT.format(acquire) + TAKE)
    assert {f.kind.value for f in result.findings} == {"race"}
    assert any(f.tensor.startswith("box@") for f in result.findings)


def test_a_rank_reads_its_own_parameters_and_special_registers() -> None:
    result = exchange("mov.u32 %r7, %nctaid.x;\nmad.lo.u32 %r7, %r7, 10, %r3;\n" + KEEP, ranks=4)
    assert result.complaints == [] and came(result) == [10, 11, 12, 13]


@pytest.mark.parametrize("seed", range(3))
def test_words_that_say_by_themselves_that_they_came_need_no_flag(seed: int) -> None:
    result = exchange(STRONG + POLL + KEEP, seed=seed, flags=False)
    assert result.complaints == [] and came(result) == [2, 1]


def test_reading_without_waiting_gives_the_sentinel_under_some_order() -> None:
    found = {tuple(came(exchange("ld.relaxed.sys.global.b32 %r7, [%d7];\n" + STRONG + KEEP, seed=0, flags=False)))}
    assert found == {(-(2**31), -(2**31))}


def test_who_waits_for_ever_is_named_with_rank_block_address_and_what_it_expects() -> None:
    silent = "setp.eq.u32 %p3, %r3, 0;\n@%p3 bra SENT;\n" + STRONG + "SENT:\n"  # rank 0 sends nothing
    result = exchange(silent + POLL + KEEP, flags=False, seed=2)
    assert not result.whole and result.calls == (1, 0)
    (wait,) = result.waits
    assert (wait.rank, wait.call, wait.block, wait.tensor, wait.holds) == (1, 0, (0, 0, 0), "box@1", ARMED)
    assert wait.index == (wait.thread[0],) and wait.address % (1 << 40) == 4 * wait.thread[0]
    assert "anything but 0x80000000" in wait.expected and "rank 1" in str(wait)
    flag = exchange(SEND + SYNC + WAIT.format("acquire.sys") + TAKE)  # nobody raises a flag
    assert [w.rank for w in flag.waits] == [0, 1] and all(w.index == (32,) and w.holds == 0 for w in flag.waits)
    assert "setp.ne.s32" in flag.waits[0].expected


@pytest.mark.parametrize("seed", range(3))
def test_a_wait_with_a_bound_that_nobody_answers_is_named_before_the_bound(seed: int) -> None:
    bounded = POLL.replace("POLL:\n", "POLL:\nadd.u32 %r9, %r9, 1;\nsetp.gt.u32 %p4, %r9, 100000000;\n@%p4 trap;\n")
    result = exchange("mov.u32 %r9, 0;\n" + bounded + KEEP, flags=False, seed=seed)
    assert {w.rank for w in result.waits} == {0, 1} and result.findings == ()


CLEAR = "mov.b32 %r8, 0x80000000;\nst.relaxed.sys.global.b32 [%d7], %r8;\n"
FENCE = "fence.acq_rel.sys;\n"


def faults(result: RankResult) -> set[str]:
    return {fault.rule.value for fault in result.faults}


@pytest.mark.parametrize("seed", range(3))
def test_the_end_of_a_call_tells_peers_nothing(seed: int) -> None:
    """One parity: rank 1 sends into rank 0's word again only after it has heard of the call after the arming."""
    answer = "add.s64 %d6, %d6, 128;\nadd.s64 %d7, %d7, 128;\n" + STRONG + POLL.replace("POLL", "BACK") + CLEAR
    good = exchange(STRONG + POLL + KEEP + CLEAR + FENCE + answer + FENCE, calls=4, seed=seed, flags=False)
    assert good.complaints == [] and [came(good, n) for n in range(4)] == [[100 * n + 2, 100 * n + 1] for n in range(4)]
    bad = exchange(STRONG + POLL + KEEP + CLEAR + answer, calls=4, seed=seed, flags=False)
    assert "unordered" in faults(bad)


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (STRONG + POLL + KEEP + FENCE, "overwritten"),  # nobody arms the words again
        (STRONG + SYNC + CLEAR + FENCE, "unread"),  # armed without a look
        ("mov.b32 %r5, 0x80000000;\n" + STRONG, "sentinel-sent"),
        ("ld.relaxed.sys.global.b32 %r7, [%d7];\n" + CLEAR + KEEP, "not-arrived"),
    ],
)
def test_a_word_goes_round_in_its_order_or_is_a_fault_that_says_which(body: str, rule: str) -> None:
    results = [exchange(body, calls=3, seed=seed, flags=False) for seed in range(4)]
    assert rule in set().union(*(faults(r) for r in results))
    fault = next(f for r in results for f in r.faults if f.rule == rule)
    assert fault.tensor.startswith("box@") and f"rank {fault.rank}, call {fault.call}" in str(fault)


def test_a_rank_that_waits_for_nobody_may_be_calls_ahead() -> None:
    apart = set()
    for seed in range(1, 8):
        result = exchange("st.global.b32 [%d10], %r5;\n", calls=5, seed=seed, limits=Limits(instructions=100))
        apart.add(result.calls)
        assert "budget" in result.stopped
    assert any(a != b for a, b in apart)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("mbarrier.init.shared.b64 [%r0], 1;\n", "not modelled"),
        ("multimem.st.relaxed.sys.global.b32 [%d6], %r5;\n", "multimem"),
        ("griddepcontrol.wait;\n", "not modelled"),
    ],
)
def test_what_is_not_modelled_among_ranks_ends_as_a_skip_that_names_it(body: str, says: str) -> None:
    result = exchange(body)
    assert says in result.skipped and not result.whole and says in result.complaints[-1]


def test_calls_that_do_not_fit_each_other_are_refused_in_one_line() -> None:
    names = [("x{}", "y{}", "box", "box_peers", None)] * 2
    calls = launches("k", names, 1)
    with pytest.raises(PtxError, match="as many calls"):
        run(ptx(""), [calls[0], []], [{}, {}])
    with pytest.raises(PtxError, match="no entry"):
        run(ptx(""), launches("other", names, 1), [{}, {}])
