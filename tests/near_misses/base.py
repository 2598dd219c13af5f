"""A plain, right candidate for mla_out_gate, one thread an output: the near misses are edits of this text."""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32

THREADS = 64


class OutGate:
    def __init__(self, dims):
        self.latent, self.value = dims["latent"], dims["value"]
        self.width, self.gate_at, self.tokens = dims["width"], dims["gate_at"], dims["tokens"]

    @cute.jit
    def __call__(
        self,
        lat: cute.Tensor,
        w_uv: cute.Tensor,
        p: cute.Tensor,
        lengths: cute.Tensor,
        y: cute.Tensor,
        stream: cuda.CUstream,
    ):
        grid = [self.width // THREADS, self.tokens, 1]
        self.kernel(lat, w_uv, p, lengths, y).launch(grid=grid, block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, lat: cute.Tensor, w_uv: cute.Tensor, p: cute.Tensor, lengths: cute.Tensor, y: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        block, token, _ = cute.arch.block_idx()
        column = block * THREADS + thread
        y[token, column] = self.gated(lat, w_uv, p, lengths, token, column)

    @cute.jit
    def gated(self, lat: cute.Tensor, w_uv: cute.Tensor, p: cute.Tensor, lengths: cute.Tensor, token, column):
        """One output: the dot product, rounded, times the sigmoid of its gate."""
        head, own = column // self.value, column % self.value
        total = Float32(0.0)
        if lengths[token] > 0:
            for k in cutlass.range(self.latent, unroll=8):
                total += lat[token, head, k].to(Float32) * w_uv[head, k, own].to(Float32)
        value = total.to(BFloat16).to(Float32)
        gate = p[token, self.gate_at + column].to(Float32)
        return (value / (1.0 + cute.math.exp(-gate))).to(BFloat16)


def build(dims, tokens, arch):
    return OutGate(dims)
