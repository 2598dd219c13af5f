"""Warps that hand work to each other in the interpreter: rings of stages, named barriers, barriers of the grid."""

import numpy as np
import pytest
from support.ptx import execute, kernel, kinds, launch, module

ROUNDS, STAGES, BYTES = 7, 2, 512
X = np.arange(ROUNDS * BYTES // 4, dtype=np.int32)

# warp 0 copies row after row into a ring of two stages, warp 1 adds 1 and writes them out.
# full barriers at 1024 + 8 stage (1 arrival and the bytes), empty barriers at 1040 + 8 stage (32 arrivals)
RING = f"""
setp.ne.u32 %p0, %r1, 0;
add.s32 %r20, %r0, 1024;
@%p0 bra READY;
mbarrier.init.shared.b64 [%r20], 1;
mbarrier.init.shared.b64 [%r20+8], 1;
mbarrier.init.shared.b64 [%r20+16], 32;
mbarrier.init.shared.b64 [%r20+24], 32;
fence.mbarrier_init.release.cluster;
READY: bar.sync 0;
mov.u32 %r10, 0;
mov.u32 %r11, 0;
mov.u32 %r12, 0;
setp.gt.u32 %p1, %r1, 31;
@%p1 bra CONSUME;
@%p0 bra END;
PRODUCE: shl.b32 %r13, %r11, 3;
add.s32 %r14, %r20, %r13;
xor.b32 %r15, %r12, 1;
{{empty}}
mbarrier.arrive.expect_tx.shared.b64 %d9, [%r14], {BYTES};
mul.wide.u32 %d5, %r10, {BYTES};
add.s64 %d6, %d0, %d5;
mad.lo.u32 %r16, %r11, {BYTES}, %r0;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r16], [%d6], {BYTES}, [%r14];
add.u32 %r11, %r11, 1;
setp.eq.u32 %p3, %r11, {STAGES};
@%p3 mov.u32 %r11, 0;
@%p3 xor.b32 %r12, %r12, 1;
add.u32 %r10, %r10, 1;
setp.lt.u32 %p4, %r10, {ROUNDS};
@%p4 bra PRODUCE;
bra END;
CONSUME: shl.b32 %r13, %r11, 3;
add.s32 %r14, %r20, %r13;
FULL: mbarrier.try_wait.parity.shared.b64 %p2, [%r14], %r12;
@!%p2 bra FULL;
and.b32 %r17, %r1, 31;
shl.b32 %r17, %r17, 4;
mad.lo.u32 %r16, %r11, {BYTES}, %r0;
add.s32 %r16, %r16, %r17;
ld.shared.v4.b32 {{{{%r30,%r31,%r32,%r33}}}}, [%r16];
{{release}}
add.u32 %r30, %r30, 1;
mul.wide.u32 %d5, %r10, {BYTES};
cvt.u64.u32 %d8, %r17;
add.s64 %d5, %d5, %d8;
add.s64 %d7, %d1, %d5;
st.global.v4.b32 [%d7], {{{{%r30,%r31,%r32,%r33}}}};
add.u32 %r11, %r11, 1;
setp.eq.u32 %p3, %r11, {STAGES};
@%p3 mov.u32 %r11, 0;
{{flip}}
add.u32 %r10, %r10, 1;
setp.lt.u32 %p4, %r10, {ROUNDS};
@%p4 bra CONSUME;
END:
"""
EMPTY = "EMPTY: mbarrier.try_wait.parity.shared.b64 %p2, [%r14+16], %r15;\n@!%p2 bra EMPTY;"
RELEASE = "mbarrier.arrive.shared.b64 _, [%r14+16];"
FLIP = "@%p3 xor.b32 %r12, %r12, 1;"


def ring(seed: int, empty: str = EMPTY, release: str = RELEASE, flip: str = FLIP, grid: int = 1):
    text = module(kernel(RING.format(empty=empty, release=release, flip=flip), shared=1056))
    arrays = {"x": ("in", X), "y": ("out", np.zeros_like(X))}
    return execute(text, [launch(("x", "y"), grid, 64)], arrays, seed)


@pytest.mark.parametrize("seed", range(6))
def test_a_ring_of_stages_hands_every_row_on(seed: int) -> None:
    result, out = ring(seed)
    assert result.whole and not result.findings, [str(f) for f in result.findings]
    assert (out["y"] == X + (np.arange(len(X)) % 4 == 0)).all()


@pytest.mark.parametrize("seed", range(6))
def test_a_producer_that_does_not_wait_for_empty_stages_overwrites_them(seed: int) -> None:
    result, _ = ring(seed, empty="")
    assert kinds(result) & {"race", "async-not-waited"}


@pytest.mark.parametrize("seed", range(4))
def test_stages_that_are_never_given_back_stop_the_producer(seed: int) -> None:
    result, _ = ring(seed, release="")
    assert "deadlock" in kinds(result)


@pytest.mark.parametrize("seed", range(4))
def test_a_consumer_that_never_flips_its_phase_is_found(seed: int) -> None:
    result, _ = ring(seed, flip="")
    assert kinds(result) & {"async-not-waited", "deadlock", "race"}


# warp 0 produces with bar.arrive, warp 1 consumes with bar.sync, twice over two barriers
NAMED = """
shl.b32 %r4, %r1, 2;
and.b32 %r4, %r4, 127;
add.s32 %r5, %r0, %r4;
setp.gt.u32 %p1, %r1, 31;
@%p1 bra TAKE;
st.shared.b32 [%r5], %r1;
bar.arrive 1, {threads};
bar.sync 2, 64;
add.u32 %r6, %r1, 100;
st.shared.b32 [%r5], %r6;
bar.arrive 1, 64;
bra END;
TAKE: bar.sync 1, 64;
ld.shared.b32 %r7, [%r5];
{back}
bar.sync 1, 64;
ld.shared.b32 %r8, [%r5];
cvt.u64.u32 %d5, %r4;
add.s64 %d7, %d1, %d5;
st.global.b32 [%d7], %r7;
st.global.b32 [%d7+128], %r8;
END:
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_named_barrier_orders_those_who_arrive_and_those_who_wait(seed: int) -> None:
    arrays = {"x": ("in", X), "y": ("out", np.zeros(64, np.int32))}
    good = module(kernel(NAMED.format(threads=64, back="bar.arrive 2, 64;"), shared=128))
    result, out = execute(good, [launch(("x", "y"), 1, 64)], arrays, seed)
    assert not result.findings, [str(f) for f in result.findings]
    assert out["y"].tolist() == [*range(32), *range(100, 132)]
    wrong = module(kernel(NAMED.format(threads=96, back="bar.arrive 2, 64;"), shared=128))
    assert "barrier-participation" in kinds(execute(wrong, [launch(("x", "y"), 1, 64)], arrays, seed)[0])


# every CTA adds its number to a partial sum, meets the others at a counter, and reads all of them, twice
GRID = """
mov.u32 %r10, 0;
ROUND: mul.wide.u32 %d5, %r2, 4;
add.s64 %d6, %d1, %d5;
add.u32 %r11, %r2, %r10;
setp.ne.u32 %p0, %r1, 0;
@%p0 bra MEET;
st.global.b32 [%d6+64], %r11;
MEET: bar.sync 0;
@%p0 bra MET;
mov.u32 %r12, %nctaid.x;
mad.lo.u32 %r13, %r10, %r12, %r12;
{arrive}
SPIN: ld.acquire.gpu.global.b32 %r14, [%d1];
setp.lt.u32 %p1, %r14, %r13;
@%p1 bra SPIN;
MET: bar.sync 0;
mov.u32 %r15, 0;
mov.u32 %r16, 0;
mov.u64 %d8, %d1;
SUM: ld.global.b32 %r17, [%d8+64];
add.u32 %r15, %r15, %r17;
add.s64 %d8, %d8, 4;
add.u32 %r16, %r16, 1;
setp.lt.u32 %p2, %r16, %nctaid.x;
@%p2 bra SUM;
{between}
add.u32 %r10, %r10, 1;
setp.lt.u32 %p3, %r10, 2;
@%p3 bra ROUND;
shl.b32 %r18, %r2, 7;
mad.lo.u32 %r18, %r1, 4, %r18;
cvt.u64.u32 %d5, %r18;
add.s64 %d6, %d0, %d5;
st.global.b32 [%d6], %r15;
"""
ARRIVE = "red.release.gpu.global.add.u32 [%d1], 1;"
# the second round overwrites what others may still read, unless they have met once more (counter at [16])
AGAIN = """bar.sync 0;
@%p0 bra GO;
red.release.gpu.global.add.u32 [%d1+16], 1;
SPIN2: ld.acquire.gpu.global.b32 %r14, [%d1+16];
setp.lt.u32 %p1, %r14, %r13;
@%p1 bra SPIN2;
GO: bar.sync 0;"""


def grid_sum(ctas: int, seed: int, arrive: str = ARRIVE, between: str = AGAIN):
    text = module(kernel(GRID.format(arrive=arrive, between=between)))
    arrays = {"y": ("out", np.zeros(ctas * 32, np.int32)), "w": ("workspace", np.zeros(32, np.int32))}
    return execute(text, [launch(("y", "w"), ctas, 32)], arrays, seed)


@pytest.mark.parametrize("seed", range(4))
def test_a_barrier_of_the_grid_orders_all_of_its_blocks(seed: int) -> None:
    result, out = grid_sum(6, seed)
    assert result.whole and not result.findings, [str(f) for f in result.findings]
    assert (out["y"] == sum(range(6)) + 6).all()


@pytest.mark.parametrize("seed", range(4))
def test_a_grid_that_does_not_meet_before_it_writes_again_races(seed: int) -> None:
    assert "race" in kinds(grid_sum(6, seed, between="")[0])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("before", "arrive", "racy"),
    [
        ("", "fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%d1], 1;", False),
        ("fence.acq_rel.gpu;", "red.relaxed.gpu.global.add.u32 [%d1], 1;", False),  # by every thread, then the barrier
        ("membar.gl;", "atom.global.add.u32 %r19, [%d1], 1;", False),
        ("fence.acq_rel.cta;", "red.relaxed.gpu.global.add.u32 [%d1], 1;", True),
    ],
)
def test_a_fence_on_either_side_of_the_barrier_releases(before: str, arrive: str, racy: bool, seed: int) -> None:
    text = GRID.replace("MEET: bar.sync 0;", f"MEET: {before}\nbar.sync 0;").format(arrive=arrive, between=AGAIN)
    arrays = {"y": ("out", np.zeros(6 * 32, np.int32)), "w": ("workspace", np.zeros(32, np.int32))}
    result, _ = execute(module(kernel(text)), [launch(("y", "w"), 6, 32)], arrays, seed)
    assert kinds(result) == ({"race"} if racy else set()), [str(f) for f in result.findings]


LAST = """
setp.ne.u32 %p0, %r1, 0;
@%p0 bra MEET;
mul.wide.u32 %d5, %r2, 4;
add.s64 %d6, %d1, %d5;
st.global.b32 [%d6+64], %r2;
atom.{sem}.gpu.global.add.u32 %r5, [%d1], 1;
setp.ne.u32 %p1, %r5, 5;
@%p1 bra WAIT;
st.release.gpu.global.b32 [%d1+4], 1;
bra MEET;
WAIT: ld.acquire.gpu.global.b32 %r6, [%d1+4];
setp.eq.u32 %p2, %r6, 0;
@%p2 bra WAIT;
MEET: bar.sync 0;
xor.b32 %r7, %r2, 1;
mul.wide.u32 %d5, %r7, 4;
add.s64 %d6, %d1, %d5;
ld.global.b32 %r8, [%d6+64];
shl.b32 %r9, %r2, 2;
cvt.u64.u32 %d7, %r9;
add.s64 %d8, %d0, %d7;
st.global.b32 [%d8], %r8;
"""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("sem", "racy"), [("acq_rel", False), ("release", True), ("acquire", True)])
def test_the_last_block_passes_on_what_all_released_to_it(sem: str, racy: bool, seed: int) -> None:
    """All arrive at one counter; the last one opens a gate for the others."""
    arrays = {"y": ("out", np.zeros(6, np.int32)), "w": ("workspace", np.zeros(32, np.int32))}
    result, out = execute(module(kernel(LAST.format(sem=sem))), [launch(("y", "w"), 6, 32)], arrays, seed)
    assert kinds(result) == ({"race"} if racy else set()), [str(f) for f in result.findings]
    assert out["y"].tolist() == [1, 0, 3, 2, 5, 4]


@pytest.mark.parametrize("seed", range(2))
def test_a_grid_barrier_without_release_orders_nothing(seed: int) -> None:
    assert "race" in kinds(grid_sum(6, seed, arrive="red.relaxed.gpu.global.add.u32 [%d1], 1;")[0])


def test_a_grid_that_is_not_resident_as_a_whole_cannot_meet() -> None:
    """One block an SM because of its shared memory, and one block more than there are SMs."""
    text = module(kernel(GRID.format(arrive=ARRIVE, between=AGAIN)))
    arrays = {"y": ("out", np.zeros(133 * 32, np.int32)), "w": ("workspace", np.zeros(160, np.int32))}
    fits, _ = execute(text, [launch(("y", "w"), 132, 32, shared=200_000)], arrays)
    assert fits.whole and not fits.findings
    stuck, _ = execute(text, [launch(("y", "w"), 133, 32, shared=200_000)], arrays)
    assert "deadlock" in kinds(stuck)
