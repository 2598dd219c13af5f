"""y[b] = sum of all x: partial sums in work, then a barrier of the grid on a counter that only grows."""

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Int32


@cute.kernel
def kernel(x: cute.Tensor, work: cute.Tensor, count: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    at = count.iterator.llvm_ptr
    total = cute.arch.warp_redux_sync(x[b, t], "add")
    if t == 0:
        work[b] = total
        ticket = cute.arch.atomic_add(at, Int32(1), sem="release", scope="gpu")
        goal = (ticket // 4 + 1) * 4
        seen = Int32(0)
        while seen < goal:
            seen = cute.arch.load(at, Int32, sem="acquire", scope="gpu")
        y[b] = work[0] + work[1] + work[2] + work[3]


@cute.jit
def host(x: cute.Tensor, work: cute.Tensor, count: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
    kernel(x, work, count, y).launch(grid=[4, 1, 1], block=[32, 1, 1], stream=stream)


def build(dims, tokens, arch):
    return host
