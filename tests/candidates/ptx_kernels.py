"""Small kernels for the PTX interpreter's tests, each right and with one fault; compiled for sm_90a as a program.

python ptx_kernels.py FOLDER     # writes FOLDER/<kernel>.<fault or "right">.ptx
"""

import sys
from pathlib import Path

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

THREADS = 128


class Kernel:
    """`fault`: "" for the right kernel. `shapes`: of the tensors, in order. `grid`, `cluster`: CTAs."""

    shapes: tuple = ()
    faults: tuple = ()
    grid, cluster, threads = 1, 1, THREADS

    def __init__(self, fault: str):
        self.fault = fault

    def start(self, *tensors, stream):
        self.kernel(*tensors).launch(
            grid=[self.grid, 1, 1], block=[self.threads, 1, 1], cluster=[self.cluster, 1, 1], stream=stream
        )


class RowSum(Kernel):
    """y[b] = sum of x[b]: shuffles, then one value of each warp through shared memory."""

    shapes = ((Float32, 4, THREADS), (Float32, 4))
    faults = ("no_barrier", "off_by_one", "uninitialised", "shuffle_in_branch")
    grid = 4

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
        self.start(x, y, stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        b, _, _ = cute.arch.block_idx()
        sm = cutlass.memory.SmemAllocator()
        part = sm.allocate_tensor(Float32, cute.make_layout(8), byte_alignment=16)
        at = t + b * THREADS
        if cutlass.const_expr(self.fault == "off_by_one"):
            at = at + 1
        flat = cute.make_tensor(x.iterator, cute.make_layout(4 * THREADS))
        total = cute.arch.warp_reduction_sum(flat[at])
        own = cute.arch.warp_idx()
        if cute.arch.lane_idx() == 0:
            if cutlass.const_expr(self.fault == "shuffle_in_branch"):
                own = cute.arch.warp_idx()  # a shuffle of all lanes
            part[own] = total
        if cutlass.const_expr(self.fault != "no_barrier"):
            cute.arch.sync_threads()
        if t == 0:
            v = Float32(0.0)
            for i in cutlass.range_constexpr(5 if self.fault == "uninitialised" else 4):
                v += part[i]
            y[b] = v


class Pipeline(Kernel):
    """y = x row by row through a ring of two cp.async stages; every thread reads what its neighbour copied."""

    shapes = ((Float32, 8, 4 * THREADS), (Float32, 8, 4 * THREADS))
    faults = ("no_wait", "stale_buffer", "no_barrier")

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
        self.start(x, y, stream=stream)

    @cute.jit
    def load(self, x: cute.Tensor, ring: cute.Tensor, row, stage, t):
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(), Float32, num_bits_per_copy=128)
        cute.copy(atom, cute.local_tile(x[row, None], (4,), (t,)), cute.local_tile(ring[stage, None], (4,), (t,)))

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        sm = cutlass.memory.SmemAllocator()
        ring = sm.allocate_tensor(
            Float32, cute.make_layout((2, 4 * THREADS), stride=(4 * THREADS, 1)), byte_alignment=16
        )
        other = t ^ 33
        self.load(x, ring, 0, 0, t)
        cute.arch.cp_async_commit_group()
        for row in cutlass.range_constexpr(8):
            if cutlass.const_expr(row < 7):
                self.load(x, ring, row + 1, (row + 1) % 2, t)
            cute.arch.cp_async_commit_group()
            cute.arch.cp_async_wait_group(2 if self.fault == "no_wait" else 1)
            if cutlass.const_expr(self.fault != "no_barrier"):
                cute.arch.sync_threads()
            cute.autovec_copy(
                cute.local_tile(ring[row % 2, None], (4,), (other,)), cute.local_tile(y[row, None], (4,), (other,))
            )
            if cutlass.const_expr(self.fault != "stale_buffer"):
                cute.arch.sync_threads()


class Box(Kernel):
    """y = x by one swizzled tensor copy for each 64 x 64 box."""

    shapes = ((BFloat16, 128, 64), (BFloat16, 128, 64))
    faults = ("no_wait", "wrong_phase", "short_bytes")
    grid = 2

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
        layout = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((64, 64), stride=(64, 1)))
        atom, g = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout, (64, 64))
        self.start(atom, g, y, layout, stream=stream)

    @cute.kernel
    def kernel(self, atom: cute.CopyAtom, g: cute.Tensor, y: cute.Tensor, layout: cute.ComposedLayout):
        t, _, _ = cute.arch.thread_idx()
        b, _, _ = cute.arch.block_idx()
        sm = cutlass.memory.SmemAllocator()
        tile = sm.allocate_tensor(BFloat16, layout.outer, byte_alignment=1024, swizzle=layout.inner)
        bar = sm.allocate_array(Int64, 1)
        if t == 0:
            cute.arch.mbarrier_init(bar, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        box = cute.group_modes(cute.local_tile(g, (64, 64), (b, 0)), 0, 2)
        ts, tg = cpasync.tma_partition(atom, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), box)
        if cute.arch.warp_idx() == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(bar, 64 * 64 * 2 + (16 if self.fault == "short_bytes" else 0))
            cute.copy(atom, tg, ts, tma_bar_ptr=bar)
        if cutlass.const_expr(self.fault != "no_wait"):
            cute.arch.mbarrier_wait(bar, 1 if self.fault == "wrong_phase" else 0)
        for i in cutlass.range(32):
            e = i * THREADS + t
            y[b * 64 + e // 64, e % 64] = tile[e // 64, e % 64]


class Warpgroup(Kernel):
    """y = a b^T of 64 x 64 x 64, operands by tensor copies, wgmma."""

    shapes = ((BFloat16, 64, 64), (BFloat16, 64, 64), (Float32, 64, 64))
    faults = ("no_wait",)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
        k = OperandMajorMode.K
        mma = hopper_helpers.make_trivial_tiled_mma(BFloat16, BFloat16, k, k, Float32, (1, 1, 1), (64, 64))
        la = hopper_helpers.make_smem_layout_a(LayoutEnum.ROW_MAJOR, (64, 64, 64), BFloat16, 1)
        lb = hopper_helpers.make_smem_layout_b(LayoutEnum.ROW_MAJOR, (64, 64, 64), BFloat16, 1)
        op = cpasync.CopyBulkTensorTileG2SOp()
        ta, ga = cpasync.make_tiled_tma_atom(op, a, cute.slice_(la, (None, None, 0)), (64, 64))
        tb, gb = cpasync.make_tiled_tma_atom(op, b, cute.slice_(lb, (None, None, 0)), (64, 64))
        self.start(mma, ta, ga, tb, gb, y, la, lb, stream=stream)

    @cute.kernel
    def kernel(
        self, mma: cute.TiledMma, ta: cute.CopyAtom, ga: cute.Tensor, tb: cute.CopyAtom, gb: cute.Tensor,
        y: cute.Tensor, la: cute.ComposedLayout, lb: cute.ComposedLayout,
    ):  # fmt: skip
        t, _, _ = cute.arch.thread_idx()
        sm = cutlass.memory.SmemAllocator()
        sa = sm.allocate_tensor(BFloat16, la.outer, byte_alignment=1024, swizzle=la.inner)
        sb = sm.allocate_tensor(BFloat16, lb.outer, byte_alignment=1024, swizzle=lb.inner)
        bar = sm.allocate_array(Int64, 1)
        if t == 0:
            cute.arch.mbarrier_init(bar, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        one = cute.make_layout(1)
        to_a, from_a = cpasync.tma_partition(ta, 0, one, cute.group_modes(sa, 0, 2), cute.group_modes(ga, 0, 2))
        to_b, from_b = cpasync.tma_partition(tb, 0, one, cute.group_modes(sb, 0, 2), cute.group_modes(gb, 0, 2))
        if cute.arch.warp_idx() == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(bar, 2 * 64 * 64 * 2)
            cute.copy(ta, from_a, to_a[None, 0], tma_bar_ptr=bar)
            cute.copy(tb, from_b, to_b[None, 0], tma_bar_ptr=bar)
        cute.arch.mbarrier_wait(bar, 0)
        mine = mma.get_slice(t)
        ra = mma.make_fragment_A(mine.partition_A(sa))
        rb = mma.make_fragment_B(mine.partition_B(sb))
        out = mine.partition_C(y)
        acc = cute.make_rmem_tensor(out.shape, Float32)
        mma.set(warpgroup.Field.ACCUMULATE, False)
        warpgroup.fence()
        for k in cutlass.range_constexpr(4):
            cute.gemm(mma, acc, ra[None, None, k, 0], rb[None, None, k, 0], acc)
            mma.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()
        if cutlass.const_expr(self.fault != "no_wait"):
            warpgroup.wait_group(0)
        for i in cutlass.range_constexpr(cute.size(acc)):
            out[i] = acc[i]


class WarpMma(Kernel):
    """y = a b^T of 16 x 8 x 16 by ldmatrix and mma.sync."""

    shapes = ((BFloat16, 16, 16), (BFloat16, 8, 16), (Float32, 16, 8))
    faults = ("no_barrier",)
    threads = 64

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
        self.start(a, b, y, stream=stream)

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, y: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        sm = cutlass.memory.SmemAllocator()
        sa = sm.allocate_tensor(BFloat16, cute.make_layout((16, 16), stride=(16, 1)), byte_alignment=16)
        if t >= 32:
            for i in cutlass.range_constexpr(8):
                e = (t - 32) * 8 + i
                sa[e // 16, e % 16] = a[e // 16, e % 16]
        if cutlass.const_expr(self.fault != "no_barrier"):
            cute.arch.sync_threads()
        if t < 32:
            mma = cute.make_tiled_mma(warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
            copy = cute.make_tiled_copy_A(cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), BFloat16), mma)
            lane, mine = copy.get_slice(t), mma.get_slice(t)
            fa = mma.make_fragment_A(mine.partition_A(sa))
            cute.copy(copy, lane.partition_S(sa), lane.retile(fa))
            gb, gy = mine.partition_B(b), mine.partition_C(y)
            fb, acc = mma.make_fragment_B(gb), mma.make_fragment_C(gy)
            cute.autovec_copy(gb, fb)
            acc.fill(0.0)
            cute.gemm(mma, acc, fa, fb, acc)
            cute.autovec_copy(acc, gy)


class Peers(Kernel):
    """y[b] = x of the CTA before it in the cluster, stored into its shared memory from there."""

    shapes = ((Int32, 4, 32), (Int32, 4, 32))
    faults = ("no_wait",)
    grid, cluster, threads = 4, 4, 32

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
        self.start(x, y, stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        b, _, _ = cute.arch.block_idx()
        sm = cutlass.memory.SmemAllocator()
        got = sm.allocate_tensor(Int32, cute.make_layout(32), byte_alignment=16)
        bar = sm.allocate_array(Int64, 1)
        if t == 0:
            cute.arch.mbarrier_init(bar, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        if t == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(bar, 128)
        peer = (cute.arch.block_idx_in_cluster() + 1) % 4
        cute.arch.store_async_dsmem(got.iterator + t, x[b, t], bar, peer)
        if cutlass.const_expr(self.fault != "no_wait"):
            cute.arch.mbarrier_wait(bar, 0)
        y[b, t] = got[t]


class GridSum(Kernel):
    """y[b] = sum of all x: partial sums in `work`, a counter in `count` that all CTAs spin on."""

    shapes = ((Float32, 4, THREADS), (Float32, 4), (Int32, 1), (Float32, 4))
    faults = ("relaxed", "one_too_many", "plain_counter")
    grid = 4

    @cute.jit
    def __call__(self, x: cute.Tensor, work: cute.Tensor, count: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
        self.start(x, work, count, y, stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, work: cute.Tensor, count: cute.Tensor, y: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        b, _, _ = cute.arch.block_idx()
        if t < 32:
            v = Float32(0.0)
            for i in cutlass.range_constexpr(THREADS // 32):
                v += x[b, t + 32 * i]
            v = cute.arch.warp_reduction_sum(v)
            if t == 0:
                work[b] = v
                sem = "relaxed" if self.fault == "relaxed" else "release"
                at = count.iterator.llvm_ptr
                if cutlass.const_expr(self.fault == "plain_counter"):
                    count[0] = count[0] + 1
                else:
                    cute.arch.atomic_add(at, Int32(1), sem=sem, scope="gpu")
                seen = Int32(0)
                while seen < (5 if self.fault == "one_too_many" else 4):
                    seen = cute.arch.load(at, Int32, sem="acquire", scope="gpu")
                total = Float32(0.0)
                for i in cutlass.range_constexpr(4):
                    total += work[i]
                y[b] = total


KERNELS = (RowSum, Pipeline, Box, Warpgroup, WarpMma, Peers, GridSum)


def fake(kind, shape):
    return make_fake_compact_tensor(kind, shape, stride_order=tuple(reversed(range(len(shape)))), assumed_align=16)


def main(folder: Path) -> None:
    for made in KERNELS:
        for fault in ("", *made.faults):
            options = f"--keep-ptx --dump-dir {folder}"
            tensors = [fake(kind, tuple(shape)) for kind, *shape in made.shapes]
            compiled = cute.compile(made(fault), *tensors, make_fake_stream(), options=options)
            (folder / f"{made.__name__}.{fault or 'right'}.ptx").write_text(compiled.artifacts.PTX)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
