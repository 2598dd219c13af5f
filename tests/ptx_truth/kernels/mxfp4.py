"""y = MXFP4 numbers decoded: the bits of e2m1 moved into a float, whose power of two and E8M0 scale are multiplied in.

z holds the same numbers without their scale as words of two bf16, looked up byte by byte (prmt).
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

WORDS = 4  # 32-bit words with eight numbers each under one scale


@cute.jit
def as_float(bits):
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Float32], read_only_args=[bits])


@cute.kernel
def kernel(w: cute.Tensor, scale: cute.Tensor, y: cute.Tensor, z: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    factor = as_float(Int32(scale[t]) << 23)
    for i in cutlass.range_constexpr(WORDS):
        word = w[t, i]
        for n in cutlass.range_constexpr(8):
            code = word >> (4 * n)
            magnitude = as_float(((code & 7) << 22) | ((code & 8) << 28))  # the number times 2^-126
            y[t, 8 * i + n] = magnitude * Float32(2.0**126) * factor
        for n in cutlass.range_constexpr(4):
            pair = word >> (8 * n)
            # bf16 of 0, .5, 1, 1.5, 2, 3, 4, 6: high bytes 00 3f 3f 3f 40 40 40 40, low ones 00 00 80 c0 00 40 80 c0
            select = (pair & 7) | ((pair & 0x70) << 4)
            look = "prmt.b32 {$w0}, {$r0}, {$r1}, {$r2};"
            high = cute.arch.inline_ptx(
                look, write_only_types=[Int32], read_only_args=[Int32(0x3F3F3F00), Int32(0x40404040), select]
            )
            low = cute.arch.inline_ptx(
                look, write_only_types=[Int32], read_only_args=[Int32(-0x3F800000), Int32(-0x3F7FC000), select]
            )
            sign = ((pair & 8) << 12) | ((pair & 0x80) << 24)
            bits = ((high & 0xFF) << 8) | ((high & 0xFF00) << 16) | (low & 0xFF) | ((low & 0xFF00) << 8) | sign
            z[t, 4 * i + n] = bits


@cute.jit
def host(w: cute.Tensor, scale: cute.Tensor, y: cute.Tensor, z: cute.Tensor, stream: cuda.CUstream):
    kernel(w, scale, y, z).launch(grid=[1, 1, 1], block=[64, 1, 1], stream=stream)


def build(dims, tokens, arch):
    return host
