"""y = x + 1 reversed: threads write it to work, and a bulk copy brings it from there into shared memory."""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int64
from cutlass.cute.nvgpu import cpasync


@cute.kernel
def kernel(x: cute.Tensor, work: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    shared = cutlass.memory.SmemAllocator()
    buffer = shared.allocate_tensor(Float32, cute.make_layout(64), byte_alignment=128)
    bar = shared.allocate_array(Int64, 1)
    work[t] = x[t] + 1
    cute.arch.fence_proxy("async.global")
    if t == 0:
        cute.arch.mbarrier_init(bar, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if t == 0:
        cute.arch.mbarrier_arrive_and_expect_tx(bar, 256)
        source, target = cpasync.group_bulk_copy_modes(work, buffer)
        cute.copy(cute.make_copy_atom(cpasync.CopyBulkG2SOp(), Float32), source, target, mbar_ptr=bar)
    cute.arch.mbarrier_wait(bar, 0)
    y[t] = buffer[63 - t]


@cute.jit
def host(x: cute.Tensor, work: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
    kernel(x, work, y).launch(grid=[1, 1, 1], block=[64, 1, 1], stream=stream)


def build(dims, tokens, arch):
    return host
