import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32

LOWEST = -2147483648
HIGHEST = 2147483647
INFINITE = 2139095040  # bits of +inf
SMS = 132


@cute.jit
def key_of(x: Float32) -> Int32:
    """A signed integer in the order of the floats: -0 is +0, every NaN is the one largest key."""
    bits = Int32(cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[x]))
    key = bits
    if bits < 0:
        key = Int32(LOWEST) - bits
    if key > INFINITE:
        key = Int32(HIGHEST)
    if key < -INFINITE:
        key = Int32(HIGHEST)
    return key


@cute.jit
def value_of(key: Int32) -> Float32:
    bits = key
    if key < 0:
        bits = Int32(LOWEST) - key
    return Float32(
        cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Float32], read_only_args=[bits])
    )


class Head:
    """Tokens are the A operand (16 rows, the upper ones zero registers for up to 8 tokens), 8 vocabulary rows a column
    tile of B; so a CTA's tile may be 8 or 16 rows. K is split over the warps. The maximum of a tile goes to a
    workspace as an ordered key and a row; the CTA that arrives last reduces those and resets the counter."""

    def __init__(self, vocab, hidden, tokens, warps, rows):
        self.n, self.k, self.tokens, self.warps, self.rows = vocab, hidden, tokens, warps, rows
        self.blocks = vocab // rows
        self.cols = rows // 8
        self.halves = (tokens + 7) // 8  # groups of 8 tokens
        self.tiles = (tokens + 15) // 16
        self.per_warp = hidden // warps
        self.unroll = next(u for u in (4, 7, 6, 5, 3, 2, 1) if (self.per_warp // 32) % u == 0)
        self.bits = rows.bit_length() - 1

    @cute.jit
    def __call__(
        self,
        mX: cute.Tensor,
        mW: cute.Tensor,
        mVal: cute.Tensor,
        mId: cute.Tensor,
        base: Int32,
        mKey: cute.Tensor,
        mRow: cute.Tensor,
        mCount: cute.Tensor,
        stream: cuda.CUstream,
    ):
        self.kernel(mX, mW, mVal, mId, base, mKey, mRow, mCount).launch(
            grid=[self.blocks, 1, 1], block=[32 * self.warps, 1, 1], stream=stream, use_pdl=True, min_blocks_per_mp=1
        )

    @cute.kernel
    def kernel(
        self,
        mX: cute.Tensor,
        mW: cute.Tensor,
        mVal: cute.Tensor,
        mId: cute.Tensor,
        base: Int32,
        mKey: cute.Tensor,
        mRow: cute.Tensor,
        mCount: cute.Tensor,
    ):
        t, _, _ = cute.arch.thread_idx()
        tile, _, _ = cute.arch.block_idx()
        lane, warp = t % 32, cute.arch.make_warp_uniform(t // 32)
        g, q = lane // 4, lane % 4
        shared = cutlass.memory.SmemAllocator()
        pitch = self.rows + 1
        layout = cute.make_layout(
            (self.rows, 8 * self.halves, self.warps), stride=(1, pitch, pitch * 8 * self.halves)
        )
        sC = shared.allocate_tensor(Float32, layout, byte_alignment=16)
        sArrived = shared.allocate_tensor(Int32, cute.make_layout((1,)), byte_alignment=16)
        gW = [mW[tile * self.rows + 8 * c + g, None] for c in range(self.cols)]
        start = warp * (self.per_warp // 8) + q  # in vectors of 8
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyG2ROp(),
            BFloat16,
            num_bits_per_copy=128,
            l1c_evict_priority=cute.nvgpu.CacheEvictionPriority.NO_ALLOCATE,
        )
        steps = self.per_warp // (32 * self.unroll)
        rW = [cute.make_rmem_tensor(cute.make_layout((8, self.cols, self.unroll)), BFloat16) for _ in range(2)]
        rX = cute.make_rmem_tensor(cute.make_layout((8, 2 * self.tiles, self.unroll)), BFloat16)
        if cutlass.const_expr(self.halves < 2 * self.tiles):
            rX.fill(0.0)
        shape_a = cute.make_layout(
            ((2, 2, 2), self.tiles, (2, self.unroll)), stride=((1, 8, 2), 16, (4, 16 * self.tiles))
        )
        rA = cute.make_tensor(rX.iterator, shape_a)
        shape_b = cute.make_layout(
            ((2, 2), self.cols, (2, self.unroll)), stride=((1, 2), 8, (4, 8 * self.cols))
        )
        rB = [cute.make_tensor(rW[b].iterator, shape_b) for b in range(2)]
        mma = cute.make_tiled_mma(cute.nvgpu.warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        rC = cute.make_rmem_tensor(cute.make_layout(((2, 2), self.tiles, self.cols)), Float32)
        rC.fill(0.0)
        for u in cutlass.range_constexpr(self.unroll):
            for c in cutlass.range_constexpr(self.cols):
                cute.copy(atom, cute.local_tile(gW[c], (8,), (start + 4 * u,)), rW[0][None, c, u])
        cute.arch.griddepcontrol_wait()
        lines = [cutlass.min(g + 8 * m, self.tokens - 1) for m in range(self.halves)]
        for it in cutlass.range_constexpr(steps):
            if cutlass.const_expr(it + 1 < steps):
                for u in cutlass.range_constexpr(self.unroll):
                    for c in cutlass.range_constexpr(self.cols):
                        ahead = start + ((it + 1) * self.unroll + u) * 4
                        cute.copy(atom, cute.local_tile(gW[c], (8,), (ahead,)), rW[(it + 1) % 2][None, c, u])
            for u in cutlass.range_constexpr(self.unroll):
                for m in cutlass.range_constexpr(self.halves):
                    gX = cute.local_tile(mX[lines[m], None], (8,), (start + (it * self.unroll + u) * 4,))
                    cute.autovec_copy(gX, rX[None, m, u])
            for k in cutlass.range_constexpr(2 * self.unroll):
                cute.gemm(mma, rC, rA[None, None, k], rB[it % 2][None, None, k], rC)
        cute.arch.griddepcontrol_launch_dependents()
        for m in cutlass.range_constexpr(self.halves):
            for c in cutlass.range_constexpr(self.cols):
                for e in cutlass.range_constexpr(2):
                    sC[8 * c + q * 2 + e, 8 * m + g, warp] = rC[(e, m % 2), m // 2, c]
        cute.arch.sync_threads()

        # the maximum of this tile, per token: neighbouring lanes hold its rows
        threads, outs = 32 * self.warps, self.rows * 8 * self.halves
        for i in cutlass.range_constexpr((outs + threads - 1) // threads):
            o = i * threads + t
            r, column = o % self.rows, (o % outs) // self.rows
            v = Float32(0.0)
            for w in cutlass.range_constexpr(self.warps):
                v += sC[r, column, w]
            key = key_of(v)
            most = key
            for s in cutlass.range_constexpr(self.bits):
                most = cutlass.max(most, cute.arch.shuffle_sync_bfly(most, offset=1 << s))
            first = Int32(HIGHEST)
            if key == most:
                first = tile * self.rows + r
            for s in cutlass.range_constexpr(self.bits):
                first = cutlass.min(first, cute.arch.shuffle_sync_bfly(first, offset=1 << s))
            if o < outs and column < self.tokens and r == 0:
                mKey[column, tile] = most
                mRow[column, tile] = first
        cute.arch.sync_threads()

        # the CTA that arrives last reduces all tiles
        if t == 0:
            cute.arch.fence_acq_rel_gpu()
            sArrived[0] = cute.arch.atomic_add(mCount.iterator, Int32(1), sem="acq_rel", scope="gpu")
            cute.arch.fence_acq_rel_gpu()
        cute.arch.sync_threads()
        if sArrived[0] == self.blocks - 1:
            for i in cutlass.range_constexpr((self.tokens + self.warps - 1) // self.warps):
                token = i * self.warps + warp
                line = cutlass.min(token, self.tokens - 1) * self.blocks
                best = Int32(LOWEST)
                where = Int32(HIGHEST)
                for j in cutlass.range((self.blocks + 31) // 32, unroll=4):
                    p = line + cutlass.min(j * 32 + lane, self.blocks - 1)
                    other = cute.arch.load(mKey.iterator + p, Int32, sem="relaxed", scope="gpu")
                    at = cute.arch.load(mRow.iterator + p, Int32, sem="relaxed", scope="gpu")
                    if other > best:  # a lane's tiles ascend: the first of equal ones stays
                        best = other
                        where = at
                top = best
                for s in cutlass.range_constexpr(5):
                    top = cutlass.max(top, cute.arch.shuffle_sync_bfly(top, offset=1 << s))
                lowest = Int32(HIGHEST)
                if best == top:
                    lowest = where
                for s in cutlass.range_constexpr(5):
                    lowest = cutlass.min(lowest, cute.arch.shuffle_sync_bfly(lowest, offset=1 << s))
                if lane == 0 and token < self.tokens:
                    mVal[token] = value_of(top)
                    mId[token] = base + lowest
            if t == 0:
                mCount[0] = Int32(0)  # re-armed for the next call


def _rows(dims):
    """16 rows a tile where that fills the SMs, else 8."""
    vocab = dims["vocab"]
    return 16 if vocab % 16 == 0 and vocab // 16 >= SMS else 8


def workspaces(dims, tokens, arch):
    blocks = dims["vocab"] // _rows(dims)
    return [("i32", (tokens, blocks)), ("i32", (tokens, blocks)), ("i32", (1,))]


def build(dims, tokens, arch):
    warps = next(n for n in (8, 7, 4, 2, 1) if dims["hidden"] % (32 * n) == 0)
    return Head(dims["vocab"], dims["hidden"], tokens, warps, _rows(dims))


def design(dims, tokens, arch):
    return f"mma, tokens as A, {_rows(dims)}-row tiles, last CTA reduces"
