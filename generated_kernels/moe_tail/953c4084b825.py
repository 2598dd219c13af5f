"""moe_tail: rank sums, norm, up-projection and the shared expert's sum in one kernel, K split over a cluster.

A cluster owns some columns of hidden, each of its CTAs 1/KSPLIT of the latent.
1. weights: a lane queues its own 16-byte pieces of w_up in shared memory (cp.async), all of them or as many as DEPTH
   says, before the wait for the kernel before (programmatic dependent launch).
2. norm: a warp a token adds the ranks of this CTA's part of the latent in their order, rounds, and keeps it; the CTAs
   give each other their square sums. While these cross the cluster, the sums of the shared expert are made.
3. up: rows of w_up are the 16-row operand of mma.sync, tokens the 8-wide one; 8 consecutive k of a lane feed two MMAs.
4. sums of warps and CTAs meet through the cluster in a fixed order; each CTA rounds and stores a share of the columns.
From SUM_FROM tokens on a kernel before adds the ranks of the latent, once instead of once a cluster.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.nvgpu import warp as nvwarp

KSPLIT, CTAS = 8, 112  # CTAs of a cluster, along the latent; and in all, where memory allows
WARPS_R, WARPS_K = 8, 1  # of a CTA, along columns and along its part of the latent
DEPTH = 14  # pieces of weights that a lane has in flight: 16 columns and 32 of K in a warp
SUM_FROM = 16  # tokens
PDL = True  # programmatic dependent launch
STEP, LANES = 32, 32  # of K in a 16-byte copy of four lanes, two MMAs
SMEM = 220 * 1024  # bytes of a CTA at most
LOADS = 16  # 16-byte pieces of parts that a lane loads before it adds them
SUMMERS = 128  # threads of a CTA that only adds ranks


def divisor(n, most):
    """Largest divisor of n that is at most `most`: parameters bend to dims that they do not divide."""
    return max(d for d in range(1, max(1, min(n, most)) + 1) if n % d == 0)


class Tail:
    def __init__(self, dims, tokens, ranks):
        self.tokens, self.ranks, self.shared_ranks = tokens, ranks, dims["ranks"]
        self.latent, self.tiles_all = dims["latent"], dims["columns"] // 16
        self.ksplit = divisor(self.latent // STEP, KSPLIT)
        self.kc = self.latent // self.ksplit
        self.wk = divisor(self.kc // STEP, WARPS_K)
        self.steps = self.kc // STEP // self.wk  # of a warp
        self.nt = (tokens + 7) // 8  # token tiles
        each = [d for d in range(1, self.tiles_all + 1) if self.tiles_all % d == 0]
        wanted = next(d for d in each if self.tiles_all // d * self.ksplit <= CTAS or d == self.tiles_all)
        self.shape(max(d for d in each if d == 1 or (d <= wanted and self.shape(d) <= SMEM)))
        self.vectors = self.kc // 8  # of a token, in this CTA
        self.per_lane = (self.vectors + LANES - 1) // LANES
        self.rounds = (tokens + self.warps - 1) // self.warps  # tokens of a warp
        self.share = self.rows // 4 * tokens // self.ksplit + 1  # of the results, in fours, of a CTA
        self.mine = (self.share + self.threads - 1) // self.threads

    def shape(self, row_tiles):
        """What follows from the row tiles of a CTA; returns its bytes of shared memory."""
        self.rows, self.wr = 16 * row_tiles, divisor(row_tiles, WARPS_R)
        self.tw = row_tiles // self.wr  # row tiles of a warp
        self.warps = self.wr * self.wk
        self.threads = LANES * self.warps
        self.pieces = self.tw * self.steps
        self.depth = min(DEPTH, self.pieces)
        self.pitch = self.rows + 4  # of the sums: no bank conflicts
        self.x_at = 32 * self.threads * self.depth
        self.sums_at = self.x_at + 16 * self.kc * self.nt
        self.squares_at = self.sums_at + 4 * self.pitch * 8 * self.nt * self.wk
        return self.squares_at + 4 * self.tokens * self.ksplit

    @cute.jit
    def run(self, parts, shared, gamma, w_up, delta, eps, stream):
        self.kernel(parts, shared, gamma, w_up, delta, eps).launch(
            grid=[self.ksplit, self.tiles_all * 16 // self.rows, 1], block=[self.threads, 1, 1],
            cluster=[self.ksplit, 1, 1], stream=stream, use_pdl=PDL, min_blocks_per_mp=1)  # fmt: skip

    @cute.kernel
    def kernel(
        self, parts: cute.Tensor, shared: cute.Tensor, gamma: cute.Tensor, w_up: cute.Tensor, delta: cute.Tensor,
        eps: Float32,
    ):  # fmt: skip
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_launch_dependents()
        tid, _, _ = cute.arch.thread_idx()
        rank, cluster, _ = cute.arch.block_idx()
        cute.arch.cluster_arrive()
        smem = cutlass.memory.SmemAllocator()
        place = smem.allocate_array(cutlass.Uint8, self.squares_at + 4 * self.tokens * self.ksplit, byte_alignment=128)
        at = (cute.recast_ptr(place, dtype=BFloat16) + tid * 8).align(16)
        strides = (1, 8 * self.threads, 16 * self.threads)
        queue = cute.make_tensor(at, cute.make_layout((8, 2, self.depth), stride=strides))  # what this lane copies
        x_shape = (8, LANES, self.kc // STEP, self.nt)  # vector, lane of the fragment, K step, token tile
        x = cute.make_tensor(cute.recast_ptr(place + self.x_at, dtype=BFloat16), cute.make_layout(x_shape))
        strides = (1, self.pitch, self.pitch * 8 * self.nt)
        at = cute.recast_ptr(place + self.sums_at, dtype=Float32)
        sums = cute.make_tensor(at, cute.make_layout((self.rows, 8 * self.nt, self.wk), stride=strides))
        at = cute.recast_ptr(place + self.squares_at, dtype=Float32)
        squares = cute.make_tensor(at, cute.make_layout((self.tokens, self.ksplit)))
        # 1. weights
        for i in cutlass.range_constexpr(self.depth):
            self.load(w_up, queue, cluster, rank, tid, i)
            cute.arch.cp_async_commit_group()
        weight = cute.make_rmem_tensor(cute.make_layout((8, self.per_lane)), BFloat16)
        for j in cutlass.range_constexpr(self.per_lane):
            cute.autovec_copy(cute.local_tile(gamma, (8,), (self.vector(rank, j, tid),)), weight[None, j])
        cute.arch.cluster_wait()  # all have started: their shared memory may be written
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_wait()
        # 2. norm
        self.add_latent(parts, x, squares, rank, tid)
        cute.arch.cluster_arrive()
        own = cute.make_rmem_tensor(cute.make_layout((4, self.mine)), BFloat16)
        self.add_shared(shared, own, rank, cluster, tid)
        cute.arch.cluster_wait()
        self.norm(weight, squares, x, eps, tid)
        cute.arch.sync_threads()
        # 3. up
        self.multiply(w_up, queue, x, sums, cluster, rank, tid)
        self.meet()
        # 4. sums
        self.store(sums, own, delta, rank, cluster, tid)
        self.meet()  # a peer may still read this CTA's sums

    @cute.jit
    def meet(self):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()

    @cute.jit
    def load(self, w_up, queue: cute.Tensor, cluster, rank, tid, piece: cutlass.Constexpr[int]):
        """Start copying this lane's two rows of one piece: row tile by row tile, K inside."""
        if cutlass.const_expr(piece < self.pieces):
            lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
            wk, wr = warp % self.wk, warp // self.wk
            op = cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL)
            atom = cute.make_copy_atom(op, BFloat16, num_bits_per_copy=128)
            tile, step = piece // self.steps, piece % self.steps
            row = cluster * self.rows + (wr * self.tw + tile) * 16 + lane // 4
            k8 = (rank * self.kc + (wk * self.steps + step) * STEP) // 8 + lane % 4  # in vectors of 8
            for half in cutlass.range_constexpr(2):
                there = cute.local_tile(w_up[row + 8 * half, None], (8,), (k8,))
                cute.copy(atom, there, queue[None, half, piece % self.depth])

    @cute.jit
    def vector(self, rank, j: cutlass.Constexpr[int], tid):
        """Which vector of 8 of the latent is a lane's j-th; spare lanes repeat the last one."""
        return rank * self.vectors + cutlass.min(j * LANES + tid % LANES, self.vectors - 1)

    @cute.jit
    def add_latent(self, parts, x: cute.Tensor, squares: cute.Tensor, rank, tid):
        """L in bf16 of this CTA's part of the latent to where n will be; square sums to every CTA of the cluster."""
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        ahead = cutlass.const_expr(divisor(self.rounds, LOADS // (self.per_lane * self.ranks)))  # tokens
        got = cute.make_rmem_tensor(cute.make_layout((8, self.per_lane, self.ranks, ahead)), BFloat16)
        added = cute.make_rmem_tensor(cute.make_layout(8), BFloat16)
        for first in cutlass.range(0, self.rounds, ahead, unroll=1):
            for i in cutlass.range_constexpr(ahead):
                for r in cutlass.range_constexpr(self.ranks):
                    row = parts[r, cutlass.min((first + i) * self.warps + warp, self.tokens - 1), None]
                    for j in cutlass.range_constexpr(self.per_lane):
                        cute.autovec_copy(cute.local_tile(row, (8,), (self.vector(rank, j, tid),)), got[None, j, r, i])
            for i in cutlass.range_constexpr(ahead):
                token = (first + i) * self.warps + warp
                square = Float32(0.0)
                for j in cutlass.range_constexpr(self.per_lane):
                    total = got[None, j, 0, i].load().to(Float32) + 0.0
                    for r in cutlass.range_constexpr(1, self.ranks):
                        total = total + got[None, j, r, i].load().to(Float32)
                    added.store(total.to(BFloat16))
                    v = added.load().to(Float32)
                    own = (v * v).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)
                    if j * LANES + lane < self.vectors:
                        square += own
                        if token < self.tokens:
                            cute.autovec_copy(added, self.place(x, j, token, lane))
                square = cute.arch.warp_reduction_sum(square)
                if lane < self.ksplit and token < self.tokens:
                    here = squares.iterator + cute.crd2idx((token, rank), squares.layout)
                    there = cute.arch.map_dsmem_ptr(here, Int32(lane)).toint()
                    cute.arch.inline_ptx("st.shared::cluster.f32 [{$r0}], {$r1};", read_only_args=[there, square])

    @cute.jit
    def norm(self, weight: cute.Tensor, squares: cute.Tensor, x: cute.Tensor, eps, tid):
        """n in bf16 from L, in place: each lane finds what it has put there itself."""
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        normed = cute.make_rmem_tensor(cute.make_layout(8), BFloat16)
        for i in cutlass.range(self.rounds, unroll=4):
            token = i * self.warps + warp
            if token < self.tokens:
                square = squares[token, 0]
                for s in cutlass.range_constexpr(1, self.ksplit):
                    square += squares[token, s]
                factor = cute.math.rsqrt(square * (1.0 / self.latent) + eps)
                for j in cutlass.range_constexpr(self.per_lane):
                    if j * LANES + lane < self.vectors:
                        here = self.place(x, j, token, lane)
                        cute.autovec_copy(here, normed)
                        v = normed.load().to(Float32) * factor
                        normed.store((v * weight[None, j].load().to(Float32)).to(BFloat16))
                        cute.autovec_copy(normed, here)

    def place(self, x, j, token, lane):
        """A lane's j-th vector of a token, in the order in which a lane of mma.sync reads it."""
        at = j * LANES + lane
        return x[None, token % 8 * 4 + at % 4, at // 4, token // 8]

    @cute.jit
    def multiply(self, w_up, queue: cute.Tensor, x: cute.Tensor, sums: cute.Tensor, cluster, rank, tid):
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        wk, wr, g, q = warp % self.wk, warp // self.wk, lane // 4, lane % 4
        mma = cute.make_tiled_mma(nvwarp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        rw = cute.make_rmem_tensor(cute.make_layout((8, 2)), BFloat16)
        rx = cute.make_rmem_tensor(cute.make_layout((8, self.nt)), BFloat16)
        # fragments are views of those registers: (pair, row half, k half), tile, MMA
        fa = cute.make_tensor(rw.iterator, cute.make_layout(((2, 2, 2), 1, 2), stride=((1, 8, 2), 0, 4)))
        fb = cute.make_tensor(rx.iterator, cute.make_layout(((2, 2), self.nt, 2), stride=((1, 2), 8, 4)))
        acc = cute.make_rmem_tensor(cute.make_layout(((2, 2), 1, self.nt)), Float32)
        for piece in cutlass.range_constexpr(self.pieces):
            tile, step = piece // self.steps, piece % self.steps
            cute.arch.cp_async_wait_group(self.depth - 1)  # this piece has landed
            for half in cutlass.range_constexpr(2):
                cute.autovec_copy(queue[None, half, piece % self.depth], rw[None, half])
            if cutlass.const_expr(step == 0):
                acc.fill(0.0)
            for n in cutlass.range_constexpr(self.nt):
                there = cutlass.min(g, self.tokens - 1 - 8 * n) * 4 + q  # clamp: a spare column goes nowhere
                cute.autovec_copy(x[None, there, wk * self.steps + step, n], rx[None, n])
            for k in cutlass.range_constexpr(2):
                cute.gemm(mma, acc, fa[None, None, k], fb[None, None, k], acc)
            self.load(w_up, queue, cluster, rank, tid, piece + self.depth)
            cute.arch.cp_async_commit_group()
            if cutlass.const_expr(step == self.steps - 1):
                for n in cutlass.range_constexpr(self.nt):
                    for e in cutlass.range_constexpr(2):
                        for half in cutlass.range_constexpr(2):
                            row = (wr * self.tw + tile) * 16 + g + 8 * half
                            sums[row, n * 8 + 2 * q + e, wk] = acc[(e, half), 0, n]

    @cute.jit
    def four(self, rank, i: cutlass.Constexpr[int], tid):
        """Where the thread's i-th four columns of a token are: whether there are any, which four, which token."""
        local = i * self.threads + tid
        at = rank * self.share + local
        there = local < self.share and at < self.rows // 4 * self.tokens
        at = cutlass.min(at, self.rows // 4 * self.tokens - 1)
        return there, at % (self.rows // 4), at // (self.rows // 4)

    @cute.jit
    def add_shared(self, shared, own: cute.Tensor, rank, cluster, tid):
        """bf16 sums over the ranks, in their order, of what this thread will store."""
        got = cute.make_rmem_tensor(cute.make_layout((4, self.shared_ranks)), BFloat16)
        for i in cutlass.range_constexpr(self.mine):
            _, r4, token = self.four(rank, i, tid)
            for r in cutlass.range_constexpr(self.shared_ranks):
                row = shared[r, token, None]
                cute.autovec_copy(cute.local_tile(row, (4,), (cluster * (self.rows // 4) + r4,)), got[None, r])
            total = got[None, 0].load().to(Float32) + 0.0
            for r in cutlass.range_constexpr(1, self.shared_ranks):
                total = total + got[None, r].load().to(Float32)
            own[None, i].store(total.to(BFloat16))

    @cute.jit
    def store(self, sums: cute.Tensor, own: cute.Tensor, delta, rank, cluster, tid):
        got = cute.make_rmem_tensor(cute.make_layout(4), Float32)
        out = cute.make_rmem_tensor(cute.make_layout(4), BFloat16)
        for i in cutlass.range_constexpr(self.mine):
            there, r4, token = self.four(rank, i, tid)
            if there:
                total = cute.make_rmem_tensor(cute.make_layout(4), Float32)
                total.fill(0.0)
                for s in cutlass.range_constexpr(self.ksplit):
                    for k in cutlass.range_constexpr(self.wk):
                        offset = cute.crd2idx((4 * r4, token, k), sums.layout)
                        at = cute.arch.map_dsmem_ptr(sums.iterator + offset, Int32(s)).align(16)
                        cute.autovec_copy(cute.make_tensor(at, cute.make_layout(4)), got)
                        total.store(total.load() + got.load())
                up = total.load().to(BFloat16).to(Float32)
                out.store((up + own[None, i].load().to(Float32)).to(BFloat16))
                row = delta[token, None]
                cute.autovec_copy(out, cute.local_tile(row, (4,), (cluster * (self.rows // 4) + r4,)))


class Whole(Tail):
    @cute.jit
    def __call__(
        self, parts: cute.Tensor, shared: cute.Tensor, gamma: cute.Tensor, w_up: cute.Tensor, delta: cute.Tensor,
        eps: Float32, stream: cuda.CUstream,
    ):  # fmt: skip
        self.run(parts, shared, gamma, w_up, delta, eps, stream)


class Summed(Tail):
    """Ranks of the latent added by a kernel of its own: the tail finds one rank."""

    @cute.jit
    def __call__(
        self, parts: cute.Tensor, shared: cute.Tensor, gamma: cute.Tensor, w_up: cute.Tensor, delta: cute.Tensor,
        eps: Float32, added: cute.Tensor, stream: cuda.CUstream,
    ):  # fmt: skip
        blocks = (self.tokens * self.latent // 8 + SUMMERS - 1) // SUMMERS
        self.add(parts, added).launch(grid=[blocks, 1, 1], block=[SUMMERS, 1, 1], stream=stream, use_pdl=PDL)
        self.run(added, shared, gamma, w_up, delta, eps, stream)

    @cute.kernel
    def add(self, parts: cute.Tensor, added: cute.Tensor):
        tid, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_launch_dependents()
            cute.arch.griddepcontrol_wait()
        at = block * SUMMERS + tid
        got = cute.make_rmem_tensor(cute.make_layout((8, self.shared_ranks)), BFloat16)
        out = cute.make_rmem_tensor(cute.make_layout(8), BFloat16)
        if at < self.tokens * self.latent // 8:
            token, v = at // (self.latent // 8), at % (self.latent // 8)
            for r in cutlass.range_constexpr(self.shared_ranks):
                cute.autovec_copy(cute.local_tile(parts[r, token, None], (8,), (v,)), got[None, r])
            total = got[None, 0].load().to(Float32) + 0.0
            for r in cutlass.range_constexpr(1, self.shared_ranks):
                total = total + got[None, r].load().to(Float32)
            out.store(total.to(BFloat16))
            cute.autovec_copy(out, cute.local_tile(added[0, token, None], (8,), (v,)))


def summed(dims, tokens):
    return tokens >= SUM_FROM and dims["ranks"] > 1


def workspaces(dims, tokens, arch):
    return [("bf16", (1, tokens, dims["latent"]))] if summed(dims, tokens) else []


def design(dims, tokens, arch):
    made = Tail(dims, tokens, dims["ranks"])
    return f"clusters of {made.ksplit} along the latent, {made.rows} columns each, {made.wr} x {made.wk} warps"


def build(dims, tokens, arch):
    return Summed(dims, tokens, 1) if summed(dims, tokens) else Whole(dims, tokens, dims["ranks"])
