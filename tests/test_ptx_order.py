"""What the memory model of PTX orders, and what it does not: wgmma's registers, proxies, mbarriers' initialisation,
scopes, lanes of one warp. And registers that were never written, branches by a table, barriers that count."""

import numpy as np
import pytest
from support.ptx import execute, kernel, kinds, launch, module

N = 128
X = np.arange(N, dtype=np.float32)
PLACE = "mul.wide.u32 %d5, %r1, 4;\nadd.s64 %d6, %d0, %d5;\nadd.s64 %d7, %d1, %d5;\n"


def once(body: str, block: int = N, grid: int = 1, seed: int = 0, shared: int = 0, role: str = "out", **more):
    arrays = {"x": ("in", X), "y": (role, np.zeros(N, np.float32))}
    ptx = module(kernel(body, shared=shared))
    return execute(ptx, [launch(("x", "y"), grid, block, **more)], arrays, seed)


# -- wgmma: 64 x 8 x 16, A of registers, B (all ones) in shared memory without a swizzle

ONES = (
    "shl.b32 %r4, %r1, 2;\nadd.u32 %r4, %r0, %r4;\nst.shared.b32 [%r4], 0x3f803f80;\nfence.proxy.async;\nbar.sync 0;\n"
    f"mov.b64 %d9, {1024 >> 4 | 128 >> 4 << 16 | 256 >> 4 << 32};\nsetp.ne.u32 %p2, %r0, 0;\n"
)
FRAGMENT = "".join(f"and.b32 %r{i}, %r1, 0;\nor.b32 %r{i}, %r{i}, 0x3f803f80;\n" for i in range(20, 24))
ZEROS = "".join(f"mov.b32 %r{i}, 0;\n" for i in range(30, 38))
TAIL = "%d9, %p2, 1, 1, 0;\n"
MMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r30,%r31,%r32,%r33}, {%r20,%r21,%r22,%r23}, " + TAIL
WIDER = MMA.replace("n8", "n16").replace("%r33}", "%r33,%r34,%r35,%r36,%r37}")
FENCE, COMMIT = "wgmma.fence.sync.aligned;\n", "wgmma.commit_group.sync.aligned;\n"
WAIT, WAIT_1 = "wgmma.wait_group.sync.aligned 0;\n", "wgmma.wait_group.sync.aligned 1;\n"
OUT = PLACE + "st.global.b32 [%d7], %r30;\n"
SCALE = "add.f32 %r31, %r31, %r31;\n"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (FRAGMENT + ZEROS + FENCE + MMA + COMMIT + WAIT + OUT, set()),
        (FRAGMENT + FENCE + ZEROS + MMA + COMMIT + WAIT + OUT, set()),  # constants stand where the compiler puts them
        (FRAGMENT + ZEROS + MMA + COMMIT + WAIT + OUT, {"proxy-fence-missing"}),
        (FENCE + FRAGMENT + ZEROS + MMA + COMMIT + WAIT + OUT, {"proxy-fence-missing"}),
        (FRAGMENT + ZEROS + FENCE + MMA + MMA + COMMIT + WAIT + OUT, set()),
        (FRAGMENT + ZEROS + FENCE + MMA + COMMIT + MMA + COMMIT + WAIT + OUT, set()),
        (FRAGMENT + ZEROS + FENCE + MMA + COMMIT + WAIT + SCALE + MMA + COMMIT + WAIT + OUT, {"proxy-fence-missing"}),
        (FRAGMENT + ZEROS + FENCE + MMA + COMMIT + WAIT + SCALE + FENCE + MMA + COMMIT + WAIT + OUT, set()),
        (FRAGMENT + ZEROS + FENCE + MMA + WIDER + COMMIT + WAIT + OUT, {"proxy-fence-missing"}),
        (FRAGMENT + ZEROS + FENCE + MMA + FENCE + WIDER + COMMIT + WAIT + OUT, set()),
        (FRAGMENT + ZEROS + FENCE + MMA + COMMIT + WAIT_1 + OUT, {"async-not-waited"}),
        (FRAGMENT + ZEROS + FENCE + MMA + WAIT + OUT, {"async-not-waited"}),  # of no group
        (FRAGMENT + ZEROS + FENCE + MMA + COMMIT + "add.u32 %r20, %r20, 1;\n" + WAIT + OUT, {"async-not-waited"}),
        (FRAGMENT + ZEROS + FENCE + MMA + COMMIT + "add.u32 %r9, %r20, 1;\n" + WAIT + OUT, {"async-not-waited"}),
        (FRAGMENT + ZEROS + FENCE + MMA + COMMIT + "mov.b32 %r9, %r30;\n" + WAIT + OUT, set()),  # a copy is not a use
        (
            FRAGMENT + ZEROS + FENCE + MMA + COMMIT + "mov.b32 %r9, %r30;\nadd.u32 %r9, %r9, 1;\n" + WAIT + OUT,
            {"async-not-waited"},
        ),
        (FRAGMENT + ZEROS + FENCE + "mov.b32 %r9, %r20;\nmov.b32 %r20, %r9;\n" + MMA + COMMIT + WAIT + OUT, set()),
    ],
)
def test_registers_of_wgmma_are_left_alone_until_it_is_waited_for_and_fenced(body: str, found: set[str]) -> None:
    result, out = once(ONES + body, shared=512)
    assert result.whole and kinds(result) == found, result.findings
    if not found and body.count(MMA) + body.count(WIDER) == 1:
        assert (out["y"] == 16).all()


# -- lanes of one warp

LANES = (
    "shl.b32 %r4, %r1, 2;\nadd.u32 %r4, %r0, %r4;\nxor.b32 %r5, %r1, 1;\nshl.b32 %r5, %r5, 2;\nadd.u32 %r5, %r0, %r5;\n"
)


@pytest.mark.parametrize(
    ("between", "racy"),
    [
        ("bar.warp.sync -1;", False),
        ("bar.warp.sync -1;\nredux.sync.add.u32 %r9, %r1, -1;", False),
        ("redux.sync.add.u32 %r9, %r1, -1;", True),
        ("match.any.sync.b32 %r9, %r1, -1;", True),
        ("activemask.b32 %r9;", True),
        ("membar.cta;", True),
        ("fence.proxy.async;", True),
        # an arrival of all lanes that all lanes wait for is a barrier too
        (
            "mbarrier.arrive.shared.b64 _, [%r0+128];\n"
            "W: mbarrier.try_wait.parity.shared.b64 %p1, [%r0+128], 0;\n@!%p1 bra W;",
            False,
        ),
    ],
)
def test_lanes_of_a_warp_are_ordered_by_barriers_alone(between: str, racy: bool) -> None:
    start = "setp.eq.u32 %p0, %r1, 0;\n@%p0 mbarrier.init.shared.b64 [%r0+128], 32;\nbar.warp.sync -1;\n"
    body = LANES + start + f"st.shared.b32 [%r4], %r1;\n{between}\nld.shared.b32 %r7, [%r5];\n"
    result, out = once(body + PLACE + "st.global.b32 [%d7], %r7;", block=32, shared=256)
    assert kinds(result) == ({"race"} if racy else set()), result.findings
    if racy:
        assert "same warp" in result.findings[0].message
    else:
        assert (out["y"].view(np.int32)[:32] == (np.arange(32) ^ 1)).all()


# -- initialisation of mbarriers, and proxies

INIT = "setp.ne.u32 %p0, %r1, 0;\n@%p0 bra GO;\nmbarrier.init.shared.b64 [%r0], 1;\n{fence}\nGO: bar.sync 0;\n{late}\n"
COPY = (
    "@%p0 bra WAIT;\nmbarrier.arrive.expect_tx.shared.b64 %d9, [%r0], 512;\n"
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0+128], [{source}], 512, [%r0];\n"
    "WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [%r0], 0;\n@!%p1 bra WAIT;\n"
    "shl.b32 %r4, %r1, 2;\nadd.u32 %r4, %r0, %r4;\nld.shared.b32 %r5, [%r4+128];\n"
)


@pytest.mark.parametrize(
    ("fence", "late", "found"),
    [
        ("fence.mbarrier_init.release.cluster;", "", set()),
        ("fence.proxy.async;", "", set()),
        ("fence.proxy.async.shared::cta;", "", set()),
        ("", "fence.proxy.async.shared::cta;", set()),
        ("", "fence.mbarrier_init.release.cluster;", set()),  # by all, so also by who made it
        ("", "@%p0 fence.mbarrier_init.release.cluster;", {"mbarrier"}),  # by the others
        ("", "", {"mbarrier"}),
        ("fence.proxy.async.global;", "", {"mbarrier"}),
        ("fence.acq_rel.gpu;", "", {"mbarrier"}),
    ],
)
def test_a_copy_completes_on_an_mbarrier_that_a_fence_has_shown(fence: str, late: str, found: set[str]) -> None:
    body = INIT.format(fence=fence, late=late) + COPY.format(source="%d0") + PLACE + "st.global.b32 [%d7], %r5;"
    result, out = once(body, shared=1024)
    assert kinds(result) == found, result.findings
    assert (out["y"] == X).all()


def test_threads_need_no_fence_for_an_mbarrier_of_their_own_block() -> None:
    body = INIT.format(fence="", late="") + (
        "@%p0 bra WAIT;\nmbarrier.arrive.shared.b64 %d9, [%r0];\n"
        "WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [%r0], 0;\n@!%p1 bra WAIT;\nst.global.b32 [%d1], 1;"
    )
    result, _ = once(body, shared=64)
    assert result.whole and not result.findings


FENCES = [
    ("fence.proxy.async;\nbar.sync 0;", set()),
    ("fence.proxy.async.global;\nbar.sync 0;", set()),
    ("bar.sync 0;\nfence.proxy.async.global;", set()),
    ("bar.sync 0;", {"proxy-fence-missing"}),
    ("fence.proxy.async.shared::cta;\nbar.sync 0;", {"proxy-fence-missing"}),
    ("fence.acq_rel.gpu;\nbar.sync 0;", {"proxy-fence-missing"}),
]


@pytest.mark.parametrize(("between", "found"), FENCES)
def test_a_bulk_copy_reads_what_threads_wrote_to_global_memory_after_a_proxy_fence(
    between: str, found: set[str]
) -> None:
    start = INIT.format(fence="fence.mbarrier_init.release.cluster;", late="")
    body = PLACE + "st.global.b32 [%d7], %r1;\n" + start + between + "\n" + COPY.format(source="%d1")
    result, out = once(body + "add.u32 %r5, %r5, 1;\nst.global.b32 [%d7], %r5;", shared=1024, role="state")
    assert kinds(result) == found, result.findings
    assert (out["y"].view(np.int32) == np.arange(N) + 1).all()


def test_what_a_bulk_copy_still_reads_is_not_written_over() -> None:
    start = INIT.format(fence="fence.mbarrier_init.release.cluster;", late="")
    copy = COPY.format(source="%d1").replace("WAIT:", "WAIT: st.global.b32 [%d7], 5;\n@%p0 bra L;\nL:")
    result, _ = once(PLACE + start + copy, shared=1024, role="state")
    assert kinds(result) == {"async-not-waited"}


REMOTE = (
    "mapa.shared::cluster.u32 %r10, %r0, 1;\nsetp.ne.u32 %p3, %r2, 0;\n@%p3 bra DONE;\n"
    "@%p0 bra DONE;\n"
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r10+640], [%r0+128], 512, [%r10];\nDONE: "
)


@pytest.mark.parametrize(
    ("fence", "found"), [("fence.proxy.async;", set()), ("fence.acq_rel.cta;", {"proxy-fence-missing"})]
)
def test_a_copy_to_another_block_reads_shared_memory_after_a_proxy_fence(fence: str, found: set[str]) -> None:
    body = (
        "setp.ne.u32 %p0, %r1, 0;\n@!%p0 mbarrier.init.shared.b64 [%r0], 1;\n"
        "@!%p0 fence.mbarrier_init.release.cluster;\n@!%p0 mbarrier.arrive.expect_tx.shared.b64 %d9, [%r0], 512;\n"
        "shl.b32 %r4, %r1, 2;\nadd.u32 %r4, %r0, %r4;\nst.shared.b32 [%r4+128], %r1;\n"
        f"{fence}\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n{REMOTE}"
        "setp.eq.u32 %p3, %r2, 0;\n@%p3 bra END;\n"
        "WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [%r0], 0;\n@!%p1 bra WAIT;\n"
        f"ld.shared.b32 %r5, [%r4+640];\n{PLACE}st.global.b32 [%d7], %r5;\n"
        "END: barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
    )
    result, out = once(body, grid=2, shared=2048, cluster=2)
    assert kinds(result) == found, result.findings
    assert (out["y"].view(np.int32) == np.arange(N)).all()


@pytest.mark.parametrize(
    ("fence", "arrive", "found"),
    [
        ("fence.mbarrier_init.release.cluster;", ".relaxed", set()),
        ("", "", set()),
        ("", ".relaxed", {"mbarrier"}),
    ],
)
def test_an_mbarrier_of_another_block_is_used_after_its_initialisation(
    fence: str, arrive: str, found: set[str]
) -> None:
    body = (
        f"setp.ne.u32 %p0, %r1, 0;\n@%p0 bra GO;\nmbarrier.init.shared.b64 [%r0], 1;\n{fence}\n"
        f"GO: barrier.cluster.arrive{arrive};\nbarrier.cluster.wait;\n"
        "xor.b32 %r9, %r2, 1;\nmapa.shared::cluster.u32 %r10, %r0, %r9;\n@%p0 bra END;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r10];\n"
        "WAIT: mbarrier.try_wait.parity.acquire.cluster.shared.b64 %p1, [%r0], 0;\n@!%p1 bra WAIT;\n"
        "END: barrier.cluster.arrive;\nbarrier.cluster.wait;\nst.global.b32 [%d1], 1;"
    )
    result, _ = once(body, block=32, grid=2, shared=64, cluster=2)
    assert result.whole and kinds(result) == found, result.findings


# -- scopes

PASS = (
    "setp.ne.u32 %p0, %r2, 0;\n@%p0 bra READ;\nst.global.b32 [%d1], 42;\n{release}\nbra END;\n"
    "READ: {acquire}\nsetp.eq.u32 %p1, %r5, 0;\n@%p1 bra READ;\n{after}\n"
    "ld.global.b32 %r6, [%d1];\nst.global.b32 [%d1+8], %r6;\nEND:"
)
STORE, LOAD = "st.relaxed.gpu.global.b32 [%d1+4], 1;", "ld.relaxed.gpu.global.b32 %r5, [%d1+4];"


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("release", "acquire", "after", "cluster", "racy"),
    [
        (f"fence.acq_rel.gpu;\n{STORE}", LOAD, "fence.acq_rel.gpu;", 1, False),
        (f"fence.acq_rel.cta;\n{STORE}", LOAD, "fence.acq_rel.gpu;", 1, True),
        (f"fence.acq_rel.gpu;\n{STORE}", LOAD, "fence.acq_rel.cta;", 1, True),
        (f"fence.acq_rel.gpu;\n{STORE}", LOAD, "fence.acq_rel.cta;\nfence.acq_rel.gpu;", 1, False),
        (f"fence.acq_rel.gpu;\n{STORE}", LOAD, "fence.acq_rel.cluster;", 1, True),
        (f"fence.acq_rel.gpu;\n{STORE}", LOAD, "fence.acq_rel.cluster;", 2, False),
        ("st.release.gpu.global.b32 [%d1+4], 1;", "ld.acquire.cta.global.b32 %r5, [%d1+4];", "", 1, True),
        ("st.release.cluster.global.b32 [%d1+4], 1;", "ld.acquire.cluster.global.b32 %r5, [%d1+4];", "", 2, False),
        ("st.release.cluster.global.b32 [%d1+4], 1;", "ld.acquire.cluster.global.b32 %r5, [%d1+4];", "", 1, True),
        ("atom.release.cta.global.add.u32 %r7, [%d1+4], 1;", "ld.acquire.gpu.global.b32 %r5, [%d1+4];", "", 1, True),
    ],
)
def test_a_release_and_an_acquire_meet_within_both_their_scopes(
    release: str, acquire: str, after: str, cluster: int, racy: bool, seed: int
) -> None:
    body = PASS.format(release=release, acquire=acquire, after=after)
    result, out = once(body, block=1, grid=2, seed=seed, role="state", cluster=cluster)
    assert result.whole, result.stopped
    assert kinds(result) == ({"race"} if racy else set()), result.findings
    assert out["y"].view(np.int32)[2] == 42


# -- registers that were never written


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("st.global.b32 [%d1], %r9;", True),
        ("add.u32 %r8, %r9, 1;\nst.global.b32 [%d1], %r8;", True),
        ("add.u32 %r8, %r9, 1;\nst.global.b32 [%d1], 1;", False),  # nobody uses it
        ("ld.global.b32 %r8, [%d9];\nst.global.b32 [%d1], %r8;", True),
        ("setp.eq.u32 %p0, %r9, 1;\n@%p0 bra L;\nL: st.global.b32 [%d1], 1;", True),
        ("selp.b32 %r8, %r9, %r1, %p1;\nst.global.b32 [%d1], %r8;", True),  # %p1 is not written
        ("setp.eq.u32 %p1, %r0, 77;\nselp.b32 %r8, %r9, 5, %p1;\nst.global.b32 [%d1], %r8;", False),
        ("setp.ne.u32 %p1, %r0, 77;\nselp.b32 %r8, %r9, 5, %p1;\nst.global.b32 [%d1], %r8;", True),
        ("mov.b32 %r9, 3;\nst.global.b32 [%d1], %r9;", False),
        ("setp.lt.u32 %p0, %r1, 8;\n@%p0 mov.b32 %r9, 3;\n@%p0 st.global.b32 [%d1], %r9;", False),
        ("setp.lt.u32 %p0, %r1, 8;\n@%p0 bra L;\nmov.b32 %r9, 3;\nL: st.global.b32 [%d1], %r9;", True),
        ("setp.lt.u32 %p0, %r1, 99;\n@!%p0 bra L;\nmov.b32 %r9, 3;\nL: st.global.b32 [%d1], %r9;", False),
        ("mov.b64 %d8, {%r1, %r9};\nmov.b64 {%r7, %r6}, %d8;\nst.global.b32 [%d1], %r7;", False),
        ("mov.b64 %d8, {%r8, %r9};\nst.global.b64 [%d1], %d8;", True),
        (  # a loop that carries a value which only its first round lacks
            "mov.u32 %r5, 0;\nL: setp.eq.u32 %p0, %r5, 0;\n@%p0 bra M;\nst.global.b32 [%d1], %r9;\n"
            "M: mov.u32 %r9, 7;\nadd.u32 %r5, %r5, 1;\nsetp.lt.u32 %p1, %r5, 3;\n@%p1 bra L;",
            False,
        ),
    ],
)
def test_a_register_is_written_before_its_value_matters(body: str, found: bool) -> None:
    result, _ = once("mov.b32 %r0, 0;\n" + body, block=32)
    assert ("uninitialised" in kinds(result)) == found, result.findings


# -- branches by a table, barriers that count

TABLE = "and.b32 %r5, %r1, 3;\nbrx.idx %r5, T;\nT: .branchtargets A, B, A, C;\n"


def test_a_lane_goes_where_the_table_says() -> None:
    body = TABLE + (
        "A: mov.u32 %r6, 10;\nbra DONE;\nB: mov.u32 %r6, 20;\nbra DONE;\nC: mov.u32 %r6, 30;\nDONE: bar.sync 0;\n"
    )
    result, out = once(body + PLACE + "st.global.b32 [%d7], %r6;")
    assert result.whole and not result.findings
    assert out["y"].view(np.int32).tolist() == [10, 20, 10, 30] * (N // 4)


def test_an_index_beyond_the_table_ends_the_run() -> None:
    result, _ = once("brx.idx %r1, T;\nT: .branchtargets A, A;\nA: st.global.b32 [%d1], 1;", block=3)
    assert kinds(result) == {"trap"} and result.stopped


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("form", "below", "want"),
    [
        ("bar.red.popc.u32 %r9, 0, %p0;", 37, 37),
        ("barrier.cta.red.popc.aligned.u32 %r9, 2, 128, !%p0;", 37, N - 37),
        ("bar.red.and.pred %p1, 0, %p0;\nselp.u32 %r9, 1, 0, %p1;", 127, 0),
        ("bar.red.and.pred %p1, 0, %p0;\nselp.u32 %r9, 1, 0, %p1;", 128, 1),
        ("bar.red.or.pred %p1, 0, %p0;\nselp.u32 %r9, 1, 0, %p1;", 1, 1),
        ("bar.red.or.pred %p1, 0, %p0;\nselp.u32 %r9, 1, 0, %p1;", 0, 0),
    ],
)
def test_a_barrier_counts_and_joins_what_its_threads_say(form: str, below: int, want: int, seed: int) -> None:
    body = f"setp.lt.u32 %p0, %r1, {below};\n{form}\nmov.u32 %r8, %r9;\n{form}\nadd.u32 %r9, %r9, %r8;\n"
    result, out = once(body + PLACE + "st.global.b32 [%d7], %r9;", seed=seed)
    assert result.whole and not result.findings
    assert (out["y"].view(np.int32) == 2 * want).all()


def test_a_barrier_that_counts_orders_memory() -> None:
    body = LANES.replace("1;\nshl", "64;\nshl") + "st.shared.b32 [%r4], %r1;\nsetp.eq.u32 %p0, %r1, 0;\n{}"
    read = "ld.shared.b32 %r7, [%r5];\n" + PLACE + "st.global.b32 [%d7], %r7;"
    result, out = once(body.format("bar.red.popc.u32 %r9, 0, %p0;\n") + read, shared=512)
    assert not result.findings and (out["y"].view(np.int32) == (np.arange(N) ^ 64)).all()
    assert kinds(once(body.format("") + read, shared=512)[0]) == {"race"}
