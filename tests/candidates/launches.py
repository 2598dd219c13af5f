"""One host function per launch kind: TMA, cluster with scalars, cooperative, PDL. For the launch recorder's tests.

`build` chooses by dims["kind"]. Tensors: a [64, 64] bf16, y [64] bf16; scalars: scale f32, count i32.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync

SIDE = 64


class Tma:
    @cute.kernel
    def kernel(self, atom: cute.CopyAtom, mA: cute.Tensor, layout: cute.Layout, mY: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        smem = cutlass.memory.SmemAllocator()
        barrier = smem.allocate_array(Int64, 1)
        sA = smem.allocate_tensor(BFloat16, layout, byte_alignment=128)
        if thread == 0:
            cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        gA = cute.local_tile(mA, (SIDE, SIDE), (0, 0))
        sA_all, gA_all = cute.group_modes(sA, 0, 2), cute.group_modes(gA, 0, 2)
        to, source = cpasync.tma_partition(atom, 0, cute.make_layout(1), sA_all, gA_all)
        if thread < 32:
            if thread == 0:
                cute.arch.mbarrier_arrive_and_expect_tx(barrier, SIDE * SIDE * 2)
            cute.copy(atom, source, to, tma_bar_ptr=barrier)
        cute.arch.mbarrier_wait(barrier, 0)
        if thread < SIDE:
            mY[thread] = sA[thread, thread]

    @cute.jit
    def __call__(self, a: cute.Tensor, y: cute.Tensor, scale: Float32, count: Int32, stream: cuda.CUstream):
        layout = cute.make_layout((SIDE, SIDE), stride=(SIDE, 1))
        atom, mA = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), a, layout, (SIDE, SIDE))
        self.kernel(atom, mA, layout, y).launch(grid=[1, 1, 1], block=[128, 1, 1], stream=stream)


class Plain:
    """A kernel with scalars, launched with extras."""

    def __init__(self, extras: dict, smem: int = 0, second_row: bool = False):
        self.extras, self.smem, self.second_row = extras, smem, second_row

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mY: cute.Tensor, scale: Float32, count: Int32):
        thread, _, _ = cute.arch.thread_idx()
        if thread < count:
            mY[thread] = (mA[thread].to(Float32) * scale).to(BFloat16)

    @cute.jit
    def __call__(self, a: cute.Tensor, y: cute.Tensor, scale: Float32, count: Int32, stream: cuda.CUstream):
        row = a[1 if self.second_row else 0, None]
        self.kernel(row, y, scale, count).launch(
            grid=[4, 1, 1], block=[SIDE, 1, 1], smem=self.smem, stream=stream, **self.extras
        )


KINDS = {
    "tma": lambda: Tma(),
    "cluster": lambda: Plain({"cluster": [2, 1, 1]}),
    "cooperative": lambda: Plain({"cooperative": True}),
    "pdl": lambda: Plain({"use_pdl": True}),
    "smem": lambda: Plain({}, smem=100_000),
    "offset": lambda: Plain({}, second_row=True),
}


def build(dims, tokens, arch):
    return KINDS[dims["kind"]]()
