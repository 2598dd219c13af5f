"""y = 2 (x + 1) by two launches with programmatic dependent launch; the next call follows just as closely."""

import cuda.bindings.driver as cuda
import cutlass.cute as cute


@cute.kernel
def first(x: cute.Tensor, mid: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    v = x[t] + 1
    cute.arch.griddepcontrol_wait()  # the call before may still read mid
    mid[t] = v
    cute.arch.griddepcontrol_launch_dependents()


@cute.kernel
def second(mid: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    cute.arch.griddepcontrol_wait()  # mid is complete
    y[t] = mid[t] * 2
    cute.arch.griddepcontrol_launch_dependents()


@cute.jit
def host(x: cute.Tensor, mid: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
    first(x, mid).launch(grid=[1, 1, 1], block=[64, 1, 1], use_pdl=True, stream=stream)
    second(mid, y).launch(grid=[1, 1, 1], block=[64, 1, 1], use_pdl=True, stream=stream)


def build(dims, tokens, arch):
    return host
