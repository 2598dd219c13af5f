"""Asynchronous copies, mbarriers, clusters and tensor maps in the interpreter: used right, and wrong in many ways."""

import numpy as np
import pytest
from support.ptx import execute, kernel, kinds, launch, module

from kgen.gates.ptx.matrix.tma import TensorMap

N = 64
X = np.arange(4 * N, dtype=np.int32)
OUT = {"x": ("in", X), "y": ("out", np.zeros(4 * N, np.int32))}


def go(body: str, block: int = N, grid: int = 1, cluster: int = 1, shared: int = 2048, seed: int = 0, **more):
    ptx = module(kernel(body, shared=shared))
    return execute(ptx, [launch(("x", "y"), grid, block, cluster)], more.pop("arrays", OUT), seed, **more)


def lines(*given: str) -> str:
    return "\n".join(given)


# every thread copies 16 bytes of its own; %r4: its place in shared memory, %r6: that of its neighbour
STAGE = lines(
    "shl.b32 %r4, %r1, 4;",
    "cvt.u64.u32 %d5, %r4;",
    "add.s64 %d6, %d0, %d5;",
    "add.s64 %d7, %d1, %d5;",
    "add.s32 %r4, %r0, %r4;",
    "xor.b32 %r6, %r1, 1;",
    "shl.b32 %r6, %r6, 4;",
    "add.s32 %r6, %r0, %r6;",
    "cp.async.cg.shared.global [%r4], [%d6], 16;",
)
READ = "ld.shared.v4.b32 {%r10,%r11,%r12,%r13}, [{at}];\nst.global.v4.b32 [%d7], {%r10,%r11,%r12,%r13};"
OWN, OTHER = READ.replace("{at}", "%r4"), READ.replace("{at}", "%r6")


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("body", "found"),
    [
        ((STAGE, "cp.async.commit_group;", "cp.async.wait_group 0;", OWN), set()),
        ((STAGE, "cp.async.commit_group;", "cp.async.wait_group 0;", "bar.sync 0;", OTHER), set()),
        ((STAGE, "cp.async.wait_all;", OWN), set()),
        ((STAGE, "cp.async.commit_group;", OWN), {"async-not-waited"}),
        ((STAGE, "cp.async.commit_group;", "cp.async.wait_group 1;", OWN), {"async-not-waited"}),
        ((STAGE, "cp.async.wait_group 0;", OWN), {"async-not-waited"}),  # never committed
        ((STAGE, "cp.async.commit_group;", "bar.sync 0;", OTHER), {"async-not-waited"}),
        ((STAGE, "cp.async.commit_group;", "cp.async.wait_group 0;", OTHER), {"async-not-waited"}),  # of another thread
        ((STAGE, "cp.async.commit_group;", "cp.async.commit_group;", "cp.async.wait_group 1;", OWN), set()),
    ],
)
def test_a_copied_value_is_read_after_its_group_was_waited_for(
    body: tuple[str, ...], found: set[str], seed: int
) -> None:
    result, out = go(lines(*body), seed=seed)
    assert kinds(result) == found
    if not found:
        want = X.reshape(-1, 4)[np.arange(N) ^ (1 if OTHER in body else 0)].reshape(-1)
        assert (out["y"] == want).all()


def test_a_copy_of_fewer_bytes_fills_with_zeros() -> None:
    body = STAGE.replace("[%d6], 16;", "[%d6], 16, %r9;").replace(
        "cp.async", "and.b32 %r9, %r1, 31;\nmin.u32 %r9, %r9, 16;\ncp.async"
    )
    result, out = go(lines(body, "cp.async.commit_group;", "cp.async.wait_group 0;", OWN))
    data = X.view(np.uint8).reshape(N, 16).copy()
    for thread in range(N):
        data[thread, min(thread & 31, 16) :] = 0
    assert not result.findings
    assert (out["y"].view(np.uint8).reshape(N, 16) == data).all()


def test_a_stage_that_is_filled_again_while_others_read_it_is_found() -> None:
    start = lines(STAGE, "cp.async.commit_group;", "cp.async.wait_group 0;", "bar.sync 0;", OTHER)
    again = lines("xor.b64 %d6, %d6, 16;", "cp.async.cg.shared.global [%r4], [%d6], 16;")
    end = lines("cp.async.commit_group;", "cp.async.wait_group 0;")
    assert "race" in kinds(go(lines(start, again, end))[0])
    assert not go(lines(start, "bar.sync 0;", again, end))[0].findings


# %r20: an mbarrier; thread 0 copies 1024 bytes; all wait
BULK = lines(
    "add.s32 %r20, %r0, 1024;",
    "setp.ne.u32 %p0, %r1, 0;",
    "shl.b32 %r4, %r1, 4;",
    "cvt.u64.u32 %d5, %r4;",
    "add.s64 %d7, %d1, %d5;",
    "add.s32 %r4, %r0, %r4;",
    "@%p0 bra READY;",
    "mbarrier.init.shared.b64 [%r20], 1;",
    "fence.mbarrier_init.release.cluster;",
    "READY: bar.sync 0;",
    "@%p0 bra COPIED;",
    "mbarrier.arrive.expect_tx.shared.b64 %d9, [%r20], {expected};",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], {size}, [%r20];",
    "COPIED:",
)
WAIT = "L{n}: mbarrier.try_wait.parity.shared.b64 %p1, [%r20], {parity};\n@!%p1 bra L{n};"


def bulk(expected: int = 1024, size: int = 1024) -> str:
    return BULK.format(expected=expected, size=size)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("body", "found"),
    [
        ((bulk(), WAIT.format(n=1, parity=0), OWN), set()),
        ((bulk(), OWN), {"async-not-waited"}),
        ((bulk(), WAIT.format(n=1, parity=1), OWN), {"wrong phase"}),
        ((bulk(expected=1040), WAIT.format(n=1, parity=0), OWN), {"deadlock"}),
        ((bulk(expected=512, size=512), WAIT.format(n=1, parity=0), OWN), {"uninitialised"}),
    ],
)
def test_a_bulk_copy_is_read_after_its_phase(body: tuple[str, ...], found: set[str], seed: int) -> None:
    result, out = go(lines(*body), seed=seed)
    if "wrong phase" in found:  # over at once, or never, by when the copy lands
        found = {"async-not-waited" if seed % 2 else "deadlock"}
    assert found <= kinds(result) and (found or not result.findings)
    if not found:
        assert (out["y"] == X).all()


def test_a_second_phase_has_the_other_parity() -> None:
    again = lines(
        "bar.sync 0;",
        "@%p0 bra AGAIN;",
        "mbarrier.arrive.expect_tx.shared.b64 %d9, [%r20], 1024;",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 1024, [%r20];",
        "AGAIN:",
    )
    first = lines(bulk(), WAIT.format(n=1, parity=0), OWN, again)
    good = go(lines(first, WAIT.format(n=2, parity=1), OWN))[0]
    assert not good.findings
    stale = lines(first, WAIT.format(n=2, parity=0), OWN)  # the flip is missing
    assert kinds(go(stale, seed=1)[0]) == {"async-not-waited"}
    assert "deadlock" in kinds(go(stale)[0])


def test_an_mbarrier_is_initialised_before_it_is_used_and_not_overrun() -> None:
    use = "add.s32 %r20, %r0, 1024;\nmbarrier.arrive.shared.b64 _, [%r20];"
    assert kinds(go(use)[0]) == {"mbarrier"}
    start = (
        "add.s32 %r20, %r0, 1024;\nsetp.ne.u32 %p0, %r1, 0;\n"
        "@!%p0 mbarrier.init.shared.b64 [%r20], {count};\nbar.sync 0;\n"
    )
    arrive = "mbarrier.arrive.shared.b64 %d9, [%r20];\nL: mbarrier.test_wait.shared.b64 %p1, [%r20], %d9;\n@!%p1 bra L;"
    assert not go(start.format(count=N) + arrive)[0].findings
    assert kinds(go(start.format(count=N - 8) + arrive)[0]) & {"mbarrier", "deadlock"}
    assert kinds(go(start.format(count=N + 1) + arrive)[0]) == {"deadlock"}


def test_arrivals_carry_what_the_arriving_threads_wrote() -> None:
    """Warp 1 writes and arrives; warp 0 waits and reads."""
    body = lines(
        "add.s32 %r20, %r0, 1024;",
        "setp.ne.u32 %p0, %r1, 0;",
        "@!%p0 mbarrier.init.shared.b64 [%r20], 32;",
        "bar.sync 0;",
        "setp.lt.u32 %p2, %r1, 32;",
        "and.b32 %r3, %r1, 31;",
        "shl.b32 %r4, %r3, 2;",
        "add.s32 %r5, %r0, %r4;",
        "@%p2 bra TAKE;",
        "st.shared.b32 [%r5], %r1;",
        "{arrive}",
        "bra END;",
        "TAKE:",
        WAIT.format(n=1, parity=0),
        "ld.shared.b32 %r7, [%r5];",
        "cvt.u64.u32 %d5, %r4;",
        "add.s64 %d7, %d1, %d5;",
        "st.global.b32 [%d7], %r7;",
        "END:",
    )
    for seed in range(3):
        good, out = go(body.replace("{arrive}", "mbarrier.arrive.shared.b64 %d9, [%r20];"), seed=seed)
        bad, _ = go(body.replace("{arrive}", "mbarrier.arrive.relaxed.cta.shared.b64 %d9, [%r20];"), seed=seed)
        assert not good.findings and (out["y"][:32] == np.arange(32, 64)).all()
        assert kinds(bad) == {"race"}


# each CTA writes its rank and reads the next one's
PEER = lines(
    "mov.u32 %r3, %cluster_ctarank;",
    "add.u32 %r5, %r3, 100;",
    "st.shared.b32 [%r0], %r5;",
    "{before}",
    "add.u32 %r6, %r3, 1;",
    "and.b32 %r6, %r6, 3;",
    "mapa.shared::cluster.u32 %r7, %r0, %r6;",
    "ld.shared::cluster.b32 %r8, [%r7];",
    "mul.wide.u32 %d5, %r2, 4;",
    "add.s64 %d7, %d1, %d5;",
    "st.global.b32 [%d7], %r8;",
    "barrier.cluster.arrive;",
    "barrier.cluster.wait;",
)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_cluster_reads_its_peers_after_the_cluster_barrier(seed: int) -> None:
    barrier = "barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;"
    good, out = go(PEER.replace("{before}", barrier), block=1, grid=8, cluster=4, seed=seed)
    assert not good.findings and out["y"][:8].tolist() == [101, 102, 103, 100] * 2
    bad, _ = go(PEER.replace("{before}", "bar.sync 0;"), block=1, grid=8, cluster=4, seed=seed)
    assert "race" in kinds(bad)
    relaxed = barrier.replace("release", "relaxed")
    assert "race" in kinds(go(PEER.replace("{before}", relaxed), block=1, grid=8, cluster=4, seed=seed)[0])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_cta_whose_memory_is_read_by_peers_stays_until_they_have_read(seed: int) -> None:
    barrier = "barrier.cluster.arrive;\nbarrier.cluster.wait;"
    body = PEER.replace("{before}", barrier)
    assert body.endswith(barrier)
    result, _ = go(body.removesuffix(barrier), block=1, grid=8, cluster=4, seed=seed)
    assert kinds(result) == {"cluster-exit"}


def test_a_rank_beyond_the_cluster_is_out_of_bounds() -> None:
    body = "mapa.shared::cluster.u32 %r7, %r0, 2;\nst.shared::cluster.b32 [%r7], %r1;"
    assert kinds(go(body, block=1, grid=2, cluster=2)[0]) == {"out-of-bounds"}


def test_a_cluster_barrier_that_one_cta_skips_never_completes() -> None:
    body = (
        "setp.eq.u32 %p0, %r2, 1;\nL: @%p0 bra SKIP;\nbarrier.cluster.arrive;\nbarrier.cluster.wait;\nSKIP: bar.sync 0;"
    )
    bad = body.replace("SKIP: bar.sync 0;", "SKIP: @%p0 bar.sync 1, 64;")
    assert kinds(go(bad, block=32, grid=2, cluster=2)[0]) == {"barrier-participation"}


def test_a_multicast_copy_lands_in_every_cta_of_its_mask() -> None:
    body = lines(
        "add.s32 %r20, %r0, 1024;",
        "mbarrier.init.shared.b64 [%r20], 1;",
        "fence.mbarrier_init.release.cluster;",
        "mbarrier.arrive.expect_tx.shared.b64 %d9, [%r20], 16;",
        "barrier.cluster.arrive;",
        "barrier.cluster.wait;",
        "mov.u32 %r3, %cluster_ctarank;",
        "setp.ne.u32 %p0, %r3, 0;",
        "@%p0 bra SENT;",
        "mov.b16 %h1, 3;",
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
            "[%r0], [%d0+32], 16, [%r20], %h1;"
        ),
        "SENT:",
        WAIT.format(n=1, parity=0),
        "ld.shared.b32 %r8, [%r0+4];",
        "mul.wide.u32 %d5, %r2, 4;",
        "add.s64 %d7, %d1, %d5;",
        "st.global.b32 [%d7], %r8;",
    )
    result, out = go(body, block=1, grid=2, cluster=2)
    assert not result.findings and out["y"][:2].tolist() == [9, 9]


STORE = lines(
    "shl.b32 %r4, %r1, 2;",
    "add.s32 %r4, %r0, %r4;",
    "st.shared.b32 [%r4], %r1;",
    "fence.proxy.async.shared::cta;",
    "bar.sync 0;",
    "setp.ne.u32 %p0, %r1, 0;",
    "@%p0 bra SENT;",
    "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r0], 256;",
    "cp.async.bulk.commit_group;",
    "{wait}",
    "SENT: bar.sync 0;",
    "{after}",
)


def test_shared_memory_is_reused_after_a_bulk_store_has_read_it() -> None:
    after = "add.u32 %r5, %r1, 5;\nst.shared.b32 [%r4], %r5;"
    good, out = go(STORE.format(wait="cp.async.bulk.wait_group.read 0;", after=after))
    assert not good.findings and (out["y"][:N] == np.arange(N)).all()
    bad, _ = go(STORE.format(wait="", after=after))
    assert kinds(bad) == {"async-not-waited"}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("fence.proxy.async.shared::cta;", "", set()),
        ("", "", {"proxy-fence-missing"}),
        ("", "fence.proxy.async;", set()),  # by the thread that copies, behind the barrier
        ("fence.proxy.tensormap::generic.release.gpu;", "", {"proxy-fence-missing"}),
    ],
)
def test_a_bulk_store_sees_what_was_fenced_for_it(before: str, after: str, found: set[str], seed: int) -> None:
    body = STORE.format(wait="cp.async.bulk.wait_group 0;", after="")
    body = body.replace("fence.proxy.async.shared::cta;", before).replace("bar.sync 0;", f"bar.sync 0;\n{after}", 1)
    assert kinds(go(body, seed=seed)[0]) == found


def test_a_copy_of_fewer_coordinates_than_its_tensor_map_has_is_left_to_the_hardware() -> None:
    """The compiler leaves out a dimension of size 1: the run is skipped with that line."""
    copy = "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
    body = lines(
        BULK[: BULK.index("mbarrier.arrive")],
        "mov.b64 %d20, p2;",
        "cvta.param.u64 %d21, %d20;",
        "mov.u32 %r30, 0;",
        f"{copy} [%r0], [%d21, {{%r30}}], [%r20];",
        "COPIED:",
    )
    text = kernel(body, shared=2048).replace(".param .b64 p1)", ".param .b64 p1, .param .align 64 .b8 p2[128])")
    arrays = {"x": ("in", np.zeros(8, np.int32)), "y": ("out", np.zeros(8, np.int32))}
    described = TensorMap("s32", 0, (8, 1), (32,), (8, 1), (1, 1), 0)
    result, _ = execute(module(text), [launch(("x", "y", "x"), 1, 128)], arrays, maps={(0, 2): described})
    assert not result.whole and "a copy of 1 coordinates with a tensor map of 2" in result.skipped


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_a_box_of_a_described_tensor_lands_swizzled_and_clipped(swizzle: int) -> None:
    """A 5 x 40 tensor of 32-bit elements, boxes of 4 x (swizzle / 4): rows past the end are zero."""
    inner = max(swizzle, 32) // 4
    described = TensorMap("s32", 0, (40, 5), (160,), (inner, 4), (1, 1), swizzle)
    tensor = np.arange(200, dtype=np.int32)
    body = lines(
        BULK[: BULK.index("mbarrier.arrive")],
        f"mbarrier.arrive.expect_tx.shared.b64 %d9, [%r20], {inner * 16};",
        "mov.b64 %d20, p2;",
        "cvta.param.u64 %d21, %d20;",
        "mov.u32 %r30, 4;",
        "mov.u32 %r31, 3;",
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
            "[%r0], [%d21, {%r30, %r31}], [%r20];"
        ),
        "COPIED:",
        WAIT.format(n=1, parity=0),
        "shl.b32 %r5, %r1, 2;",
        "add.s32 %r6, %r0, %r5;",
        f"setp.ge.u32 %p3, %r1, {inner * 4};",
        "@%p3 bra END;",
        "ld.shared.b32 %r7, [%r6];",
        "cvt.u64.u32 %d5, %r5;",
        "add.s64 %d7, %d1, %d5;",
        "st.global.b32 [%d7], %r7;",
        "END:",
    )
    text = kernel(body, shared=2048).replace(".param .b64 p1)", ".param .b64 p1, .param .align 64 .b8 p2[128])")
    text = text.replace(".align 16 .b8 s", ".align 1024 .b8 s")
    arrays = {"x": ("in", tensor), "y": ("out", np.zeros(4 * N, np.int32))}
    launched = launch(("x", "y", "x"), 1, 128)
    result, out = execute(module(text), [launched], arrays, maps={(0, 2): described})
    assert not result.findings and result.whole, (result.findings, result.skipped)
    box = np.zeros((4, inner), np.int32)
    part = tensor.reshape(5, 40)[3:5, 4 : 4 + inner]
    box[: part.shape[0], : part.shape[1]] = part
    want = np.zeros(inner * 4, np.int32)
    for row in range(4):
        for byte in range(0, inner * 4, 4):
            at = row * inner * 4 + byte
            if swizzle:  # 16-byte pieces exchange places: bits 4.. are xored with bits 7..
                at ^= (at >> 7 & (swizzle // 16 - 1)) << 4
            want[at // 4] = box[row, byte // 4]
    assert (out["y"][: inner * 4] == want).all()
