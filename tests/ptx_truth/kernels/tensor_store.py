"""y = x through a swizzled shared tile, stored by one tensor copy for each of two boxes of 64 x 64."""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16
from cutlass.cute.nvgpu import cpasync


@cute.kernel
def kernel(atom: cute.CopyAtom, g: cute.Tensor, x: cute.Tensor, layout: cute.ComposedLayout):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    shared = cutlass.memory.SmemAllocator()
    tile = shared.allocate_tensor(BFloat16, layout.outer, byte_alignment=1024, swizzle=layout.inner)
    for i in cutlass.range(64):
        tile[i, t] = x[b * 64 + i, t]
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.sync_threads()  # the tile is there
    box = cute.group_modes(cute.local_tile(g, (64, 64), (b, 0)), 0, 2)
    source, to = cpasync.tma_partition(atom, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), box)
    if t < 32:
        cute.copy(atom, source, to)
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0)


@cute.jit
def host(x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
    layout = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((64, 64), stride=(64, 1)))
    atom, g = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), y, layout, (64, 64))
    kernel(atom, g, x, layout).launch(grid=[2, 1, 1], block=[64, 1, 1], stream=stream)


def build(dims, tokens, arch):
    return host
