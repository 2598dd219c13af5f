"""A plain and complete mla_kv_append: one thread block a token, in either number format of the cache.

The number of blocks and the distance between them are read from the tensor at run time.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float8E4M3FN, Float32, Int32

THREADS = 128


class Append:
    def __init__(self, dims, tokens):
        self.tokens, self.page, self.row, self.latent = tokens, dims["page"], dims["row"], dims["latent"]
        self.at, self.kind = dims["kv_at"], Float8E4M3FN if dims["cache"] == "e4m3" else BFloat16
        self.each = self.latent // THREADS  # of one thread: a short vector of the latent row
        self.tail = (self.row - self.latent) // self.each  # threads that also move a vector of the key

    @cute.jit
    def __call__(
        self, p: cute.Tensor, w: cute.Tensor, slots: cute.Tensor, cache: cute.Tensor, eps: Float32, scale: Float32,
        stream: cuda.CUstream,
    ):  # fmt: skip
        self.kernel(p, w, slots, cache, eps, scale).launch(
            grid=[self.tokens, 1, 1], block=[THREADS, 1, 1], stream=stream
        )

    @cute.kernel
    def kernel(
        self, p: cute.Tensor, w: cute.Tensor, slots: cute.Tensor, cache: cute.Tensor, eps: Float32, scale: Float32
    ):
        t, _, _ = cute.arch.thread_idx()
        token, _, _ = cute.arch.block_idx()
        part = cutlass.memory.SmemAllocator().allocate_tensor(
            Float32, cute.make_layout((THREADS // 32,)), byte_alignment=16
        )
        x = self.vector(p[token, None], self.at // self.each + t)
        total = cute.arch.warp_reduction_sum((x * x).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0))
        if t % 32 == 0:
            part[t // 32] = total
        cute.arch.sync_threads()
        squares = Float32(0.0)
        for i in cutlass.range_constexpr(THREADS // 32):
            squares += part[i]
        normed = x * cute.math.rsqrt(squares / self.latent + eps) * self.vector(w, t)
        slot = slots[token]
        if slot >= 0:
            place = cache[slot // self.page, slot % self.page, None]
            self.store(normed.to(BFloat16).to(Float32) * scale, place, t)
            if t < self.tail:
                key = self.vector(p[token, None], (self.at + self.latent) // self.each + t)
                self.store(key * scale, place, THREADS + t)

    @cute.jit
    def vector(self, row: cute.Tensor, number: Int32):
        r = cute.make_rmem_tensor((self.each,), BFloat16)
        cute.autovec_copy(cute.local_tile(row, (self.each,), (number,)), r)
        return r.load().to(Float32)

    @cute.jit
    def store(self, values, row: cute.Tensor, number: Int32):
        r = cute.make_rmem_tensor((self.each,), self.kind)
        r.store(values.to(self.kind))
        cute.autovec_copy(r, cute.local_tile(row, (self.each,), (number,)))


def design(dims, tokens, arch):
    return f"a block a token, {dims['cache']}"


def build(dims, tokens, arch):
    return Append(dims, tokens)
