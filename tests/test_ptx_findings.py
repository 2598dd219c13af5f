"""What the interpreter finds wrong in kernels, and that the same kernels without the fault are found right."""

import numpy as np
import pytest
from support.ptx import execute, kernel, kinds, launch, module

N = 64
X = np.arange(N, dtype=np.float32)
ADDRESS = "mul.wide.u32 %d5, %r1, 4;\nadd.s64 %d6, %d0, %d5;\nadd.s64 %d7, %d1, %d5;\n"
COPY = ADDRESS + "ld.global.b32 %r5, [%d6];\nst.global.b32 [%d7], %r5;\n"
SLOT = (
    "shl.b32 %r4, %r1, 2;\nadd.s32 %r4, %r0, %r4;\nxor.b32 %r6, %r1, {mask};\n"
    "shl.b32 %r6, %r6, 2;\nadd.s32 %r6, %r0, %r6;\n"
)


def once(body: str, block: int = N, grid: int = 1, seed: int = 0, shared: int = 0, **more):
    arrays = {"x": ("in", X), "y": ("out", np.zeros(N, np.float32))}
    ptx = module(kernel(body, shared=shared))
    return execute(ptx, [launch(("x", "y"), grid, block, **more)], arrays, seed)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_right_copy_has_no_finding(seed: int) -> None:
    result, out = once(COPY, seed=seed)
    assert result.whole and not result.findings
    assert (out["y"] == X).all()


def test_a_read_past_the_end_names_tensor_index_block_and_thread() -> None:
    result, out = once(COPY, block=96)
    found = [f for f in result.findings if f.instruction.startswith("ld.")]
    assert len(found) == 1 and found[0].kind == "out-of-bounds"
    assert (found[0].tensor, found[0].index, found[0].block, found[0].thread) == ("x", (64,), (0, 0, 0), (64, 0, 0))
    assert found[0].times == 32
    assert (out["y"] == X).all()


def test_the_line_of_a_finding_is_the_line_of_the_text() -> None:
    ptx = module(kernel(COPY))
    result, _ = execute(ptx, [launch(("x", "y"), 1, 96)], {"x": ("in", X), "y": ("out", np.zeros(N, np.float32))})
    for finding in result.findings:
        assert finding.instruction.split()[0] in ptx.splitlines()[finding.line - 1]


def test_a_negative_offset_is_out_of_bounds_of_the_tensor_it_started_from() -> None:
    result, _ = once("ld.global.b32 %r5, [%d1+-4];\nst.global.b32 [%d1], %r5;", block=1)
    assert [(f.kind, f.tensor, f.index) for f in result.findings] == [("out-of-bounds", "y", (-1,))]


def test_a_wild_address_is_out_of_bounds_of_nothing() -> None:
    result, _ = once("mov.b64 %d9, 64;\nld.global.b32 %r5, [%d9];\nst.global.b32 [%d1], %r5;", block=1)
    assert [(f.kind, f.tensor) for f in result.findings] == [("out-of-bounds", "")]


def test_an_address_between_elements_is_misaligned() -> None:
    result, _ = once("ld.global.b32 %r5, [%d0+2];\nst.global.b32 [%d1], %r5;", block=1)
    assert kinds(result) == {"misaligned"}
    result, _ = once("ld.global.v4.b32 {%r5,%r6,%r7,%r8}, [%d0+8];\nst.global.b32 [%d1], %r5;", block=1)
    assert kinds(result) == {"misaligned"}


def test_an_output_that_is_read_first_is_uninitialised() -> None:
    body = ADDRESS + "ld.global.b32 %r5, [%d7];\nst.global.b32 [%d7], %r5;\n"
    result, _ = once(body)
    assert kinds(result) == {"uninitialised"}
    result, _ = execute(
        module(kernel(body)), [launch(("x", "y"), 1, N)], {"x": ("in", X), "y": ("state", np.zeros(N, np.float32))}
    )
    assert not result.findings


def test_shared_memory_holds_nothing_at_first() -> None:
    result, _ = once("ld.shared.b32 %r5, [%r0];\nst.global.b32 [%d1], %r5;", block=1, shared=16)
    assert kinds(result) == {"uninitialised"}


def test_shared_memory_ends_where_the_variable_ends() -> None:
    result, _ = once("st.shared.b32 [%r0+16], %r1;\nst.global.b32 [%d1], %r1;", block=1, shared=16)
    assert [(f.kind, f.tensor, f.index) for f in result.findings] == [("out-of-bounds", "shared", (16,))]


def test_inputs_are_not_written() -> None:
    result, _ = once("st.global.b32 [%d0], %r1;\nst.global.b32 [%d1], %r1;", block=1)
    assert [(f.kind, f.tensor) for f in result.findings] == [("input-written", "x")]
    assert X[0] == 0 and X[1] == 1


def exchange(between: str, mask: int) -> str:
    """Each thread reads what another one wrote."""
    return (
        SLOT.format(mask=mask)
        + ADDRESS
        + (
            f"ld.global.b32 %r5, [%d6];\nst.shared.b32 [%r4], %r5;\n{between}\n"
            f"ld.shared.b32 %r7, [%r6];\nst.global.b32 [%d7], %r7;"
        )
    )


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("between", "mask", "racy"),
    [
        ("bar.sync 0;", 32, False),
        ("barrier.sync 1, 64;", 33, False),
        ("", 32, True),
        ("bar.warp.sync -1;", 1, False),
        ("bar.warp.sync -1;", 32, True),
        ("", 1, True),
        ("shfl.sync.idx.b32 %r9, %r5, 0, 31, -1;", 5, True),
        ("vote.sync.ballot.b32 %r9, %p0, -1;", 5, True),
        ("setp.eq.u32 %p0, %r1, %r1;\nelect.sync %r9|%p0, -1;", 1, True),
        ("fence.acq_rel.cta;", 1, True),
        ("fence.acq_rel.cta;\nbar.warp.sync -1;\nshfl.sync.idx.b32 %r9, %r5, 0, 31, -1;", 5, False),
        ("fence.acq_rel.cta;", 32, True),
    ],
)
def test_threads_exchange_values_only_across_a_barrier(between: str, mask: int, racy: bool, seed: int) -> None:
    result, out = once(exchange(between, mask), shared=4 * N, seed=seed)
    assert ("race" in kinds(result)) == racy
    if not racy:
        assert not result.findings
        assert (out["y"] == X[np.arange(N) ^ mask]).all()


def test_a_buffer_that_is_written_again_needs_a_second_barrier() -> None:
    round_ = "st.shared.b32 [%r4], %r1;\nbar.sync 0;\nld.shared.b32 %r7, [%r6];\n"
    end = "st.global.b32 [%d7], %r7;"
    start = SLOT.format(mask=32) + ADDRESS
    bad, _ = once(start + round_ + round_ + end, shared=4 * N)
    # the same value again does no harm, so the second round writes another one
    other = round_.replace("%r1;", "%r2;")
    bad, _ = once(start + round_ + "add.u32 %r2, %r1, 7;\n" + other + end, shared=4 * N)
    good, out = once(start + round_ + "bar.sync 0;\nadd.u32 %r2, %r1, 7;\n" + other + end, shared=4 * N)
    assert kinds(bad) == {"race"}
    assert not good.findings
    assert (out["y"].view(np.int32) == (np.arange(N) ^ 32) + 7).all()


def test_two_blocks_that_write_one_element_race() -> None:
    result, _ = once("add.u32 %r2, %r2, 1;\nst.global.b32 [%d1], %r2;", block=1, grid=3)
    assert kinds(result) == {"race"}


def test_the_same_value_twice_is_no_race() -> None:
    result, _ = once("st.global.b32 [%d1], 7;", block=64, grid=3)
    assert not result.findings


@pytest.mark.parametrize("seed", [0, 1])
def test_atomics_do_not_race_with_each_other(seed: int) -> None:
    arrays = {"x": ("in", X), "y": ("state", np.zeros(N, np.int32))}
    good = "red.global.add.u32 [%d1], 1;\natom.global.max.s32 %r5, [%d1+4], %r1;"
    result, out = execute(module(kernel(good)), [launch(("x", "y"), 3, N)], arrays, seed)
    assert not result.findings
    assert (out["y"][0], out["y"][1]) == (3 * N, N - 1)
    bad = "red.global.add.u32 [%d1], 1;\nld.global.b32 %r5, [%d1];\nst.global.b32 [%d1+8], 1;"
    result, _ = execute(module(kernel(bad)), [launch(("x", "y"), 3, N)], arrays, seed)
    assert kinds(result) == {"race"}


PRODUCER = "setp.ne.u32 %p0, %r2, 0;\n@%p0 bra READ;\nst.global.b32 [%d1], 42;\n{release}\nbra END;\n"
CONSUMER = (
    "READ:\n{acquire}\nsetp.eq.u32 %p1, %r5, 0;\n@%p1 bra READ;\n{after}\n"
    "ld.global.b32 %r6, [%d1];\nst.global.b32 [%d1+8], %r6;\nEND:"
)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("release", "acquire", "after", "racy"),
    [
        ("st.release.gpu.global.b32 [%d1+4], 1;", "ld.acquire.gpu.global.b32 %r5, [%d1+4];", "", False),
        (
            "fence.acq_rel.gpu;\nst.relaxed.gpu.global.b32 [%d1+4], 1;",
            "ld.acquire.gpu.global.b32 %r5, [%d1+4];",
            "",
            False,
        ),
        ("membar.gl;\nst.volatile.global.b32 [%d1+4], 1;", "ld.volatile.global.b32 %r5, [%d1+4];", "membar.gl;", False),
        ("atom.release.gpu.global.add.u32 %r7, [%d1+4], 1;", "ld.acquire.gpu.global.b32 %r5, [%d1+4];", "", False),
        ("st.relaxed.gpu.global.b32 [%d1+4], 1;", "ld.acquire.gpu.global.b32 %r5, [%d1+4];", "", True),
        ("st.release.gpu.global.b32 [%d1+4], 1;", "ld.relaxed.gpu.global.b32 %r5, [%d1+4];", "", True),
        ("st.release.cta.global.b32 [%d1+4], 1;", "ld.acquire.gpu.global.b32 %r5, [%d1+4];", "", True),
    ],
)
def test_a_flag_orders_blocks_when_released_and_acquired(
    release: str, acquire: str, after: str, racy: bool, seed: int
) -> None:
    body = PRODUCER.format(release=release) + CONSUMER.format(acquire=acquire, after=after)
    arrays = {"x": ("in", X), "y": ("state", np.zeros(N, np.int32))}
    result, out = execute(module(kernel(body)), [launch(("x", "y"), 2, 1)], arrays, seed)
    assert result.whole, result.stopped
    assert out["y"][2] == 42
    assert ("race" in kinds(result)) == racy, result.findings


def test_a_flag_that_nobody_sets_is_a_deadlock() -> None:
    body = "L: ld.acquire.gpu.global.b32 %r5, [%d1];\nsetp.eq.u32 %p1, %r5, 0;\n@%p1 bra L;"
    arrays = {"x": ("in", X), "y": ("state", np.zeros(N, np.int32))}
    result, _ = execute(module(kernel(body)), [launch(("x", "y"), 2, 32)], arrays)
    assert kinds(result) == {"deadlock"}
    assert result.stopped


def test_a_long_loop_that_changes_only_registers_is_no_deadlock() -> None:
    body = (
        "mov.u32 %r5, 0;\nL: ld.volatile.global.b32 %r6, [%d0];\nadd.u32 %r5, %r5, 1;\n"
        "setp.lt.u32 %p1, %r5, 3000;\n@%p1 bra L;\nst.global.b32 [%d1], %r5;"
    )
    result, out = once(body, block=1)
    assert not result.findings and out["y"].view(np.int32)[0] == 3000


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("setp.lt.u32 %p0, %r1, 32;\n@%p0 bar.sync 0;\nst.global.b32 [%d1], 1;", "exited"),
        ("setp.lt.u32 %p0, %r1, 40;\n@%p0 bar.sync 0;\nst.global.b32 [%d1], 1;", "exited"),
        ("bar.sync 1, 96;\nst.global.b32 [%d1], 1;", "2 of 3 warps"),
        (
            (
                "setp.lt.u32 %p0, %r1, 32;\n@%p0 bra A;\nbar.sync 1, 64;\nbra B;\nA: bar.sync 2, 64;\n"
                "B: st.global.b32 [%d1], 1;"
            ),
            "never completes",
        ),
    ],
)
def test_a_barrier_that_not_all_come_to_is_found(body: str, told: str) -> None:
    result, _ = once(body)
    assert kinds(result) == {"barrier-participation"}
    assert told in result.findings[0].message


CHAIN = [launch(("x", "h"), 2, 32, name="a", pdl=True), launch(("h", "y"), 2, 32, name="b", pdl=True)]
FIRST = "mad.lo.u32 %r1, %r2, 32, %r1;\n" + COPY


@pytest.mark.parametrize(
    ("second", "found"),
    [
        ("griddepcontrol.wait;\n" + FIRST, set()),
        (FIRST, {"pdl-wait-missing"}),
        ("setp.ne.u32 %p0, %r1, 0;\n@%p0 bra L;\ngriddepcontrol.wait;\nL: bar.sync 0;\n" + FIRST, set()),
        (
            "mad.lo.u32 %r1, %r2, 32, %r1;\nld.global.b32 %r5, [%d0];\ngriddepcontrol.wait;\n" + COPY,
            {"pdl-wait-missing"},
        ),
    ],
)
def test_a_dependent_launch_waits_before_it_touches(second: str, found: set[str]) -> None:
    ptx = module(kernel("griddepcontrol.wait;\n" + FIRST, name="a"), kernel(second, name="b"))
    arrays = {"x": ("in", X), "h": ("workspace", np.zeros(N, np.float32)), "y": ("out", np.zeros(N, np.float32))}
    result, out = execute(ptx, CHAIN, arrays)
    assert kinds(result) == found
    assert (out["y"] == X).all()


def test_a_launch_without_the_attribute_needs_no_wait() -> None:
    ptx = module(kernel(FIRST, name="a"), kernel(FIRST, name="b"))
    arrays = {"x": ("in", X), "h": ("workspace", np.zeros(N, np.float32)), "y": ("out", np.zeros(N, np.float32))}
    plain = [launch(("x", "h"), 2, 32, name="a"), launch(("h", "y"), 2, 32, name="b")]
    assert not execute(ptx, plain, arrays)[0].findings


def test_a_launch_that_does_not_wait_leaves_the_one_before_it_open() -> None:
    """The third launch waits for the second, which never waited for the first."""
    idle = kernel("st.global.b32 [%d1], 1;", name="b")
    ptx = module(kernel(FIRST, name="a"), idle, kernel("griddepcontrol.wait;\n" + FIRST, name="c"))
    arrays = {
        "x": ("in", X),
        "h": ("workspace", np.zeros(N, np.float32)),
        "z": ("workspace", np.zeros(N, np.float32)),
        "y": ("out", np.zeros(N, np.float32)),
    }
    chain = [
        launch(("x", "h"), 2, 32, name="a"),
        launch(("x", "z"), 1, 1, name="b", pdl=True),
        launch(("h", "y"), 2, 32, name="c", pdl=True),
    ]
    assert kinds(execute(ptx, chain, arrays)[0]) == {"pdl-wait-missing"}


@pytest.mark.parametrize(
    ("index", "found"),
    [
        ("mul.lo.s32 %r5, %r6, 1000000;", True),  # 5000 x 1000000
        ("mul.lo.s32 %r5, %r6, 1000000;\nsub.s32 %r5, %r5, 705032704;", True),  # ... and back into the tensor
        ("shl.b32 %r5, %r6, 20;", True),
        ("mad.lo.s32 %r5, %r6, 3, -14990;", False),
        ("mul.lo.s32 %r7, %r6, 1000000;\nmov.u32 %r5, 3;", False),  # not an address
    ],
)
def test_index_arithmetic_that_wraps_around_is_named(index: str, found: bool) -> None:
    body = (
        f"mov.u32 %r6, 5000;\n{index}\nmul.wide.s32 %d5, %r5, 4;\nadd.s64 %d6, %d0, %d5;\n"
        f"ld.global.b32 %r8, [%d6];\nst.global.b32 [%d1], %r8;"
    )
    result, _ = once(body, block=1)
    assert ("address-overflow" in kinds(result)) == found
