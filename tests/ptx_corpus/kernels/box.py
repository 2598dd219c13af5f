"""y = x by one swizzled tensor copy for each of two boxes of 64 x 64."""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Int64
from cutlass.cute.nvgpu import cpasync


@cute.kernel
def kernel(atom: cute.CopyAtom, g: cute.Tensor, y: cute.Tensor, layout: cute.ComposedLayout):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    shared = cutlass.memory.SmemAllocator()
    tile = shared.allocate_tensor(BFloat16, layout.outer, byte_alignment=1024, swizzle=layout.inner)
    bar = shared.allocate_array(Int64, 1)
    if t == 0:
        cute.arch.mbarrier_init(bar, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    box = cute.group_modes(cute.local_tile(g, (64, 64), (b, 0)), 0, 2)
    to, source = cpasync.tma_partition(atom, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), box)
    if t < 32:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(bar, 8192)
        cute.copy(atom, source, to, tma_bar_ptr=bar)
    cute.arch.mbarrier_wait(bar, 0)
    for i in cutlass.range(64):
        y[b * 64 + i, t] = tile[i, t]


@cute.jit
def host(x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
    layout = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((64, 64), stride=(64, 1)))
    atom, g = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout, (64, 64))
    kernel(atom, g, y, layout).launch(grid=[2, 1, 1], block=[64, 1, 1], stream=stream)


def build(dims, tokens, arch):
    return host
