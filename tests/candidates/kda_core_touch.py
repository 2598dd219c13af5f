"""Takes every argument of kda_core, for any q: the states of a request's slots are halved; numbers mean nothing else.

The second kernel has a block for every state slot there is, a number that only the call knows.
"""

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32

THREADS = 128


@cute.kernel
def halve(
    p: cute.Tensor, w: cute.Tensor, f_b: cute.Tensor, a_log: cute.Tensor, bias: cute.Tensor, norm: cute.Tensor,
    slots: cute.Tensor, conv: cute.Tensor, s: cute.Tensor, y: cute.Tensor, low: Float32, scale: Float32,
    eps_qk: Float32, eps: Float32,
):  # fmt: skip
    t, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    slot = slots[row]
    if slot > 0:
        s[slot, 0, t, 0] = s[slot, 0, t, 0] * 0.5
        conv[slot, t, 0] = p[row, t]
    small = w[t, 0] + f_b[t, 0].to(Float32) + a_log[0] + bias[t] + norm[t].to(Float32)
    y[row, t] = (small + low + scale + eps_qk + eps).to(BFloat16)


@cute.kernel
def look(s: cute.Tensor, y: cute.Tensor):
    slot, _, _ = cute.arch.block_idx()
    if s[slot, 0, 0, 0] > 1e30:
        y[0, 0] = BFloat16(0.0)


@cute.jit
def launch(p, w, f_b, a_log, bias, norm, slots, conv, s, y, low, scale, eps_qk, eps, stream):
    rows = cute.make_tensor(slots.iterator, cute.make_layout(cute.size(slots)))  # [requests, q] as one row
    halve(p, w, f_b, a_log, bias, norm, rows, conv, s, y, low, scale, eps_qk, eps).launch(
        grid=[p.shape[0], 1, 1], block=[THREADS, 1, 1], stream=stream
    )
    look(s, y).launch(grid=[Int32(s.shape[0]), 1, 1], block=[32, 1, 1], stream=stream)


@cute.jit
def decode(
    p: cute.Tensor, w: cute.Tensor, f_b: cute.Tensor, a_log: cute.Tensor, bias: cute.Tensor, norm: cute.Tensor,
    slots: cute.Tensor, conv: cute.Tensor, s: cute.Tensor, y: cute.Tensor, low: Float32, scale: Float32,
    eps_qk: Float32, eps: Float32, stream: cuda.CUstream,
):  # fmt: skip
    launch(p, w, f_b, a_log, bias, norm, slots, conv, s, y, low, scale, eps_qk, eps, stream)


@cute.jit
def verify(
    p: cute.Tensor, w: cute.Tensor, f_b: cute.Tensor, a_log: cute.Tensor, bias: cute.Tensor, norm: cute.Tensor,
    slots: cute.Tensor, accepted: cute.Tensor, conv: cute.Tensor, s: cute.Tensor, y: cute.Tensor, low: Float32,
    scale: Float32, eps_qk: Float32, eps: Float32, stream: cuda.CUstream,
):  # fmt: skip
    launch(p, w, f_b, a_log, bias, norm, slots, conv, s, y, low, scale, eps_qk, eps, stream)


def build(dims, tokens, arch):
    return decode if dims["q"] == "1" else verify
