"""mla_q: a cluster of CTAs a head: norm, q_b, the exchange of Q, W_UK; all weights in registers before any input.

A head's cluster is PARTS x KSPLIT CTAs. Each owns 192 / PARTS rows of q_b over 1 / KSPLIT of q_lora, and an equal share
of the 512 latent columns of W_UK.
1. weights: the CTA's bytes of q_b and W_UK are all on their way before the wait for the kernel before (programmatic
   dependent launch).
2. norm: a warp a token; qc in bf16 goes to shared memory in the order in which a lane of mma.sync reads it. With many
   tokens each CTA norms some of them for the whole cluster.
3. q_b: weight rows are the 16-row operand, tokens the 8-wide one, K over the warps. Weights stay in registers while
   token tiles pass. Sums of warps meet in shared memory, those of CTAs through the cluster, in a fixed order.
4. W_UK: latents are contiguous in memory where mma.sync wants pairs along nope: a lane loads VECTOR latents of four
   nope rows, the rows become k of its fragments, the latents rows g and g + 8 of VECTOR / 2 MMAs.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32
from cutlass.cute.nvgpu import warp as nvwarp

PARTS, KSPLIT = 4, 2  # CTAs along the rows of q_b, and along q_lora
WARPS, WARPS_MANY, MANY = 8, 8, 16  # warps along q_lora, up to MANY tokens and beyond
VECTOR = 8  # latents of a load of W_UK
SHARE = 16  # from so many tokens on the CTAs of a cluster share the norm, else each norms all tokens
AHEAD, PDL = 1, True  # tokens that a warp loads before it norms them; programmatic dependent launch
STEP, STEP_UK = 32, 16  # of q_lora in a 16-byte load of four lanes, two MMAs; nope rows of one MMA
LANES = 32


def divisor(n, most):
    """Largest divisor of n that is at most `most`: parameters bend to dims that they do not divide."""
    return max(d for d in range(1, max(1, min(n, most)) + 1) if n % d == 0)


class Query:
    def __init__(self, dims, tokens):
        self.tokens, self.heads, self.q_lora = tokens, dims["heads"], dims["q_lora"]
        self.nope, self.latent, self.rope = dims["nope"], dims["latent"], dims["rope"]
        self.head_rows = self.nope + self.rope
        self.ksplit = divisor(self.q_lora // STEP, KSPLIT)
        self.cluster = PARTS * self.ksplit
        self.rows = self.head_rows // PARTS  # of q_b, of a CTA
        self.row_tiles = self.rows // 16
        self.kc = self.q_lora // self.ksplit
        self.warps = divisor(self.kc // STEP, WARPS if tokens <= MANY else WARPS_MANY)
        self.steps = self.kc // STEP // self.warps  # of a warp
        self.threads = LANES * self.warps
        self.vectors = self.q_lora // 8  # of a token's row
        self.per_lane = (self.vectors + LANES - 1) // LANES
        self.tiles = (tokens + 7) // 8
        self.sharers = self.cluster if tokens >= SHARE else 1  # CTAs that norm different tokens
        # W_UK: `groups` of 8 * VECTOR columns over warps_c warps, nope over warps_n
        self.columns = self.latent // self.cluster
        self.groups = self.columns // (8 * VECTOR)
        self.warps_c = divisor(self.groups, self.warps)
        self.warps_n = divisor(self.nope // STEP_UK, self.warps // self.warps_c)
        self.own_groups, self.own_steps = self.groups // self.warps_c, self.nope // STEP_UK // self.warps_n
        # bytes of shared memory: x and sums of warps, then in their place the CTA's sums, Q and sums of warps again
        self.pitch, self.pitch_uk, self.pitch_q = self.rows + 4, self.columns + 4, self.nope + 16  # no bank conflicts
        wide = 8 * self.tiles
        self.q_at = 4 * self.rows * wide
        self.sums_uk_at = self.q_at + 2 * self.pitch_q * wide
        self.sums_at = max(2 * self.kc * wide, self.sums_uk_at)
        self.bytes = max(
            self.sums_at + 4 * wide * self.pitch * self.warps, self.sums_uk_at + 4 * wide * self.pitch_uk * self.warps_n
        )

    @cute.jit
    def __call__(
        self, p: cute.Tensor, w_qn: cute.Tensor, w_qb: cute.Tensor, w_uk: cute.Tensor, query: cute.Tensor,
        eps: Float32, scale: Float32, stream: cuda.CUstream,
    ):  # fmt: skip
        self.kernel(p, w_qn, w_qb, w_uk, query, eps, scale).launch(
            grid=[self.cluster, self.heads, 1], block=[self.threads, 1, 1], cluster=[self.cluster, 1, 1],
            stream=stream, use_pdl=PDL, min_blocks_per_mp=1)  # fmt: skip

    @cute.kernel
    def kernel(
        self, p: cute.Tensor, w_qn: cute.Tensor, w_qb: cute.Tensor, w_uk: cute.Tensor, query: cute.Tensor,
        eps: Float32, scale: Float32,
    ):  # fmt: skip
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_launch_dependents()
        tid, _, _ = cute.arch.thread_idx()
        rank, head, _ = cute.arch.block_idx()
        part, split = rank // self.ksplit, rank % self.ksplit
        smem = cutlass.memory.SmemAllocator()
        place = smem.allocate_array(cutlass.Uint8, self.bytes, byte_alignment=128)
        # 1. weights
        wb = cute.make_rmem_tensor(cute.make_layout((8, 2, self.row_tiles, self.steps)), BFloat16)
        wu = cute.make_rmem_tensor(cute.make_layout((VECTOR, 4, self.own_groups, self.own_steps)), BFloat16)
        wn = cute.make_rmem_tensor(cute.make_layout((8, self.per_lane)), BFloat16)
        if cutlass.const_expr(self.sharers > 1):
            cute.arch.cluster_arrive()
        self.load_weights(w_qn, w_qb, w_uk, wn, wb, wu, head, rank, part, split, tid)
        if cutlass.const_expr(self.sharers > 1):
            cute.arch.cluster_wait()  # all have started: their shared memory may be written
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_wait()
        # 2. norm, then 3. q_b
        x_shape = (8, LANES, self.kc // STEP, self.tiles)  # vector, lane of the fragment, K step, token tile
        x = cute.make_tensor(cute.recast_ptr(place, dtype=BFloat16), cute.make_layout(x_shape))
        self.norm(p, wn, x, rank, eps, tid)
        if cutlass.const_expr(self.sharers > 1):
            self.meet()
        else:
            cute.arch.sync_threads()
        wide = cutlass.const_expr(8 * self.tiles)
        strides = (1, self.pitch, self.pitch * wide)
        at = cute.recast_ptr(place + self.sums_at, dtype=Float32)
        sums = cute.make_tensor(at, cute.make_layout((self.rows, wide, self.warps), stride=strides))
        self.multiply_qb(wb, x, sums, tid)
        cute.arch.sync_threads()  # x is used up: the CTA's sums and Q take its place
        mine = cute.make_tensor(cute.recast_ptr(place, dtype=Float32), cute.make_layout((self.rows, wide)))
        self.add_warps(sums, mine, tid)
        self.meet()
        at = cute.recast_ptr(place + self.q_at, dtype=BFloat16)
        q = cute.make_tensor(at, cute.make_layout((self.nope, wide), stride=(1, self.pitch_q)))
        self.gather(mine, q, query, rank, head, scale, tid)
        if cutlass.const_expr(self.cluster > 1):
            cute.arch.cluster_arrive()
        cute.arch.sync_threads()
        # 4. W_UK
        strides = (1, self.pitch_uk, self.pitch_uk * wide)
        at = cute.recast_ptr(place + self.sums_uk_at, dtype=Float32)
        sums = cute.make_tensor(at, cute.make_layout((self.columns, wide, self.warps_n), stride=strides))
        self.multiply_uk(wu, q, sums, tid)
        cute.arch.sync_threads()
        self.store(sums, query, rank, head, scale, tid)
        if cutlass.const_expr(self.cluster > 1):  # a peer may still read this CTA's sums
            cute.arch.cluster_wait()

    @cute.jit
    def meet(self):
        if cutlass.const_expr(self.cluster > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

    @cute.jit
    def load_weights(
        self, w_qn, w_qb, w_uk, wn: cute.Tensor, wb: cute.Tensor, wu: cute.Tensor, head, rank, part, split, tid
    ):  # fmt: skip
        """This lane's part of the CTA's q_b, W_UK and of the norm: every load is in flight before the first use."""
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        g, q = lane // 4, lane % 4
        wide, narrow = (
            cute.make_copy_atom(
                cute.nvgpu.CopyG2ROp(), BFloat16, num_bits_per_copy=bits,
                l1c_evict_priority=cute.nvgpu.CacheEvictionPriority.NO_ALLOCATE)  # fmt: skip
            for bits in (128, 16 * VECTOR)
        )
        k8 = (split * self.kc + warp * self.steps * STEP) // 8 + q  # in vectors of 8
        for s in cutlass.range_constexpr(self.steps):
            for t in cutlass.range_constexpr(self.row_tiles):
                for half in cutlass.range_constexpr(2):
                    row = w_qb[head * self.head_rows + part * self.rows + t * 16 + g + 8 * half, None]
                    cute.copy(wide, cute.local_tile(row, (8,), (k8 + 4 * s,)), wb[None, half, t, s])
        wc, wr = warp % self.warps_c, warp // self.warps_c % self.warps_n
        for s in cutlass.range_constexpr(self.own_steps):
            for k in cutlass.range_constexpr(4):
                row = w_uk[head, (wr * self.own_steps + s) * STEP_UK + 4 * q + k, None]
                for i in cutlass.range_constexpr(self.own_groups):
                    at = rank * self.groups * 8 + (wc * self.own_groups + i) * 8 + g  # in vectors of VECTOR
                    cute.copy(narrow, cute.local_tile(row, (VECTOR,), (at,)), wu[None, k, i, s])
        for j in cutlass.range_constexpr(self.per_lane):
            at = cutlass.min(j * LANES + lane, self.vectors - 1)
            cute.autovec_copy(cute.local_tile(w_qn, (8,), (at,)), wn[None, j])

    @cute.jit
    def norm(self, p, wn: cute.Tensor, x: cute.Tensor, rank, eps, tid):
        """qc of this CTA's tokens, in bf16. Lanes without a vector of the row repeat its last one."""
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        each = cutlass.const_expr(self.warps * self.sharers)  # tokens of a round
        rounds = cutlass.const_expr((self.tokens + each - 1) // each)
        ahead = cutlass.const_expr(min(AHEAD, rounds))
        mine = warp if cutlass.const_expr(self.sharers == 1) else warp * self.sharers + rank
        got = cute.make_rmem_tensor(cute.make_layout((8, self.per_lane, ahead)), BFloat16)
        normed = cute.make_rmem_tensor(cute.make_layout(8), BFloat16)
        for first in cutlass.range_constexpr(0, rounds, ahead):
            for i in cutlass.range_constexpr(ahead):
                row = p[cutlass.min((first + i) * each + mine, self.tokens - 1), None]
                for j in cutlass.range_constexpr(self.per_lane):
                    at = cutlass.min(j * LANES + lane, self.vectors - 1)
                    cute.autovec_copy(cute.local_tile(row, (8,), (at,)), got[None, j, i])
            for i in cutlass.range_constexpr(ahead):
                token = (first + i) * each + mine
                square = Float32(0.0)
                for j in cutlass.range_constexpr(self.per_lane):
                    v = got[None, j, i].load().to(Float32)
                    own = (v * v).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)
                    if j * LANES + lane < self.vectors:
                        square += own
                square = cute.arch.warp_reduction_sum(square)
                factor = cute.math.rsqrt(square * (1.0 / self.q_lora) + eps)
                for j in cutlass.range_constexpr(self.per_lane):
                    v, w = got[None, j, i].load().to(Float32), wn[None, j].load().to(Float32)
                    normed.store((v * factor * w).to(BFloat16))
                    vector = j * LANES + lane
                    if vector < self.vectors and token < self.tokens:
                        self.give(normed, x, vector, token, rank)

    @cute.jit
    def give(self, normed: cute.Tensor, x: cute.Tensor, vector, token, rank):
        """8 values of qc to where they are multiplied: the CTAs that own this part of q_lora, or none but this one."""
        split, at = vector // (self.kc // 8), vector % (self.kc // 8)
        place = (0, token % 8 * 4 + at % 4, at // 4, token // 8)
        if cutlass.const_expr(self.sharers == 1):
            if split == rank % self.ksplit:
                cute.autovec_copy(normed, x[None, *place[1:]])
        else:
            for part in cutlass.range_constexpr(PARTS):
                there = x.iterator + cute.crd2idx(place, x.layout)
                peer = cute.arch.map_dsmem_ptr(there, Int32(part * self.ksplit + split))
                cute.autovec_copy(normed, cute.make_tensor(peer.align(16), cute.make_layout(8)))

    @cute.jit
    def multiply_qb(self, wb: cute.Tensor, x: cute.Tensor, sums: cute.Tensor, tid):
        """Sums of this warp's part of q_lora. 8 consecutive k of a lane feed two MMAs: the order of K is free."""
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        g, q = lane // 4, lane % 4
        mma = cute.make_tiled_mma(nvwarp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        shape_a = cute.make_layout(
            ((2, 2, 2), self.row_tiles, 2, self.steps), stride=((1, 8, 2), 16, 4, 16 * self.row_tiles))  # fmt: skip
        fa = cute.make_tensor(wb.iterator, shape_a)
        rx = cute.make_rmem_tensor(cute.make_layout((8, self.steps)), BFloat16)
        fb = cute.make_tensor(rx.iterator, cute.make_layout(((2, 2), 1, 2, self.steps), stride=((1, 2), 0, 4, 8)))
        acc = cute.make_rmem_tensor(cute.make_layout(((2, 2), self.row_tiles, 1)), Float32)
        for n in cutlass.range_constexpr(self.tiles):
            there = cutlass.min(g, self.tokens - 1 - 8 * n)  # clamp: a spare column goes nowhere
            for s in cutlass.range_constexpr(self.steps):
                cute.autovec_copy(x[None, there * 4 + q, warp * self.steps + s, n], rx[None, s])
            acc.fill(0.0)
            for s in cutlass.range_constexpr(self.steps):
                for k in cutlass.range_constexpr(2):
                    cute.gemm(mma, acc, fa[None, None, k, s], fb[None, None, k, s], acc)
            for t in cutlass.range_constexpr(self.row_tiles):
                for e in cutlass.range_constexpr(2):
                    for half in cutlass.range_constexpr(2):
                        sums[t * 16 + g + 8 * half, n * 8 + 2 * q + e, warp] = acc[(e, half), t, 0]

    @cute.jit
    def add_warps(self, sums: cute.Tensor, mine: cute.Tensor, tid):
        """The CTA's sums of four rows at a time, in the order of the warps."""
        four = cute.make_rmem_tensor(cute.make_layout(4), Float32)
        count = cutlass.const_expr(self.rows // 4 * self.tokens)
        for i in cutlass.range_constexpr((count + self.threads - 1) // self.threads):
            at = i * self.threads + tid
            if at < count:
                r4, token = at % (self.rows // 4), at // (self.rows // 4)
                four.store(self.total(sums, r4, token, self.warps))
                cute.autovec_copy(four, cute.local_tile(mine[None, token], (4,), (r4,)))

    @cute.jit
    def total(self, sums: cute.Tensor, four, token, warps: cutlass.Constexpr[int]):
        got = cute.make_rmem_tensor(cute.make_layout((4, warps)), Float32)
        for w in cutlass.range_constexpr(warps):
            cute.autovec_copy(cute.local_tile(sums[None, token, w], (4,), (four,)), got[None, w])
        v = got[None, 0].load()
        for w in cutlass.range_constexpr(1, warps):
            v = v + got[None, w].load()
        return v

    @cute.jit
    def across(self, mine: cute.Tensor, row, token):
        """Q in bf16, four rows of the head: sums over the CTAs that share them, in the order of K."""
        got = cute.make_rmem_tensor(cute.make_layout((4, self.ksplit)), Float32)
        offset = row % self.rows + token * self.rows
        for s in cutlass.range_constexpr(self.ksplit):
            at = mine.iterator + offset
            if cutlass.const_expr(self.cluster > 1):
                at = cute.arch.map_dsmem_ptr(at, Int32(row // self.rows * self.ksplit + s))
            cute.autovec_copy(cute.make_tensor(at.align(16), cute.make_layout(4)), got[None, s])
        v = got[None, 0].load()
        for s in cutlass.range_constexpr(1, self.ksplit):
            v = v + got[None, s].load()
        return v.to(BFloat16)

    @cute.jit
    def gather(self, mine: cute.Tensor, q: cute.Tensor, query, rank, head, scale, tid):
        """Q of all nope rows to shared memory, and this CTA's share of the pe rows to the result."""
        four = cute.make_rmem_tensor(cute.make_layout(4), BFloat16)
        count = cutlass.const_expr(self.nope // 4 * self.tokens)
        for i in cutlass.range_constexpr((count + self.threads - 1) // self.threads):
            at = i * self.threads + tid
            if at < count:
                r4, token = at % (self.nope // 4), at // (self.nope // 4)
                four.store(self.across(mine, 4 * r4, token))
                cute.autovec_copy(four, cute.local_tile(q[None, token], (4,), (r4,)))
        share = cutlass.const_expr(self.rope // self.cluster // 4)  # in fours
        out = cute.make_rmem_tensor(cute.make_layout(4), query.element_type)
        for i in cutlass.range_constexpr((share * self.tokens + self.threads - 1) // self.threads):
            at = i * self.threads + tid
            if at < share * self.tokens:
                r4, token = rank * share + at % share, at // share
                v = self.across(mine, self.nope + 4 * r4, token).to(Float32) * scale
                out.store(v.to(query.element_type))
                cute.autovec_copy(out, cute.local_tile(query[token, head, None], (4,), (self.latent // 4 + r4,)))

    @cute.jit
    def multiply_uk(self, wu: cute.Tensor, q: cute.Tensor, sums: cute.Tensor, tid):
        """Sums of this warp's nope rows; warps beyond warps_c x warps_n have nothing to do."""
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        g, k4 = lane // 4, lane % 4
        wc, wr = warp % self.warps_c, warp // self.warps_c % self.warps_n
        mma = cute.make_tiled_mma(nvwarp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        mmas = cutlass.const_expr(self.own_groups * VECTOR // 2)
        fa = cute.make_rmem_tensor(cute.make_layout(((2, 2, 2), mmas, self.own_steps)), BFloat16)
        for s in cutlass.range_constexpr(self.own_steps):
            for m in cutlass.range_constexpr(mmas):
                for half in cutlass.range_constexpr(2):
                    for k in cutlass.range_constexpr(4):  # pairs of nope rows side by side
                        fa[(k % 2, half, k // 2), m, s] = wu[2 * m % VECTOR + half, k, 2 * m // VECTOR, s]
        rq = cute.make_rmem_tensor(cute.make_layout((4, self.own_steps)), BFloat16)
        fb = cute.make_tensor(rq.iterator, cute.make_layout(((2, 2), 1, self.own_steps), stride=((1, 2), 0, 4)))
        acc = cute.make_rmem_tensor(cute.make_layout(((2, 2), mmas, 1)), Float32)
        for n in cutlass.range_constexpr(self.tiles):
            row = q[None, cutlass.min(8 * n + g, self.tokens - 1)]  # clamp: a spare column goes nowhere
            for s in cutlass.range_constexpr(self.own_steps):
                at = (wr * self.own_steps + s) * (STEP_UK // 4) + k4
                cute.autovec_copy(cute.local_tile(row, (4,), (at,)), rq[None, s])
            acc.fill(0.0)
            for s in cutlass.range_constexpr(self.own_steps):
                cute.gemm(mma, acc, fa[None, None, s], fb[None, None, s], acc)
            if warp < self.warps_c * self.warps_n:
                for m in cutlass.range_constexpr(mmas):
                    for e in cutlass.range_constexpr(2):
                        for half in cutlass.range_constexpr(2):
                            group = wc * self.own_groups + 2 * m // VECTOR
                            column = (group * 8 + g) * VECTOR + 2 * m % VECTOR + half
                            sums[column, n * 8 + 2 * k4 + e, wr] = acc[(e, half), m, 0]

    @cute.jit
    def store(self, sums: cute.Tensor, query, rank, head, scale, tid):
        out = cute.make_rmem_tensor(cute.make_layout(4), query.element_type)
        count = cutlass.const_expr(self.columns // 4 * self.tokens)
        for i in cutlass.range_constexpr((count + self.threads - 1) // self.threads):
            at = i * self.threads + tid
            if at < count:
                c4, token = at % (self.columns // 4), at // (self.columns // 4)
                v = self.total(sums, c4, token, self.warps_n).to(BFloat16).to(Float32) * scale
                out.store(v.to(query.element_type))
                there = cute.local_tile(query[token, head, None], (4,), (rank * (self.columns // 4) + c4,))
                cute.autovec_copy(out, there)


def design(dims, tokens, arch):
    made = Query(dims, tokens)
    return f"cluster of {PARTS} x {made.ksplit} CTAs a head, {made.warps} warps along q_lora"


def build(dims, tokens, arch):
    return Query(dims, tokens)
