"""mla_kv_append: norm of the latent row, store in the cache's number format, paged write.

LANES threads share a token, TOKENS tokens a CTA.
1. weights: each lane's part of w_kvn, before the wait for the kernel before (programmatic dependent launch);
2. row: slot, latent and key of the token at once, 16 bytes a load where a lane has that much;
3. norm: the square sum crosses the lanes by shuffles, and shared memory where a token has several warps;
4. write: latent and key, scaled and converted, straight to cache[slot // page, slot % page].
A token with slot -1 is normed like any other and written nowhere.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float8E4M3FN, Float32, Int32

LANES, TOKENS = 64, 1  # threads of a token; tokens of a CTA at most
EARLY, PDL = True, True  # whether the next kernel may start at once; programmatic dependent launch


def divisor(n, most):
    """Largest divisor of n that is at most `most`."""
    return max(d for d in range(1, min(n, most) + 1) if n % d == 0)


def plan(dims):
    """(values of a vector, vectors of a lane, tokens of a CTA)."""
    each = dims["latent"] // LANES
    vector = min(8, each)
    return vector, each // vector, divisor(dims["tokens"], TOKENS)


class Append:
    def __init__(self, dims):
        self.tokens, self.page, self.row, self.latent = dims["tokens"], dims["page"], dims["row"], dims["latent"]
        self.at, self.kind = dims["kv_at"], Float8E4M3FN if dims["cache"] == "e4m3" else BFloat16
        self.vector, self.vectors, self.own = plan(dims)
        self.key = (self.row - self.latent) // self.vector  # lanes that also move a vector of the key
        self.warps = LANES // 32

    @cute.jit
    def __call__(
        self, p: cute.Tensor, w: cute.Tensor, slots: cute.Tensor, cache: cute.Tensor, eps: Float32, scale: Float32,
        stream: cuda.CUstream,
    ):  # fmt: skip
        self.kernel(p, w, slots, cache, eps, scale).launch(
            grid=[self.tokens // self.own, 1, 1], block=[LANES * self.own, 1, 1], stream=stream, use_pdl=PDL)  # fmt: skip

    @cute.kernel
    def kernel(
        self, p: cute.Tensor, w: cute.Tensor, slots: cute.Tensor, cache: cute.Tensor, eps: Float32, scale: Float32
    ):
        if cutlass.const_expr(PDL and EARLY):
            cute.arch.griddepcontrol_launch_dependents()
        tid, _, _ = cute.arch.thread_idx()
        group, _, _ = cute.arch.block_idx()
        lane, local = tid % LANES, tid // LANES
        token = group * self.own + local
        # 1. weights
        weight = self.registers()
        for i in cutlass.range_constexpr(self.vectors):
            self.load(w, i * LANES + lane, weight[None, i])
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_wait()
        # 2. row
        slot = slots[token]
        latent, key = self.registers(), cute.make_rmem_tensor(cute.make_layout((self.vector,)), BFloat16)
        row, first = p[token, None], self.at // self.vector  # in vectors
        for i in cutlass.range_constexpr(self.vectors):
            self.load(row, first + i * LANES + lane, latent[None, i])
        self.load(row, first + self.latent // self.vector + cutlass.min(lane, self.key - 1), key)
        # 3. norm
        x = latent.load().to(Float32)
        squares = self.total((x * x).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0), local, tid)
        root = cute.math.rsqrt(squares * (1.0 / self.latent) + eps)
        latent.store((x * root * weight.load().to(Float32)).to(BFloat16))
        # 4. write
        if slot >= 0:
            place = cache[slot // self.page, slot % self.page, None]
            for i in cutlass.range_constexpr(self.vectors):
                self.store(latent[None, i], scale, place, i * LANES + lane)
            if lane < self.key:
                self.store(key, scale, place, self.latent // self.vector + lane)
        if cutlass.const_expr(PDL and not EARLY):
            cute.arch.griddepcontrol_launch_dependents()

    def registers(self):
        return cute.make_rmem_tensor(cute.make_layout((self.vector, self.vectors)), BFloat16)

    @cute.jit
    def load(self, row: cute.Tensor, number: Int32, here: cute.Tensor):
        cute.autovec_copy(cute.local_tile(row, (self.vector,), (number,)), here)

    @cute.jit
    def store(self, values: cute.Tensor, scale: Float32, row: cute.Tensor, number: Int32):
        out = cute.make_rmem_tensor(cute.make_layout((self.vector,)), self.kind)
        out.store((values.load().to(Float32) * scale).to(self.kind))
        cute.autovec_copy(out, cute.local_tile(row, (self.vector,), (number,)))

    @cute.jit
    def total(self, part, local, tid):
        """Sum over the lanes of a token, in the same order in each."""
        found = cute.arch.warp_reduction_sum(part)
        if cutlass.const_expr(self.warps > 1):
            layout = cute.make_layout((self.warps, self.own))
            sums = cutlass.memory.SmemAllocator().allocate_tensor(Float32, layout, byte_alignment=16)
            if tid % 32 == 0:
                sums[tid // 32 % self.warps, local] = found
            cute.arch.sync_threads()
            found = Float32(0.0)
            for i in cutlass.range_constexpr(self.warps):
                found += sums[i, local]
        return found


def design(dims, tokens, arch):
    _, _, own = plan(dims)
    return f"{LANES} threads a token, {own} tokens a CTA, {dims['cache']}"


def build(dims, tokens, arch):
    return Append(dims)
