"""Copies m to y: the smallest moe_shared candidate that builds. Tests replace parts of it to break it."""

import cuda.bindings.driver as cuda
import cutlass  # noqa: F401  the broken variants use these names
import cutlass.cute as cute
from cutlass import BFloat16, Float32  # noqa: F401


@cute.kernel
def kernel(m: cute.Tensor, w: cute.Tensor, d: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    y[b, t] = m[b, t]


@cute.jit
def host(m: cute.Tensor, w: cute.Tensor, d: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
    kernel(m, w, d, y).launch(grid=[m.shape[0], 1, 1], block=[128, 1, 1], stream=stream)


def build(dims, tokens, arch):
    return host
