"""y = how many of the 64 numbers of x are above 49, counted by the barrier itself (bar.red)."""

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Int32


@cute.kernel
def kernel(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    code = """
    .reg .pred p;
    setp.gt.s32 p, {$r0}, 49;
    barrier.cta.red.popc.aligned.u32 {$w0}, 0, p;
    """
    found = cute.arch.inline_ptx("{" + code + "}", write_only_types=[Int32], read_only_args=[x[t]])
    y[t] = found


@cute.jit
def host(x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
    kernel(x, y).launch(grid=[1, 1, 1], block=[64, 1, 1], stream=stream)


def build(dims, tokens, arch):
    return host
