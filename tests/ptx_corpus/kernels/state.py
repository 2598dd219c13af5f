"""s = 2 s + x in place, a CTA for each row; two calls."""

import cuda.bindings.driver as cuda
import cutlass.cute as cute


@cute.kernel
def kernel(x: cute.Tensor, s: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    row = b % 2
    s[row, t] = s[row, t] * 2 + x[row, t]


@cute.jit
def host(x: cute.Tensor, s: cute.Tensor, stream: cuda.CUstream):
    kernel(x, s).launch(grid=[2, 1, 1], block=[32, 1, 1], stream=stream)


def build(dims, tokens, arch):
    return host
