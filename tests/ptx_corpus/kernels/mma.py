"""y = a b^T, 16 x 8 x 16 in bf16 by ldmatrix and mma.sync; a and b come as words of two numbers."""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32


@cute.kernel
def kernel(a: cute.Tensor, b: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    room = cutlass.memory.SmemAllocator().allocate_tensor(
        Int32, cute.make_layout((16, 8), stride=(8, 1)), byte_alignment=16
    )
    for i in cutlass.range_constexpr(4):
        room[t // 8 + 4 * i, t % 8] = a[t // 8 + 4 * i, t % 8]
    cute.arch.sync_warp()
    row, words = t % 16, t // 16 * 4
    load = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 { {$w0}, {$w1}, {$w2}, {$w3} }, [{$r0}];"
    at = (room.iterator + row * 8 + words).toint()
    a0, a1, a2, a3 = cute.arch.inline_ptx(load, write_only_types=[Int32] * 4, read_only_args=[at])
    b0, b1 = b[t // 4, t % 4], b[t // 4, t % 4 + 4]
    zero = Float32(0.0)
    multiply = (
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { {$w0}, {$w1}, {$w2}, {$w3} }, "
        "{ {$r0}, {$r1}, {$r2}, {$r3} }, { {$r4}, {$r5} }, { {$r6}, {$r6}, {$r6}, {$r6} };"
    )
    read = [a0, a1, a2, a3, b0, b1, zero]
    c0, c1, c2, c3 = cute.arch.inline_ptx(multiply, write_only_types=[Float32] * 4, read_only_args=read)
    r, c = t // 4, t % 4 * 2
    y[r, c], y[r, c + 1] = c0, c1
    y[r + 8, c], y[r + 8, c + 1] = c2, c3


@cute.jit
def host(a: cute.Tensor, b: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
    kernel(a, b, y).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


def build(dims, tokens, arch):
    return host
