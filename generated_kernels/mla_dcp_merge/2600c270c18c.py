"""mla_dcp_merge: shards of the context merged on their way into y = bf16(bf16(lat[h] w_uv[h]) * sigmoid(gate)).

A cluster owns 8 * VECTOR * GROUPS values of a head and a few tiles of 8 tokens, each of its CTAs 1/KSPLIT of the
latent.
1. weights: a lane loads VECTOR values of eight latent rows at a time, everything before the wait for the kernel before
   (programmatic dependent launch).
2. merge: a lane holds 8 latents of a token, from AHEAD ranks at a time, added with the weights 2^(lse - max) in the
   order of the ranks, in float32. The lse of an empty shard makes its weight 0, or all weights 1 where all are empty.
3. multiply: w_uv has the values contiguous, mma.sync wants pairs along the latent. So the lane's eight rows become the
   k of two fragments and its VECTOR values rows g and g + 8 of VECTOR / 2 MMAs each; the order of rows and k is free.
4. sums of warps meet in shared memory, those of a cluster's CTAs through it, in a fixed order; then the gate.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32
from cutlass.cute.nvgpu import warp as nvwarp

VECTOR, GROUPS = 4, 2  # values of a load; loads side by side, so 8 * VECTOR * GROUPS values a CTA
WARPS, KSPLIT = 8, 2  # warps along the latent; CTAs of a cluster
TILES, AHEAD, PDL = 1, 8, True  # token tiles of a CTA; ranks loaded at once; dependent launch
STEP, OWN = 32, 8  # latent rows of two MMAs: eight of each of the four lanes that share a row


def divisor(n, most):
    """Largest divisor of n that is at most `most`."""
    return max(d for d in range(1, max(1, min(n, most)) + 1) if n % d == 0)


class Merge:
    def __init__(self, dims, tokens):
        self.tokens, self.heads, self.gate_at, self.ranks = tokens, dims["heads"], dims["gate_at"], dims["ranks"]
        self.latent, self.value = dims["latent"], dims["value"]
        self.ksplit = divisor(self.latent // STEP, KSPLIT)
        self.warps = divisor(self.latent // STEP // self.ksplit, WARPS)
        self.steps = self.latent // STEP // self.ksplit // self.warps
        self.columns = 8 * VECTOR * GROUPS  # values of a CTA
        self.tiles = divisor((tokens + 7) // 8, TILES)  # of 8 tokens
        self.ahead = divisor(self.ranks, AHEAD)
        self.threads = 32 * self.warps
        self.grid = (self.ksplit, self.heads * (self.value // self.columns), (tokens + 7) // 8 // self.tiles)
        self.outs = self.columns * 8 * self.tiles  # of a cluster

    @cute.jit
    def __call__(
        self, lat: cute.Tensor, lse: cute.Tensor, w: cute.Tensor, p: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream
    ):  # fmt: skip
        self.kernel(lat, lse, w, p, y).launch(
            grid=self.grid, block=[self.threads, 1, 1], cluster=[self.ksplit, 1, 1], stream=stream, use_pdl=PDL,
            min_blocks_per_mp=1)  # fmt: skip

    @cute.kernel
    def kernel(self, lat: cute.Tensor, lse: cute.Tensor, w: cute.Tensor, p: cute.Tensor, y: cute.Tensor):
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_launch_dependents()
        tid, _, _ = cute.arch.thread_idx()
        rank, part, batch = cute.arch.block_idx()
        lane, warp = tid % 32, cute.arch.make_warp_uniform(tid // 32)
        g, q = lane // 4, lane % 4
        per_head = cutlass.const_expr(self.value // self.columns)
        head, first = part // per_head, (part % per_head) * self.columns
        token0 = batch * 8 * self.tiles
        k8 = (rank * self.warps + warp) * self.steps * 4 + q  # this lane's eight latent rows of step 0, in eights
        rw = cute.make_rmem_tensor(cute.make_layout((VECTOR, OWN, GROUPS, self.steps)), BFloat16)
        self.load_weights(w, rw, head, k8, first // VECTOR + g)
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_wait()
        rx = cute.make_rmem_tensor(cute.make_layout((OWN, self.tiles, self.steps)), BFloat16)
        for n in cutlass.range_constexpr(self.tiles):
            token = cutlass.min(token0 + 8 * n + g, self.tokens - 1)  # clamp: a spare column is not stored
            self.merge(lat, lse, rx[None, n, None], token, head, k8)
        share = cutlass.const_expr(self.outs // self.ksplit)  # outputs that this CTA stores
        mine = cutlass.const_expr((share + self.threads - 1) // self.threads)
        gates = cute.make_rmem_tensor(cute.make_layout((mine,)), Float32)
        for i in cutlass.range_constexpr(mine):
            token, value = self.output(cutlass.min(rank * share + i * self.threads + tid, self.outs - 1))
            at = cutlass.min(token0 + token, self.tokens - 1)
            gates[i] = p[at, self.gate_at + head * self.value + first + value].to(Float32)
        acc = self.multiply(rw, rx)
        shared = cutlass.memory.SmemAllocator()
        strides = (1, self.columns + 4, (self.columns + 4) * 8 * self.tiles)  # the 4: no bank conflicts
        layout = cute.make_layout((self.columns, 8 * self.tiles, self.warps), stride=strides)
        sums = shared.allocate_tensor(Float32, layout, byte_alignment=16)
        for m in cutlass.range_constexpr(GROUPS * VECTOR // 2):
            group, pair = m // (VECTOR // 2), m % (VECTOR // 2)
            for n in cutlass.range_constexpr(self.tiles):
                for e in cutlass.range_constexpr(2):
                    for half in cutlass.range_constexpr(2):
                        column = (group * 8 + g) * VECTOR + 2 * pair + half
                        sums[column, n * 8 + 2 * q + e, warp] = acc[(e, half), m, n]
        self.meet()
        for i in cutlass.range_constexpr(mine):
            local = i * self.threads + tid
            token, value = self.output(cutlass.min(rank * share + local, self.outs - 1))
            total = self.total(sums, value, token)
            at = token0 + token
            if local < share and at < self.tokens:
                v = total.to(BFloat16).to(Float32)
                v = v * cute.arch.rcp_approx(1.0 + cute.math.exp(-gates[i], fastmath=True))
                y[at, head * self.value + first + value] = v.to(BFloat16)
        if cutlass.const_expr(self.ksplit > 1):  # a peer may still read this CTA's shared memory
            self.meet()

    def output(self, o):
        """(token, value) of output o of a cluster."""
        return o // self.columns, o % self.columns

    @cute.jit
    def load_weights(self, w: cute.Tensor, rw: cute.Tensor, head, k8, vector):
        """All of this lane's weights: `steps` times eight latent rows of VECTOR values, of every group."""
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyG2ROp(), BFloat16, num_bits_per_copy=16 * VECTOR,
            l1c_evict_priority=cute.nvgpu.CacheEvictionPriority.NO_ALLOCATE)  # fmt: skip
        for s in cutlass.range_constexpr(self.steps):
            for k in cutlass.range_constexpr(OWN):
                row = w[head, (k8 + 4 * s) * OWN + k, None]
                for i in cutlass.range_constexpr(GROUPS):
                    cute.copy(atom, cute.local_tile(row, (VECTOR,), (vector + 8 * i,)), rw[None, k, i, s])

    @cute.jit
    def merge(self, lat: cute.Tensor, lse: cute.Tensor, rx: cute.Tensor, token, head, k8):
        """One token's latents of this lane [OWN, steps], in bf16."""
        weights = cute.make_rmem_tensor(cute.make_layout(self.ranks), Float32)
        for r in cutlass.range_constexpr(self.ranks):
            weights[r] = lse[r, token, head]
        top = weights[0]
        for r in cutlass.range_constexpr(1, self.ranks):
            top = cutlass.max(top, weights[r])
        total = Float32(0.0)
        for r in cutlass.range_constexpr(self.ranks):
            weights[r] = cute.math.exp2(weights[r] - top, fastmath=True)
            total += weights[r]
        got = cute.make_rmem_tensor(cute.make_layout((OWN, self.steps, self.ahead)), BFloat16)
        acc = cute.make_rmem_tensor(cute.make_layout((OWN, self.steps)), Float32)
        acc.fill(0.0)
        for first in cutlass.range_constexpr(0, self.ranks, self.ahead):
            for i in cutlass.range_constexpr(self.ahead):
                for s in cutlass.range_constexpr(self.steps):
                    row = lat[first + i, token, head, None]
                    cute.autovec_copy(cute.local_tile(row, (OWN,), (k8 + 4 * s,)), got[None, s, i])
            for i in cutlass.range_constexpr(self.ahead):
                acc.store(acc.load() + got[None, None, i].load().to(Float32) * weights[first + i])
        rx.store((acc.load() * (1.0 / total)).to(BFloat16))

    @cute.jit
    def multiply(self, rw: cute.Tensor, rx: cute.Tensor):
        """float32 sums [(token pair, row half), MMA, token tile] of this warp's latent rows."""
        mma = cute.make_tiled_mma(nvwarp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        mmas = cutlass.const_expr(GROUPS * VECTOR // 2)
        fa = cute.make_rmem_tensor(cute.make_layout(((2, 2, 2), mmas)), BFloat16)
        shape = cute.make_layout(
            ((2, 2), self.tiles, 2, self.steps), stride=((1, 2), OWN, 4, OWN * self.tiles))  # fmt: skip
        fb = cute.make_tensor(rx.iterator, shape)
        acc = cute.make_rmem_tensor(cute.make_layout(((2, 2), mmas, self.tiles)), Float32)
        acc.fill(0.0)
        for s in cutlass.range_constexpr(self.steps):
            for four in cutlass.range_constexpr(2):
                for m in cutlass.range_constexpr(mmas):
                    group, pair = m // (VECTOR // 2), m % (VECTOR // 2)
                    for half in cutlass.range_constexpr(2):
                        for k in cutlass.range_constexpr(4):  # pairs of latent rows side by side
                            fa[(k % 2, half, k // 2), m] = rw[2 * pair + half, 4 * four + k, group, s]
                cute.gemm(mma, acc, fa, fb[None, None, four, s], acc)
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
    made = Merge(dims, tokens)
    return f"mma, {made.columns} values a CTA, latent over {made.warps} warps of {made.ksplit} CTAs"


def build(dims, tokens, arch):
    return Merge(dims, tokens)
