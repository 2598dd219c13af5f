"""y = x + 1, worked out by CTA 0 into work and written by CTA 1, which spins on a flag."""

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Int32


@cute.kernel
def kernel(x: cute.Tensor, work: cute.Tensor, flag: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    at = flag.iterator.llvm_ptr
    if b == 0:
        work[t] = x[t] + 1
        cute.arch.sync_threads()  # all of work is there
        if t == 0:
            cute.arch.store(at, Int32(1), sem="release", scope="gpu")
    else:
        if t == 0:
            seen = Int32(0)
            while seen == 0:
                seen = cute.arch.load(at, Int32, sem="acquire", scope="gpu")
        cute.arch.sync_threads()  # thread 0 has seen the flag
        y[t] = work[t]


@cute.jit
def host(x: cute.Tensor, work: cute.Tensor, flag: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
    kernel(x, work, flag, y).launch(grid=[2, 1, 1], block=[64, 1, 1], stream=stream)


def build(dims, tokens, arch):
    return host
