"""y[b] = row table[b] of cache, or 0 where the table says -1."""

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Float32


@cute.kernel
def kernel(table: cute.Tensor, cache: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    page = table[b]
    v = Float32(0.0)
    if page >= 0:
        v = cache[page, t]
    y[b, t] = v


@cute.jit
def host(table: cute.Tensor, cache: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
    kernel(table, cache, y).launch(grid=[4, 1, 1], block=[32, 1, 1], stream=stream)


def build(dims, tokens, arch):
    return host
