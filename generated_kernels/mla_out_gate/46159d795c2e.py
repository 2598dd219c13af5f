"""mla_out_gate: y = bf16(bf16(lat[h] w_uv[h]) * sigmoid(gate)): one small matrix a head, read once, all of it in flight.

A CTA owns 8 * VECTOR values of a head, 1/KSPLIT of the latent and a few tiles of 8 tokens.
1. weights: a lane loads VECTOR values of four latent rows at a time, everything before the wait for the kernel before
   (programmatic dependent launch); then latents, gates and lengths.
2. multiply: w_uv has the values contiguous, mma.sync wants pairs along the latent. So the lane's four rows become the
   k of its fragment and its VECTOR values rows g and g + 8 of VECTOR / 2 MMAs; the order of rows and of k is free.
3. sums of warps meet in shared memory, those of a cluster's CTAs through it, in a fixed order; then the gate.
A token of length 0 gets zeros whatever its latents are: they meet no other token's column.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32
from cutlass.cute.nvgpu import warp as nvwarp

VECTOR, WARPS, KSPLIT = 4, 8, 2  # values of a load; warps along the latent; CTAs of a cluster
TILES, PDL = 2, True  # token tiles of a CTA at most; programmatic dependent launch
STEP = 16  # latent rows of one MMA: four of each of the four lanes that share a row


def divisor(n, most):
    """Largest divisor of n that is at most `most`."""
    return max(d for d in range(1, max(1, min(n, most)) + 1) if n % d == 0)


class ValueGate:
    def __init__(self, dims, tokens):
        self.tokens, self.heads, self.gate_at = tokens, dims["heads"], dims["gate_at"]
        self.latent, self.value = dims["latent"], dims["value"]
        self.ksplit = divisor(self.latent // STEP, KSPLIT)
        self.warps = divisor(self.latent // STEP // self.ksplit, WARPS)
        self.steps = self.latent // STEP // self.ksplit // self.warps
        self.columns = 8 * VECTOR  # values of a CTA
        self.tiles = divisor((tokens + 7) // 8, TILES)  # of 8 tokens
        self.threads = 32 * self.warps
        self.grid = (self.ksplit, self.heads * (self.value // self.columns), (tokens + 7) // 8 // self.tiles)
        self.outs = self.columns * 8 * self.tiles  # of a cluster

    @cute.jit
    def __call__(
        self, lat: cute.Tensor, w: cute.Tensor, p: cute.Tensor, lengths: cute.Tensor, y: cute.Tensor,
        stream: cuda.CUstream,
    ):  # fmt: skip
        self.kernel(lat, w, p, lengths, y).launch(
            grid=self.grid, block=[self.threads, 1, 1], cluster=[self.ksplit, 1, 1], stream=stream, use_pdl=PDL,
            min_blocks_per_mp=1)  # fmt: skip

    @cute.kernel
    def kernel(self, lat: cute.Tensor, w: cute.Tensor, p: cute.Tensor, lengths: cute.Tensor, y: cute.Tensor):
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_launch_dependents()
        tid, _, _ = cute.arch.thread_idx()
        rank, part, batch = cute.arch.block_idx()
        lane, warp = tid % 32, cute.arch.make_warp_uniform(tid // 32)
        g, q = lane // 4, lane % 4
        per_head = cutlass.const_expr(self.value // self.columns)
        head, first = part // per_head, (part % per_head) * self.columns
        token0 = batch * 8 * self.tiles
        k0 = (rank * self.warps + warp) * self.steps * STEP + 4 * q  # this lane's four latent rows of step 0
        rw = cute.make_rmem_tensor(cute.make_layout((VECTOR, 4, self.steps)), BFloat16)
        self.load_weights(w, rw, head, k0, first // VECTOR + g)
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_wait()
        rx = cute.make_rmem_tensor(cute.make_layout((4, self.tiles, self.steps)), BFloat16)
        for n in cutlass.range_constexpr(self.tiles):
            row = lat[cutlass.min(token0 + 8 * n + g, self.tokens - 1), head, None]  # clamp: a spare column is not stored
            for s in cutlass.range_constexpr(self.steps):
                cute.autovec_copy(cute.local_tile(row, (4,), (k0 // 4 + s * (STEP // 4),)), rx[None, n, s])
        share = cutlass.const_expr(self.outs // self.ksplit)  # outputs that this CTA stores
        mine = cutlass.const_expr((share + self.threads - 1) // self.threads)
        gates = cute.make_rmem_tensor(cute.make_layout((mine,)), Float32)
        for i in cutlass.range_constexpr(mine):
            token, value = self.output(rank * share + i * self.threads + tid)
            at = cutlass.min(token0 + token, self.tokens - 1)
            gates[i] = p[at, self.gate_at + head * self.value + first + value].to(Float32)
        acc = self.multiply(rw, rx)
        shared = cutlass.memory.SmemAllocator()
        strides = (1, self.columns + 4, (self.columns + 4) * 8 * self.tiles)  # the 4: no bank conflicts
        layout = cute.make_layout((self.columns, 8 * self.tiles, self.warps), stride=strides)
        sums = shared.allocate_tensor(Float32, layout, byte_alignment=16)
        for m in cutlass.range_constexpr(VECTOR // 2):
            for n in cutlass.range_constexpr(self.tiles):
                for e in cutlass.range_constexpr(2):
                    for half in cutlass.range_constexpr(2):
                        sums[g * VECTOR + 2 * m + half, n * 8 + 2 * q + e, warp] = acc[(e, half), m, n]
        self.meet()
        for i in cutlass.range_constexpr(mine):
            local = i * self.threads + tid
            token, value = self.output(cutlass.min(rank * share + local, self.outs - 1))
            total = self.total(sums, value, token)
            at = token0 + token
            if local < share and at < self.tokens:
                v = total.to(BFloat16).to(Float32)
                v = v * cute.arch.rcp_approx(1.0 + cute.math.exp(-gates[i], fastmath=True))
                if lengths[at] <= 0:
                    v = Float32(0.0)
                y[at, head * self.value + first + value] = v.to(BFloat16)
        if cutlass.const_expr(self.ksplit > 1):  # a peer may still read this CTA's shared memory
            self.meet()

    def output(self, o):
        """(token, value) of output o of a cluster."""
        return o // self.columns, o % self.columns

    @cute.jit
    def load_weights(self, w: cute.Tensor, rw: cute.Tensor, head, k0, vector):
        """All of this lane's weights: `steps` times four latent rows of VECTOR values."""
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyG2ROp(), BFloat16, num_bits_per_copy=16 * VECTOR,
            l1c_evict_priority=cute.nvgpu.CacheEvictionPriority.NO_ALLOCATE)  # fmt: skip
        for s in cutlass.range_constexpr(self.steps):
            for k in cutlass.range_constexpr(4):
                row = w[head, k0 + s * STEP + k, None]
                cute.copy(atom, cute.local_tile(row, (VECTOR,), (vector,)), rw[None, k, s])

    @cute.jit
    def multiply(self, rw: cute.Tensor, rx: cute.Tensor):
        """float32 sums [(token pair, row half), MMA, token tile] of this warp's latent rows."""
        mma = cute.make_tiled_mma(nvwarp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        fa = cute.make_rmem_tensor(cute.make_layout(((2, 2, 2), VECTOR // 2)), BFloat16)
        fb = cute.make_tensor(rx.iterator, cute.make_layout(((2, 2), self.tiles, self.steps), stride=((1, 2), 4, 4 * self.tiles)))  # fmt: skip
        acc = cute.make_rmem_tensor(cute.make_layout(((2, 2), VECTOR // 2, self.tiles)), Float32)
        acc.fill(0.0)
        for s in cutlass.range_constexpr(self.steps):
            for m in cutlass.range_constexpr(VECTOR // 2):
                for half in cutlass.range_constexpr(2):
                    for k in cutlass.range_constexpr(4):  # pairs of latent rows side by side
                        fa[(k % 2, half, k // 2), m] = rw[2 * m + half, k, s]
            cute.gemm(mma, acc, fa, fb[None, None, s], acc)
        return acc

    @cute.jit
    def meet(self):
        if cutlass.const_expr(self.ksplit > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

    @cute.jit
    def total(self, sums: cute.Tensor, value, token):
        """The sum over the cluster's CTAs and their warps, always in the same order."""
        v = Float32(0.0)
        for s in cutlass.range_constexpr(self.ksplit):
            for k in cutlass.range_constexpr(self.warps):
                if cutlass.const_expr(self.ksplit > 1):
                    offset = cute.crd2idx((value, token, k), sums.layout)
                    v += cute.arch.map_dsmem_ptr(sums.iterator + offset, Int32(s)).load()
                else:
                    v += sums[value, token, k]
        return v


def design(dims, tokens, arch):
    gate = ValueGate(dims, tokens)
    return f"mma, {gate.columns} values a CTA, latent over {gate.warps} warps of {gate.ksplit} CTAs"


def build(dims, tokens, arch):
    return ValueGate(dims, tokens)
