"""s moves one place down, in place: all 63 values are read before the first is written."""

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Float32


@cute.kernel
def kernel(s: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    v = Float32(0.0)
    if t < 63:
        v = s[t + 1]
    cute.arch.sync_threads()
    if t < 63:
        s[t] = v


@cute.jit
def host(s: cute.Tensor, stream: cuda.CUstream):
    kernel(s).launch(grid=[1, 1, 1], block=[64, 1, 1], stream=stream)


def build(dims, tokens, arch):
    return host
