"""lm_head_argmax: a CTA a block of the vocabulary, weights streamed once through shared memory; the last CTA chooses.

1. stream: rows of the weight are the 16-row operand of mma.sync, tokens the 8-wide one. The order of K is free, so one
   16-byte copy of a lane is its operands of two MMAs: a lane queues its own weights in shared memory (cp.async) and
   reads them back. Activations lie beside them in the order of the fragments, for all warps. The queue is full before
   the wait for the kernel before (programmatic dependent launch).
2. logits: sums of warps along K meet in shared memory, in the same order for every row: equal rows tie.
3. best: (key, row) of each token in the CTA's block, then of all blocks in the CTA that comes last. A key orders as
   torch.max does: NaN above all, -0 like +0; of equal ones the lowest row wins, so no order of CTAs shows.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.nvgpu import warp as nvwarp

CTAS = 132  # at most so many share the vocabulary
WARPS_R, WARPS_K = 5, 2  # of a CTA, along rows and along K
UNROLL, DEPTH = 1, 6  # K steps of a stage, of each warp; stages of the queue
PDL = True  # programmatic dependent launch
STEP = 32  # of K in a 16-byte copy of four lanes, two MMAs
LANES = 32
NAN_KEY = 2**31 - 1  # above every number's key


def divisor(n, most):
    """Largest divisor of n that is at most `most`: parameters bend to dims that they do not divide."""
    return max(d for d in range(1, max(1, min(n, most)) + 1) if n % d == 0)


def blocks(vocab):
    """CTAs, and row tiles of 16 of each."""
    tiles = vocab // 16
    each = next(d for d in range(1, tiles + 1) if tiles % d == 0 and tiles // d <= CTAS)
    return tiles // each, each


@cute.jit
def key_of(x):
    """A whole number that orders as x does; NaN is NAN_KEY."""
    bits = cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[x])
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    if x == 0.0:
        key = Int32(0)
    if x != x:
        key = Int32(NAN_KEY)
    return key


@cute.jit
def value_of(key):
    """The number that has this key."""
    bits = key ^ ((key >> 31) & 0x7FFFFFFF)
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Float32], read_only_args=[bits])


@cute.jit
def better(key, row, other_key, other_row):
    """The higher key of two, with its row; of equal keys the lower row."""
    if other_key > key:
        key, row = other_key, other_row
    elif other_key == key:
        row = cutlass.min(row, other_row)
    return key, row


@cute.jit
def best_of_warp(key, row):
    for step in cutlass.range_constexpr(5):
        offset = cutlass.const_expr(16 >> step)
        other = cute.arch.shuffle_sync_bfly(key, offset=offset), cute.arch.shuffle_sync_bfly(row, offset=offset)
        key, row = better(key, row, *other)
    return key, row


class Head:
    def __init__(self, dims, tokens):
        self.tokens, self.hidden, self.vocab = tokens, dims["hidden"], dims["vocab"]
        self.with_logits = dims["logits"] == "yes"
        self.ctas, self.row_tiles = blocks(self.vocab)
        self.rows = 16 * self.row_tiles
        self.wr = divisor(self.row_tiles, WARPS_R)
        self.tw = self.row_tiles // self.wr  # row tiles of a warp
        steps = self.hidden // STEP
        self.wk = divisor(steps, WARPS_K)
        self.unroll = divisor(steps // self.wk, UNROLL)
        self.stages = steps // self.wk // self.unroll
        self.warps = self.wr * self.wk
        self.threads = LANES * self.warps
        self.nt = (tokens + 7) // 8  # token tiles
        self.x_at = DEPTH * self.unroll * self.tw * 2 * self.threads * 8  # in the queue, in bf16
        self.pitch = self.rows + 4  # of the sums: no bank conflicts
        queue = 2 * (self.x_at + DEPTH * self.unroll * self.wk * self.nt * LANES * 8)
        self.bytes = max(queue, 4 * self.pitch * 8 * self.nt * self.wk)

    @cute.jit
    def run(self, h, w_head, val, ids, logits, base, part, count, stream):
        self.kernel(h, w_head, val, ids, logits, base, part, count).launch(
            grid=[self.ctas, 1, 1], block=[self.threads, 1, 1], stream=stream, use_pdl=PDL,
            min_blocks_per_mp=1)  # fmt: skip

    @cute.kernel
    def kernel(
        self, h: cute.Tensor, w_head: cute.Tensor, val: cute.Tensor, ids: cute.Tensor, logits: cute.Tensor,
        base: Int32, part: cute.Tensor, count: cute.Tensor,
    ):  # fmt: skip
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_launch_dependents()
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        smem = cutlass.memory.SmemAllocator()
        place = smem.allocate_array(cutlass.Uint8, self.bytes, byte_alignment=128)
        ticket = smem.allocate_tensor(Int32, cute.make_layout(1), byte_alignment=16)
        acc = self.stream(h, w_head, place, cta, tid)
        wide = cutlass.const_expr(8 * self.nt)
        layout = cute.make_layout((self.rows, wide, self.wk), stride=(1, self.pitch, self.pitch * wide))
        sums = cute.make_tensor(cute.recast_ptr(place, dtype=Float32), layout)
        self.keep(acc, sums, tid)
        cute.arch.sync_threads()
        self.best_of_block(sums, logits, part, cta, tid)
        cute.arch.sync_threads()  # the CTA's part is written
        if tid == 0:
            ticket[0] = cute.arch.atomic_add(count.iterator.llvm_ptr, Int32(1), sem="acq_rel", scope="gpu")
        cute.arch.sync_threads()
        if ticket[0] == self.ctas - 1:
            if tid == 0:
                count[0] = 0  # as the next call needs it
            self.best_of_all(part, val, ids, base, tid)

    @cute.jit
    def stream(self, h, w_head, place, cta, tid):
        """Float32 sums of this warp's rows and part of K, for all tokens."""
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        wk, wr = warp % self.wk, warp // self.wk
        threads = cutlass.const_expr(self.threads * 8)
        at = (cute.recast_ptr(place, dtype=BFloat16) + tid * 8).align(16)
        layout = cute.make_layout(
            (8, 2, self.tw, self.unroll, DEPTH),
            stride=(1, threads, 2 * threads, 2 * threads * self.tw, 2 * threads * self.tw * self.unroll))  # fmt: skip
        queue = cute.make_tensor(at, layout)  # what this lane has copied itself
        steps = cutlass.const_expr(self.unroll * self.nt * LANES * 8)
        at = (cute.recast_ptr(place, dtype=BFloat16) + self.x_at + wk * steps + lane * 8).align(16)
        layout = cute.make_layout(
            (8, self.nt, self.unroll, DEPTH), stride=(1, LANES * 8, LANES * 8 * self.nt, steps * self.wk))  # fmt: skip
        rows = cute.make_tensor(at, layout)  # shared by the warps of this part of K
        for s in cutlass.range_constexpr(DEPTH - 1):  # weights depend on no earlier kernel
            if cutlass.const_expr(s < self.stages):
                self.load_w(w_head, queue[None, None, None, None, s], cta, s, lane, wk, wr)
            cute.arch.cp_async_commit_group()
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_wait()
        for s in cutlass.range_constexpr(DEPTH - 1):
            if cutlass.const_expr(s < self.stages):
                self.load_x(h, rows[None, None, None, s], s, lane, wk, wr)
            cute.arch.cp_async_commit_group()
        acc = cute.make_rmem_tensor(cute.make_layout(((2, 2), self.tw, self.nt)), Float32)
        acc.fill(0.0)
        for s in cutlass.range(self.stages, unroll=1):
            cute.arch.cp_async_wait_group(DEPTH - 2)  # stage s has landed
            cute.arch.sync_threads()  # for all warps, which have also used up the stage before
            later = s + DEPTH - 1
            if later < self.stages:
                self.load_w(w_head, queue[None, None, None, None, later % DEPTH], cta, later, lane, wk, wr)
                self.load_x(h, rows[None, None, None, later % DEPTH], later, lane, wk, wr)
            cute.arch.cp_async_commit_group()
            self.multiply(queue[None, None, None, None, s % DEPTH], rows[None, None, None, s % DEPTH], acc)
        cute.arch.sync_threads()  # every operand is used up
        return acc

    def copy(self):
        op = cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL)
        return cute.make_copy_atom(op, BFloat16, num_bits_per_copy=128)

    @cute.jit
    def load_w(self, w_head, slot: cute.Tensor, cta, stage, lane, wk, wr):
        k8 = (stage * self.wk + wk) * self.unroll * (STEP // 8) + lane % 4  # in vectors of 8
        for t in cutlass.range_constexpr(self.tw):
            for half in cutlass.range_constexpr(2):
                row = w_head[cta * self.rows + (wr * self.tw + t) * 16 + 8 * half + lane // 4, None]
                for u in cutlass.range_constexpr(self.unroll):
                    cute.copy(self.copy(), cute.local_tile(row, (8,), (k8 + 4 * u,)), slot[None, half, t, u])

    @cute.jit
    def load_x(self, h, slot: cute.Tensor, stage, lane, wk, wr):
        """This warp's share of a stage's activations, in the order of the fragments."""
        k8 = (stage * self.wk + wk) * self.unroll * (STEP // 8) + lane % 4
        for n in cutlass.range_constexpr(self.nt):
            row = h[cutlass.min(8 * n + lane // 4, self.tokens - 1), None]  # clamp: a spare column goes nowhere
            for u in cutlass.range_constexpr(self.unroll):
                if wr == (n * self.unroll + u) % self.wr:
                    cute.copy(self.copy(), cute.local_tile(row, (8,), (k8 + 4 * u,)), slot[None, n, u])

    @cute.jit
    def multiply(self, slot: cute.Tensor, rows: cute.Tensor, acc: cute.Tensor):
        mma = cute.make_tiled_mma(nvwarp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        rw = cute.make_rmem_tensor(cute.make_layout((8, 2, self.tw)), BFloat16)
        rx = cute.make_rmem_tensor(cute.make_layout((8, self.nt)), BFloat16)
        # fragments are views of those registers: (pair, row half, k half), tile, MMA
        fa = cute.make_tensor(rw.iterator, cute.make_layout(((2, 2, 2), self.tw, 2), stride=((1, 8, 2), 16, 4)))
        fb = cute.make_tensor(rx.iterator, cute.make_layout(((2, 2), self.nt, 2), stride=((1, 2), 8, 4)))
        for u in cutlass.range_constexpr(self.unroll):
            for t in cutlass.range_constexpr(self.tw):
                for half in cutlass.range_constexpr(2):
                    cute.autovec_copy(slot[None, half, t, u], rw[None, half, t])
            for n in cutlass.range_constexpr(self.nt):
                cute.autovec_copy(rows[None, n, u], rx[None, n])
            for k in cutlass.range_constexpr(2):
                cute.gemm(mma, acc, fa[None, None, k], fb[None, None, k], acc)

    @cute.jit
    def keep(self, acc: cute.Tensor, sums: cute.Tensor, tid):
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        wk, wr, g, q = warp % self.wk, warp // self.wk, lane // 4, lane % 4
        for t in cutlass.range_constexpr(self.tw):
            for n in cutlass.range_constexpr(self.nt):
                for e in cutlass.range_constexpr(2):
                    for half in cutlass.range_constexpr(2):
                        sums[(wr * self.tw + t) * 16 + g + 8 * half, n * 8 + 2 * q + e, wk] = acc[(e, half), t, n]

    @cute.jit
    def best_of_block(self, sums: cute.Tensor, logits, part, cta, tid):
        """A warp a token: its logits, and the best of this CTA's rows to `part`."""
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        for token in cutlass.range(warp, self.tokens, self.warps, unroll=1):
            key, row = Int32(-NAN_KEY - 1), Int32(NAN_KEY)
            for i in cutlass.range_constexpr((self.rows + LANES - 1) // LANES):
                at = i * LANES + lane
                if at < self.rows:
                    v = sums[at, token, 0]
                    for k in cutlass.range_constexpr(1, self.wk):
                        v += sums[at, token, k]
                    if cutlass.const_expr(self.with_logits):
                        logits[token, cta * self.rows + at] = v
                    key, row = better(key, row, key_of(v), cta * self.rows + at)
            key, row = best_of_warp(key, row)
            if lane == 0:
                part[cta, token, 0], part[cta, token, 1] = key, row

    @cute.jit
    def best_of_all(self, part, val, ids, base, tid):
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        for token in cutlass.range(warp, self.tokens, self.warps, unroll=1):
            key, row = Int32(-NAN_KEY - 1), Int32(NAN_KEY)
            for i in cutlass.range_constexpr((self.ctas + LANES - 1) // LANES):
                at = cutlass.min(i * LANES + lane, self.ctas - 1)  # spare lanes repeat the last block
                key, row = better(key, row, part[at, token, 0], part[at, token, 1])
            key, row = best_of_warp(key, row)
            if lane == 0:
                val[token], ids[token] = value_of(key), base + row


class Best(Head):
    @cute.jit
    def __call__(
        self, h: cute.Tensor, w_head: cute.Tensor, val: cute.Tensor, ids: cute.Tensor, base: Int32, part: cute.Tensor,
        count: cute.Tensor, stream: cuda.CUstream,
    ):  # fmt: skip
        self.run(h, w_head, val, ids, val, base, part, count, stream)


class WithLogits(Head):
    @cute.jit
    def __call__(
        self, h: cute.Tensor, w_head: cute.Tensor, val: cute.Tensor, ids: cute.Tensor, logits: cute.Tensor,
        base: Int32, part: cute.Tensor, count: cute.Tensor, stream: cuda.CUstream,
    ):  # fmt: skip
        self.run(h, w_head, val, ids, logits, base, part, count, stream)


def workspaces(dims, tokens, arch):
    return [("i32", (blocks(dims["vocab"])[0], tokens, 2)), ("i32", (1,))]


def design(dims, tokens, arch):
    made = Head(dims, tokens)
    return f"mma, {made.ctas} CTAs of {made.rows} rows, {made.wr} x {made.wk} warps; the last CTA chooses"


def build(dims, tokens, arch):
    return (WithLogits if dims["logits"] == "yes" else Best)(dims, tokens)
