"""How the interpreter runs lanes: divergence and reconvergence, warp instructions, atomics, limits, malformed text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ptx import HEADER, execute, kernel, kinds, launch, module

from kgen.gates.ptx import Limits, PtxError
from kgen.gates.ptx.flow import ranks
from kgen.gates.ptx.parse import parse

N = 128
X = np.random.default_rng(7).integers(0, 1 << 31, N).astype(np.int32)
ADDRESS = "mul.wide.u32 %d5, %r1, 4;\nadd.s64 %d6, %d0, %d5;\nadd.s64 %d7, %d1, %d5;\nld.global.b32 %r5, [%d6];\n"
KEEP = "\nst.global.b32 [%d7], %r9;"
FULL = 0xFFFFFFFF


def go(body: str, x: np.ndarray = X, block: int = N, grid: int = 1, seed: int = 0, shared: int = 0, role: str = "out"):
    arrays = {"x": ("in", x), "y": (role, np.zeros(len(x), np.int32))}
    result, out = execute(module(kernel(body, shared=shared)), [launch(("x", "y"), grid, block)], arrays, seed)
    assert result.whole, (result.skipped, result.stopped, result.findings)
    return result, out["y"]


def collatz(n: int) -> int:
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


COLLATZ = """
add.u32 %r5, %r1, 1;
mov.u32 %r9, 0;
bra TEST;
ODD: mad.lo.u32 %r5, %r5, 3, 1;
bra NEXT;
BODY: and.b32 %r6, %r5, 1;
setp.eq.u32 %p1, %r6, 1;
@%p1 bra ODD;
shr.u32 %r5, %r5, 1;
NEXT: add.u32 %r9, %r9, 1;
TEST: setp.ne.u32 %p2, %r5, 1;
@%p2 bra BODY;
"""


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("block", [1, 33, 128])
def test_each_lane_goes_its_own_way_through_loops_and_branches(block: int, seed: int) -> None:
    _, y = go(ADDRESS + COLLATZ + KEEP, block=block, seed=seed)
    want = [collatz(i + 1) if i < block else 0 for i in range(N)]
    assert y.tolist() == want


def test_lanes_meet_again_behind_a_branch() -> None:
    """The vote counts all lanes although they came by two ways, in either order of the two blocks in the text."""
    for first, second in (("A", "B"), ("B", "A")):
        body = (
            "setp.eq.u32 %p5, %r1, %r1;\nand.b32 %r6, %r1, 1;\nsetp.eq.u32 %p1, %r6, 0;\n@%p1 bra A;\nbra B;\n"
            f"{first}: add.u32 %r8, %r1, 1;\nbra JOIN;\n{second}: add.u32 %r8, %r1, 2;\n"
            "JOIN: vote.sync.ballot.b32 %r9, %p5, -1;"
        )
        _, y = go(ADDRESS + body + KEEP)
        assert (y.view(np.uint32) == FULL).all()


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_lane_may_wait_for_another_lane_of_its_warp(seed: int) -> None:
    """A lock that the lanes of a warp take in turn: each must get on while the others spin."""
    body = """
    L: atom.acquire.gpu.global.cas.b32 %r6, [%d1], 0, 1;
    setp.ne.u32 %p1, %r6, 0;
    @%p1 bra L;
    ld.global.b32 %r7, [%d1+4];
    add.u32 %r7, %r7, 1;
    st.global.b32 [%d1+4], %r7;
    atom.release.gpu.global.exch.b32 %r6, [%d1], 0;
    """
    result, y = go(body, block=64, grid=2, seed=seed, role="state")
    assert y[1] == 128
    assert not result.findings


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_lanes_meet_again_in_the_middle_of_a_block(seed: int) -> None:
    """Half of the lanes come to the shuffle later than the others, through no label of its own."""
    body = (
        "mov.u32 %r6, 0;\nsetp.lt.u32 %p1, %r3, 16;\nLOOP: add.u32 %r6, %r6, 1;\nmov.u32 %r9, 5;\n"
        "setp.eq.u32 %p2, %r6, 2;\n"
        "@%p2 bra DONE;\n@%p1 bra LOOP;\nDONE: add.u32 %r8, %r1, 0;\nshfl.sync.idx.b32 %r9, %r5, 0, 31, -1;"
    )
    _, y = go(ADDRESS + "mov.u32 %r3, %laneid;\n" + body + KEEP, seed=seed)
    assert y.tolist() == [X[i // 32 * 32] for i in range(N)]


def test_a_guard_leaves_the_other_lanes_alone() -> None:
    body = "setp.lt.u32 %p1, %r1, 50;\nmov.u32 %r9, 7;\n@%p1 mov.u32 %r9, %r5;\n@!%p1 add.u32 %r9, %r9, 1;"
    _, y = go(ADDRESS + body + KEEP)
    assert (y == np.where(np.arange(N) < 50, X, 8)).all()


def shuffled(mode: str, lane: int, b: int, c: int) -> int:
    """Lane that is read, as the PTX pseudo code says."""
    clamp, mask = c & 31, c >> 8 & 31
    top, low = (lane & mask) | (clamp & ~mask & 31), lane & mask
    source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": low | (b & ~mask & 31)}[mode]
    inside = source >= top if mode == "up" else source <= top
    return source if inside else lane


@settings(max_examples=40, deadline=None)
@given(
    mode=st.sampled_from(["up", "down", "bfly", "idx"]),
    b=st.integers(0, 31),
    width=st.sampled_from([32, 16, 8, 4]),
    clamp=st.sampled_from([0, 31]),
)
def test_a_shuffle_reads_the_lane_that_the_pseudo_code_says(mode: str, b: int, width: int, clamp: int) -> None:
    c = (32 - width) << 8 | clamp
    _, y = go(ADDRESS + f"shfl.sync.{mode}.b32 %r9|%p1, %r5, {b}, {c}, -1;" + KEEP)
    assert y.tolist() == [X[i // 32 * 32 + shuffled(mode, i % 32, b, c)] for i in range(N)]


def test_votes_and_matches_count_the_lanes_of_the_mask() -> None:
    small = (X % 3).astype(np.int32)
    _, y = go(ADDRESS + "match.any.sync.b32 %r9, %r5, -1;" + KEEP, small)
    want = [sum(1 << j for j in range(32) if small[i // 32 * 32 + j] == small[i]) for i in range(N)]
    assert y.view(np.uint32).tolist() == want
    _, y = go(ADDRESS + "setp.eq.u32 %p1, %r5, 1;\nvote.sync.ballot.b32 %r9, %p1, -1;" + KEEP, small)
    assert y.view(np.uint32).tolist() == [
        sum(1 << j for j in range(32) if small[i // 32 * 32 + j] == 1) for i in range(N)
    ]


@pytest.mark.parametrize("op", ["add.u32", "min.s32", "max.u32", "and.b32", "xor.b32", "min.u32", "max.s32"])
@pytest.mark.parametrize("mask", [-1, 0x0000FFFF])
def test_a_reduction_covers_the_lanes_of_its_mask(op: str, mask: int) -> None:
    x = (X - (1 << 30)).astype(np.int32) * 2
    lanes = 32 if mask == -1 else 16
    body = (
        f"mov.u32 %r3, %laneid;\nmov.u32 %r9, 0;\nsetp.lt.u32 %p1, %r3, {lanes};\n"
        f"@%p1 redux.sync.{op} %r9, %r5, {mask};"
    )
    _, y = go(ADDRESS + body + KEEP, x)
    name, kind = op.split(".")
    values = x.astype(np.int64) if kind == "s32" else x.view(np.uint32).astype(np.int64)
    function = {"add": np.sum, "min": np.min, "max": np.max, "and": np.bitwise_and.reduce, "xor": np.bitwise_xor.reduce}
    for warp in range(N // 32):
        want = int(function[name](values[warp * 32 : warp * 32 + lanes])) & FULL
        got = y.view(np.uint32)[warp * 32 : warp * 32 + 32]
        assert (got[:lanes] == want).all() and (got[lanes:] == 0).all()


def test_one_lane_is_elected_and_active_lanes_are_known() -> None:
    body = (
        "mov.u32 %r9, 0;\nelect.sync %r6|%p1, -1;\n@%p1 mov.u32 %r9, 1;\n"
        "setp.gt.u32 %p2, %r1, 100;\n@%p2 activemask.b32 %r9;"
    )
    _, y = go(ADDRESS + body + KEEP)
    assert y[:101].tolist() == [int(i % 32 == 0) for i in range(101)]
    assert (y.view(np.uint32)[101:] == (FULL << 5 & FULL)).all()


def test_lanes_that_never_come_to_a_shuffle_are_missed() -> None:
    body = (
        ADDRESS
        + (
            "setp.lt.u32 %p1, %r1, 16;\n@%p1 bra A;\nbar.sync 1, 64;\nbra B;\n"
            "A: shfl.sync.idx.b32 %r9, %r5, 0, 31, -1;\nB:"
        )
        + KEEP
    )
    arrays = {"x": ("in", X), "y": ("out", np.zeros(N, np.int32))}
    result, _ = execute(module(kernel(body)), [launch(("x", "y"), 1, 32)], arrays)
    assert result.stopped and kinds(result) == {"barrier-participation"}


@pytest.mark.parametrize("seed", [0, 5])
def test_atomics_of_many_lanes_on_one_word_happen_one_after_the_other(seed: int) -> None:
    _, y = go(
        ADDRESS + "atom.global.add.u32 %r9, [%d1+508], 1;\nsetp.ne.u32 %p1, %r1, 127;\n@%p1 st.global.b32 [%d7], %r9;",
        seed=seed,
        role="state",
    )
    assert y[127] == N
    last = set(range(N)) - set(y[:127].tolist())
    assert len(last) == 1  # of lane 127, which stored nothing: every other value came once


def test_a_vector_reduction_adds_its_elements() -> None:
    body = "cvt.rn.f32.u32 %r5, %r1;\nred.global.add.v2.f32 [%d1], {%r5, %r5};\nred.global.add.f32 [%d1+8], %r5;"
    arrays = {"x": ("in", X), "y": ("state", np.zeros(4, np.float32))}
    result, out = execute(module(kernel(body)), [launch(("x", "y"), 1, 32)], arrays)
    assert out["y"].tolist() == [496, 496, 496, 0] and not result.findings


@pytest.mark.parametrize("form", ["add.v4.f32", "v4.f32.add"])
def test_a_vector_may_name_its_type_before_or_behind_the_operation(form: str) -> None:
    body = f"mov.b32 %r5, 0f3F800000;\nred.global.{form} [%d1], {{%r5, %r5, %r5, %r5}};"
    arrays = {"x": ("in", X), "y": ("state", np.zeros(4, np.float32))}
    result, out = execute(module(kernel(body)), [launch(("x", "y"), 2, 32)], arrays)
    assert out["y"].tolist() == [64] * 4 and result.whole


def test_a_trap_is_a_finding_where_it_is_reached() -> None:
    body = "setp.eq.u32 %p1, %r1, {lane};\n@%p1 trap;\nst.global.b32 [%d1], 1;"
    arrays = {"x": ("in", X), "y": ("out", np.zeros(1, np.int32))}
    for lane, found in ((5, {"trap"}), (500, set())):
        result, _ = execute(module(kernel(body.format(lane=lane))), [launch(("x", "y"), 1, 32)], arrays)
        assert kinds(result) == found


def test_local_memory_is_of_each_lane() -> None:
    body = (
        ".local .align 16 .b8 depot[32];\nmov.b64 %d10, depot;\ncvta.local.u64 %d11, %d10;\n"
        "and.b32 %r6, %r1, 3;\nmul.wide.u32 %d12, %r6, 4;\n"
        "add.s64 %d13, %d11, %d12;\nst.b32 [%d13], %r5;\nadd.s64 %d14, %d10, %d12;\nld.local.b32 %r9, [%d14];"
    )
    _, y = go(ADDRESS + body + KEEP)
    assert (y == X).all()


def test_module_variables_hold_their_initial_values() -> None:
    head = ".const .align 4 .b8 table[8] = {1, 0, 0, 0, 2, 1};\n.global .align 4 .u32 count = 5;\n"
    body = (
        "ld.const.b32 %r5, [table+4];\nld.global.b32 %r6, [count];\nadd.u32 %r9, %r5, %r6;\nst.global.b32 [%d1], %r9;"
    )
    arrays = {"x": ("in", X), "y": ("out", np.zeros(1, np.int32))}
    result, out = execute(HEADER + kernel(body, head=head), [launch(("x", "y"), 1, 1)], arrays)
    assert out["y"][0] == 258 + 5 and not result.findings


def test_special_registers_say_where_a_thread_is() -> None:
    text = kernel(
        "mov.u32 %r3, %tid.y;\nmov.u32 %r4, %ctaid.y;\nmov.u32 %r5, %nctaid.x;\n"
        "mad.lo.u32 %r6, %r4, %r5, %r2;\nshl.b32 %r6, %r6, 3;\nshl.b32 %r3, %r3, 2;\n"
        "add.u32 %r6, %r6, %r3;\nadd.u32 %r6, %r6, %r1;\nmul.wide.u32 %d5, %r6, 4;\n"
        "add.s64 %d7, %d1, %d5;\nmov.u32 %r9, %laneid;\nst.global.b32 [%d7], %r9;"
    )
    from dataclasses import replace

    arrays = {"x": ("in", X), "y": ("out", np.full(48, -1, np.int32))}
    launched = replace(launch(("x", "y")), grid=(3, 2, 1), block=(4, 2, 1))
    result, out = execute(module(text), [launched], arrays)
    assert out["y"].tolist() == list(range(8)) * 6 and not result.findings


def test_a_sum_does_not_depend_on_the_seed_where_the_kernel_is_right() -> None:
    body = ADDRESS + "and.b32 %r9, %r5, 255;\nred.global.add.u32 [%d1], %r9;"
    totals = {int(go(body, seed=seed, role="state")[1][0]) for seed in range(4)}
    assert totals == {int((X & 255).sum())}


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (Limits(instructions=1000), "warp instructions"),
        (Limits(seconds=0.2), "deadline"),
        (Limits(bytes=100), "budget"),
    ],
)
def test_a_run_ends_at_its_limits(limits: Limits, told: str) -> None:
    body = "mov.u32 %r5, 0;\nL: add.u32 %r5, %r5, 1;\nbra L;"
    arrays = {"x": ("in", X), "y": ("out", np.zeros(1, np.int32))}
    result, _ = execute(module(kernel(body)), [launch(("x", "y"), 1, 1)], arrays, limits=limits)
    assert told in result.stopped and not result.whole


def test_an_unknown_instruction_is_skipped_by_name() -> None:
    arrays = {"x": ("in", X), "y": ("out", np.zeros(1, np.int32))}
    ptx = module(kernel("tcgen05.wait::ld.sync.aligned;"))
    result, _ = execute(ptx, [launch(("x", "y"), 1, 1)], arrays)
    assert "tcgen05.wait::ld.sync.aligned at PTX line" in result.skipped and not result.whole


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no PTX"),
        ("\x00\x01", "is no PTX"),
        (module(kernel("add.u32 %r5, %r1")), "PTX line"),
        (module(kernel("add.u32 %r5, %r1;")), "takes 2 sources"),
        (module(kernel("add.u32 %r99, %r1, 1;")), "needs a register"),
        (module(kernel("bra NOWHERE;")), "label"),
        (module(kernel("ld.global.v2.b32 %r5, [%d0];")), "2 registers"),
        (module(kernel("L: L: mov.u32 %r5, 0;")), "twice"),
        (module(kernel("add.u32 %r5, %p1, 1;")), "register"),
        (module(kernel("{" * 200 + "}" * 200)), "too deep"),
        (HEADER + ".visible .entry k() { .reg .b32 %r<99999999>; ret; }", "too many"),
        (module(kernel("mov.u32 %r5, 0;"))[:-4], "ends in the middle"),
    ],
)
def test_malformed_text_is_refused_in_one_line(text: str, told: str) -> None:
    arrays = {"x": ("in", X), "y": ("out", np.zeros(1, np.int32))}
    with pytest.raises(PtxError) as raised:
        execute(text, [launch(("x", "y"), 1, 1)], arrays)
    assert told in str(raised.value) and "\n" not in str(raised.value)


def test_a_launch_that_does_not_fit_is_refused() -> None:
    arrays = {"x": ("in", X), "y": ("out", np.zeros(1, np.int32))}
    ptx = module(kernel("ret;"))
    for wrong in (
        launch(("x",)),
        launch(("x", "z")),
        launch(("x", "y"), name="other"),
        launch(("x", "y"), 1, 2048),
        launch(("x", "y"), 3, 32, 2),
        launch(("x", "y"), shared=1 << 20),
    ):
        with pytest.raises(PtxError):
            execute(ptx, [wrong], arrays)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_text_gives_a_result_or_one_line(data: st.DataObject) -> None:
    text = module(kernel(ADDRESS + "st.global.b32 [%d7], %r5;\nbar.sync 0;\nshfl.sync.idx.b32 %r5, %r5, 0, 31, -1;"))
    at = data.draw(st.integers(0, len(text) - 1))
    cut = data.draw(st.integers(0, 6))
    put = data.draw(st.sampled_from(["", ";", "{", "}", "[", "%r1", "0x", ".v4", "@", "1e9", "99999999999"]))
    arrays = {"x": ("in", X), "y": ("out", np.zeros(N, np.int32))}
    try:
        execute(text[:at] + put + text[at + cut :], [launch(("x", "y"), 1, 32)], arrays, limits=Limits(1000, 5))
    except PtxError as error:
        assert "\n" not in str(error)


def test_blocks_of_a_loop_come_before_what_follows_it() -> None:
    entry = parse(module(kernel(COLLATZ))).entries["k"]
    order = ranks(entry)
    at = {name: order[index] for name, index in entry.labels.items()}
    assert at["TEST"] < at["BODY"] < at["NEXT"]
    assert all(rank < order[len(entry.instructions) - 1] for rank in at.values())
