"""oproj_allreduce_residual: the projection with the sum over ranks in its epilogue, then the mix of a row in a cluster.

1. project: a CTA owns some rows of w_o over all of K. A lane queues its own 16-byte pieces in shared memory (cp.async),
   the queue is full before the wait for the kernel before (programmatic dependent launch). Weight rows are the 16-row
   operand of mma.sync, tokens the 8-wide one; 8 consecutive k of a lane feed two MMAs. Sums of warps meet in shared
   memory, in a fixed order: the partial of this rank, rounded to bf16.
2. residual: the partial takes its place among the peers' and all are added in rank order, rounded, and added to prefix.
   Meanwhile the blocks that the mix will read are fetched into L2.
3. mix, a kernel of its own: a row over a cluster of CTAs, every source in registers, two sums over the row in all.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.nvgpu import warp as nvwarp

CTAS = 132  # of the projection at most
WARPS_R, WARPS_K = 2, 4  # of a CTA, along rows of w_o (more for many tokens) and along K
DEPTH = 12  # K steps of weights that a warp has in flight
MIXERS = 64  # a row is mixed by 8, 4 or 2 CTAs, so that there are at most so many, if that can be
PDL = True  # programmatic dependent launch
STEP, LANES = 32, 32  # of K in a 16-byte copy of four lanes, two MMAs
X_TILES = 8  # of 8 tokens and 32 of K, held by a lane at a time
SUM_TILES = 8  # 16 x 8 sums of a warp at most
WARPS, WARPS_MANY, MANY = 16, 8, 8  # of a CTA at most up to MANY tokens and beyond: what registers hold
PEERS = 16  # pieces of peers that a thread holds at a time; from the start where these are all of them
LINE = 64  # bf16 of a line of L2
BELOW_ALL = -3.0e38  # score of a slot that is not mixed


def divisor(n, most):
    """Largest divisor of n that is at most `most`: parameters bend to dims that they do not divide."""
    return max(d for d in range(1, max(1, min(n, most)) + 1) if n % d == 0)


class Project:
    def __init__(self, dims, tokens):
        self.tokens, self.hidden, self.local, self.ranks = tokens, dims["hidden"], dims["local"], dims["ranks"]
        self.slots, self.delta = dims["slots"], dims["variant"] == "delta"
        tiles = self.hidden // 16
        row_tiles = next(d for d in range(1, tiles + 1) if tiles % d == 0 and tiles // d <= CTAS)
        self.rows, self.ctas = 16 * row_tiles, tiles // row_tiles
        self.nt = (tokens + 7) // 8  # token tiles
        wide = [w for w in range(1, row_tiles + 1) if row_tiles % w == 0 and row_tiles // w * self.nt <= SUM_TILES]
        self.wr = max(divisor(row_tiles, WARPS_R), min(wide, default=row_tiles))
        self.tw = row_tiles // self.wr  # row tiles of a warp
        self.wk = divisor(self.local // STEP, min(WARPS_K, (WARPS if tokens <= MANY else WARPS_MANY) // self.wr))
        self.steps = self.local // STEP // self.wk  # of a warp
        self.threads = LANES * self.wr * self.wk
        self.rolled = tokens > MANY  # else the compiler loads so far ahead that registers do not hold it
        self.depth = min(DEPTH, self.steps)
        ahead = max(2, X_TILES // self.nt)  # K steps of activations
        self.x_depth = divisor(self.steps, ahead) if self.rolled else min(ahead, self.steps)
        self.pitch = self.rows + 4  # of the sums: no bank conflicts; they take the place of the queue
        self.bytes = max(32 * self.threads * self.tw * self.depth, 4 * self.pitch * 8 * self.nt * self.wk)
        self.fours = self.rows // 4 * tokens  # results of a CTA
        self.mine = (self.fours + self.threads - 1) // self.threads
        self.early = self.mine * self.ranks <= PEERS
        self.each = divisor(self.mine, PEERS // self.ranks)  # results of a thread at a time

    @cute.jit
    def run(self, y, w_o, peers, prefix, blocks, rank, nb, stream):
        self.kernel(y, w_o, peers, prefix, blocks, rank, nb).launch(
            grid=[self.ctas, 1, 1], block=[self.threads, 1, 1], stream=stream, use_pdl=PDL,
            min_blocks_per_mp=1)  # fmt: skip

    @cute.kernel
    def kernel(
        self, y: cute.Tensor, w_o: cute.Tensor, peers: cute.Tensor, prefix: cute.Tensor, blocks: cute.Tensor,
        rank: Int32, nb: Int32,
    ):  # fmt: skip
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_launch_dependents()
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        smem = cutlass.memory.SmemAllocator()
        place = smem.allocate_array(cutlass.Uint8, self.bytes, byte_alignment=128)
        at = (cute.recast_ptr(place, dtype=BFloat16) + tid * 8).align(16)
        lanes = cutlass.const_expr(8 * self.threads)
        strides = (1, lanes, 2 * lanes, 2 * lanes * self.tw)
        queue = cute.make_tensor(at, cute.make_layout((8, 2, self.tw, self.depth), stride=strides))
        for s in cutlass.range_constexpr(self.depth):  # weights depend on no earlier kernel
            self.load_w(w_o, queue, cta, tid, s)
            cute.arch.cp_async_commit_group()
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_wait()
        self.fetch_blocks(blocks, nb, cta, tid)
        got = cute.make_rmem_tensor(cute.make_layout((4, self.ranks, self.each)), BFloat16)
        before = cute.make_rmem_tensor(cute.make_layout((4, self.each)), BFloat16)
        if cutlass.const_expr(self.early):
            self.load_peers(peers, prefix, got, before, rank, cta, tid, 0)
        strides = (1, self.pitch, self.pitch * 8 * self.nt)
        layout = cute.make_layout((self.rows, 8 * self.nt, self.wk), stride=strides)
        sums = cute.make_tensor(cute.recast_ptr(place, dtype=Float32), layout)
        self.multiply(y, w_o, queue, sums, cta, tid)
        cute.arch.sync_threads()
        if cutlass.const_expr(self.early):
            self.residual(sums, got, before, prefix, rank, cta, tid, 0)
        else:
            for first in cutlass.range(0, self.mine, self.each, unroll=1):
                self.load_peers(peers, prefix, got, before, rank, cta, tid, first)
                self.residual(sums, got, before, prefix, rank, cta, tid, first)

    @cute.jit
    def load_w(self, w_o, queue: cute.Tensor, cta, tid, step):
        """Start copying this lane's weights of one K step."""
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        wk, wr = warp % self.wk, warp // self.wk
        op = cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL)
        atom = cute.make_copy_atom(op, BFloat16, num_bits_per_copy=128)
        k8 = (wk * self.steps + step) * (STEP // 8) + lane % 4  # in vectors of 8
        for t in cutlass.range_constexpr(self.tw):
            for half in cutlass.range_constexpr(2):
                row = w_o[cta * self.rows + (wr * self.tw + t) * 16 + 8 * half + lane // 4, None]
                cute.copy(atom, cute.local_tile(row, (8,), (k8,)), queue[None, half, t, step % self.depth])

    @cute.jit
    def load_x(self, y, xf: cute.Tensor, tid, step):
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        k8 = (warp % self.wk * self.steps + step) * (STEP // 8) + lane % 4
        for n in cutlass.range_constexpr(self.nt):
            row = y[cutlass.min(8 * n + lane // 4, self.tokens - 1), None]  # clamp: a spare column goes nowhere
            cute.autovec_copy(cute.local_tile(row, (8,), (k8,)), xf[None, n])

    @cute.jit
    def fetch_blocks(self, blocks, nb, cta, tid):
        """This CTA's share of the finished blocks into L2."""
        lines = cutlass.const_expr(self.hidden // LINE)
        for at in cutlass.range(cta * self.threads + tid, self.tokens * nb * lines, self.ctas * self.threads, unroll=1):
            token, slot, line = at // lines // nb, at // lines % nb, at % lines
            offset = cute.crd2idx((token, slot, line * LINE), blocks.layout)
            cute.arch.prefetch((blocks.iterator + offset).llvm_ptr, cache_level="L2")

    @cute.jit
    def multiply(self, y, w_o, queue: cute.Tensor, sums: cute.Tensor, cta, tid):
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        wk, wr, g, q = warp % self.wk, warp // self.wk, lane // 4, lane % 4
        wf = cute.make_rmem_tensor(cute.make_layout((8, 2, self.tw)), BFloat16)
        xf = cute.make_rmem_tensor(cute.make_layout((8, self.nt, self.x_depth)), BFloat16)
        # fragments are views of those registers: (pair, row half, k half), tile, MMA, step
        fa = cute.make_tensor(wf.iterator, cute.make_layout(((2, 2, 2), self.tw, 2), stride=((1, 8, 2), 16, 4)))
        shape_b = cute.make_layout(((2, 2), self.nt, 2, self.x_depth), stride=((1, 2), 8, 4, 8 * self.nt))
        fb = cute.make_tensor(xf.iterator, shape_b)
        acc = cute.make_rmem_tensor(cute.make_layout(((2, 2), self.tw, self.nt)), Float32)
        acc.fill(0.0)
        for s in cutlass.range_constexpr(self.x_depth):
            self.load_x(y, xf[None, None, s], tid, s)
        if cutlass.const_expr(self.rolled):
            for turn in cutlass.range(self.steps // self.x_depth, unroll=1):
                for at in cutlass.range_constexpr(self.x_depth):
                    step = turn * self.x_depth + at
                    self.step(queue, wf, acc, fa, fb[None, None, None, at], step)
                    if step + self.depth < self.steps:
                        self.load_w(w_o, queue, cta, tid, step + self.depth)
                    cute.arch.cp_async_commit_group()
                    self.load_x(y, xf[None, None, at], tid, cutlass.min(step + self.x_depth, self.steps - 1))
        else:
            for step in cutlass.range_constexpr(self.steps):
                at = step % self.x_depth
                self.step(queue, wf, acc, fa, fb[None, None, None, at], step)
                if cutlass.const_expr(step + self.depth < self.steps):
                    self.load_w(w_o, queue, cta, tid, step + self.depth)
                cute.arch.cp_async_commit_group()
                if cutlass.const_expr(step + self.x_depth < self.steps):
                    self.load_x(y, xf[None, None, at], tid, step + self.x_depth)
        cute.arch.sync_threads()  # every operand is used up
        for t in cutlass.range_constexpr(self.tw):
            for n in cutlass.range_constexpr(self.nt):
                for e in cutlass.range_constexpr(2):
                    for half in cutlass.range_constexpr(2):
                        sums[(wr * self.tw + t) * 16 + g + 8 * half, n * 8 + 2 * q + e, wk] = acc[(e, half), t, n]

    @cute.jit
    def step(self, queue: cute.Tensor, wf: cute.Tensor, acc: cute.Tensor, fa: cute.Tensor, fb: cute.Tensor, step):
        """One K step of the warp: its weights have landed, its activations are in registers."""
        mma = cute.make_tiled_mma(nvwarp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        cute.arch.cp_async_wait_group(self.depth - 1)
        for t in cutlass.range_constexpr(self.tw):
            for half in cutlass.range_constexpr(2):
                cute.autovec_copy(queue[None, half, t, step % self.depth], wf[None, half, t])
        for k in cutlass.range_constexpr(2):
            cute.gemm(mma, acc, fa[None, None, k], fb[None, None, k], acc)

    def four(self, i, cta, tid):
        """The thread's i-th four columns: which of the CTA, of hidden, and the token; spare threads repeat the last."""
        at = cutlass.min(i * self.threads + tid, self.fours - 1)
        r4 = at % (self.rows // 4)
        return r4, cta * (self.rows // 4) + r4, at // (self.rows // 4)

    @cute.jit
    def load_peers(self, peers, prefix, got: cute.Tensor, before: cute.Tensor, rank, cta, tid, first):
        """What the other ranks have sent, and prefix; the own slot may hold anything and is not read."""
        got.fill(0.0)
        for i in cutlass.range_constexpr(self.each):
            _, c4, token = self.four(first + i, cta, tid)
            for r in cutlass.range_constexpr(self.ranks):
                if r != rank:
                    cute.autovec_copy(cute.local_tile(peers[r, token, None], (4,), (c4,)), got[None, r, i])
            if cutlass.const_expr(self.delta):
                cute.autovec_copy(cute.local_tile(prefix[token, None], (4,), (c4,)), before[None, i])

    @cute.jit
    def residual(self, sums: cute.Tensor, got: cute.Tensor, before: cute.Tensor, prefix, rank, cta, tid, first):
        part = cute.make_rmem_tensor(cute.make_layout((4, self.wk)), Float32)
        own, total = (cute.make_rmem_tensor(cute.make_layout(4), Float32) for _ in range(2))
        out = cute.make_rmem_tensor(cute.make_layout(4), BFloat16)
        for i in cutlass.range_constexpr(self.each):
            r4, c4, token = self.four(first + i, cta, tid)
            for k in cutlass.range_constexpr(self.wk):
                cute.autovec_copy(cute.local_tile(sums[None, token, k], (4,), (r4,)), part[None, k])
            v = part[None, 0].load()
            for k in cutlass.range_constexpr(1, self.wk):
                v = v + part[None, k].load()
            own.store(v.to(BFloat16).to(Float32))
            total.fill(0.0)
            for r in cutlass.range_constexpr(self.ranks):
                for c in cutlass.range_constexpr(4):
                    sent = got[c, r, i].to(Float32)
                    if r == rank:
                        sent = own[c]
                    total[c] = total[c] + sent
            o = total.load().to(BFloat16)
            if cutlass.const_expr(self.delta):
                o = (before[None, i].load().to(Float32) + o.to(Float32)).to(BFloat16)
            out.store(o)
            if (first + i) * self.threads + tid < self.fours:
                cute.autovec_copy(out, cute.local_tile(prefix[token, None], (4,), (c4,)))


class Mix:
    """out from the new prefix and the finished blocks; as in attn_res, after prefix is there."""

    def __init__(self, dims, tokens):
        self.hidden, self.tokens, self.slots = dims["hidden"], tokens, dims["slots"]
        self.split = max(s for s in (2, 4, 8) if s == 2 or tokens * s <= MIXERS)
        self.vectors = self.hidden // 8 // self.split  # of 8 columns, of a CTA: one a thread
        self.warps = (self.vectors + LANES - 1) // LANES
        self.threads = LANES * self.warps
        self.sums = 2 * (self.slots + 1)

    @cute.jit
    def run(self, prefix, blocks, w_norm, w_query, w_out, out, nb, eps, eps_out, stream):
        self.kernel(prefix, blocks, w_norm, w_query, w_out, out, nb, eps, eps_out).launch(
            grid=[self.split, self.tokens, 1], block=[self.threads, 1, 1], cluster=[self.split, 1, 1], stream=stream,
            use_pdl=PDL, min_blocks_per_mp=1)  # fmt: skip

    @cute.kernel
    def kernel(
        self, prefix: cute.Tensor, blocks: cute.Tensor, w_norm: cute.Tensor, w_query: cute.Tensor, w_out: cute.Tensor,
        out: cute.Tensor, nb: Int32, eps: Float32, eps_out: Float32,
    ):  # fmt: skip
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_launch_dependents()
        tid, _, _ = cute.arch.thread_idx()
        rank, token, _ = cute.arch.block_idx()
        cute.arch.cluster_arrive()
        smem = cutlass.memory.SmemAllocator()
        part = smem.allocate_tensor(Float32, cute.make_layout((self.warps, self.sums)), byte_alignment=16)
        totals = smem.allocate_tensor(Float32, cute.make_layout((self.sums, self.split)), byte_alignment=16)
        part_mix = smem.allocate_tensor(Float32, cute.make_layout((self.warps, 1)), byte_alignment=16)
        totals_mix = smem.allocate_tensor(Float32, cute.make_layout((1, self.split)), byte_alignment=16)
        v = cute.make_rmem_tensor(cute.make_layout((8, self.slots + 1)), BFloat16)  # p is the last source
        w = cute.make_rmem_tensor(cute.make_layout((8, 3)), BFloat16)
        v.fill(0.0)  # spare threads and slots that are not mixed add zeros
        w.fill(0.0)
        for j, row in enumerate((w_norm, w_query, w_out)):
            self.load(row, w[None, j], rank, tid)
        wq = w[None, 0].load().to(Float32) * w[None, 1].load().to(Float32)
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_wait()
        self.load(prefix[token, None], v[None, self.slots], rank, tid)
        for s in cutlass.range_constexpr(self.slots):
            if s < nb:
                self.load(blocks[token, s, None], v[None, s], rank, tid)
        values = cute.make_rmem_tensor(cute.make_layout(self.sums), Float32)
        for s in cutlass.range_constexpr(self.slots + 1):
            source = v[None, s].load().to(Float32)
            values[2 * s], values[2 * s + 1] = self.dot(source, wq), self.dot(source, source)
        cute.arch.cluster_wait()  # all have started: their shared memory may be written
        self.reduce(values, part, totals, rank, tid)
        weights = cute.make_rmem_tensor(cute.make_layout(self.slots + 1), Float32)
        top = Float32(BELOW_ALL)
        for s in cutlass.range_constexpr(self.slots + 1):
            weights[s] = values[2 * s] * cute.math.rsqrt(values[2 * s + 1] * (1.0 / self.hidden) + eps)
            if cutlass.const_expr(s < self.slots):
                if s >= nb:
                    weights[s] = Float32(BELOW_ALL)
            top = cutlass.max(top, weights[s])
        total = Float32(0.0)
        for s in cutlass.range_constexpr(self.slots + 1):
            weights[s] = cute.math.exp(weights[s] - top, fastmath=True)
            total += weights[s]
        mix = v[None, self.slots].load().to(Float32) * weights[self.slots]
        for s in cutlass.range_constexpr(self.slots):
            mix = mix + v[None, s].load().to(Float32) * weights[s]
        mix = mix * (1.0 / total)
        square = cute.make_rmem_tensor(cute.make_layout(1), Float32)
        square[0] = self.dot(mix, mix)
        self.reduce(square, part_mix, totals_mix, rank, tid)
        scale = cute.math.rsqrt(square[0] * (1.0 / self.hidden) + eps_out)
        v[None, 0].store((mix * scale * w[None, 2].load().to(Float32)).to(BFloat16))
        if tid < self.vectors:
            cute.autovec_copy(v[None, 0], cute.local_tile(out[token, None], (8,), (rank * self.vectors + tid,)))

    @cute.jit
    def load(self, row: cute.Tensor, reg: cute.Tensor, rank, tid):
        """The thread's columns of a row."""
        if tid < self.vectors:
            cute.autovec_copy(cute.local_tile(row, (8,), (rank * self.vectors + tid,)), reg)

    @cute.jit
    def dot(self, a, b):
        return (a * b).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)

    @cute.jit
    def reduce(self, values: cute.Tensor, part: cute.Tensor, totals: cute.Tensor, rank, tid):
        """Each of `values` summed over the threads of the cluster, in place. part [warps, n], totals [n, split]."""
        n = cutlass.const_expr(cute.size(values))
        mine = self.sum_of_lane(values, n, tid % LANES)
        if tid % LANES < n:
            part[tid // LANES, tid % LANES] = mine
        cute.arch.sync_threads()
        for i in cutlass.range_constexpr((n * self.split + self.threads - 1) // self.threads):
            at = i * self.threads + tid
            if at < n * self.split:
                j, peer = at % n, at // n
                total = part[0, j]
                for w in cutlass.range_constexpr(1, self.warps):
                    total += part[w, j]
                here = totals.iterator + cute.crd2idx((j, rank), totals.layout)
                there = cute.arch.map_dsmem_ptr(here, Int32(peer)).toint()
                cute.arch.inline_ptx("st.shared::cluster.f32 [{$r0}], {$r1};", read_only_args=[there, total])
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        for j in cutlass.range_constexpr(n):
            values[j] = totals[j, 0]
            for r in cutlass.range_constexpr(1, self.split):
                values[j] = values[j] + totals[j, r]

    @cute.jit
    def sum_of_lane(self, values: cute.Tensor, n: cutlass.Constexpr[int], lane):
        """Lane j gets the warp's sum of value j, n <= 32: each step gives half of the values away."""
        held = [values[j] if j < n else Float32(0.0) for j in range(LANES)]
        for step in cutlass.range_constexpr(5):
            offset = cutlass.const_expr(16 >> step)
            high = lane & offset != 0
            for j in cutlass.range_constexpr(offset):
                kept = held[j + offset] if high else held[j]
                given = held[j] if high else held[j + offset]
                held[j] = kept + cute.arch.shuffle_sync_bfly(given, offset=offset)
        return held[0]


class Both:
    def __init__(self, dims, tokens):
        self.project, self.mix = Project(dims, tokens), Mix(dims, tokens)

    @cute.jit
    def __call__(
        self, y: cute.Tensor, w_o: cute.Tensor, peers: cute.Tensor, prefix: cute.Tensor, blocks: cute.Tensor,
        w_norm: cute.Tensor, w_query: cute.Tensor, w_out: cute.Tensor, out: cute.Tensor, rank: Int32, nb: Int32,
        eps: Float32, eps_out: Float32, stream: cuda.CUstream,
    ):  # fmt: skip
        self.project.run(y, w_o, peers, prefix, blocks, rank, nb, stream)
        self.mix.run(prefix, blocks, w_norm, w_query, w_out, out, nb, eps, eps_out, stream)


def design(dims, tokens, arch):
    made = Both(dims, tokens)
    p, m = made.project, made.mix
    return f"mma, {p.ctas} CTAs of {p.wr} x {p.wk} warps with the sum over ranks, then clusters of {m.split} a row"


def build(dims, tokens, arch):
    return Both(dims, tokens)
