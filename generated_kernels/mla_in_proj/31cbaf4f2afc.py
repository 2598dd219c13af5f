"""out = x w^T for few tokens: 16 rows of w are the A operand of mma.m16n8k16, 8 tokens the B operand.

The order of K does not matter to a dot product: the 8 consecutive k of one 16-byte load feed two MMAs from registers,
without shared memory or ldmatrix. K is split over the warps of a block, whose sums meet in shared memory, and over
blocks where there are few rows: then a second kernel adds the blocks' float32 sums in a fixed order.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32

OUTPUTS, INPUTS = "width", "hidden"  # dims of w
WARPS, UNROLL, BLOCKS, PDL = 8, 4, 132, True  # blocks: K is split to have that many
ROWS, STEP = 16, 32  # rows of w in a tile; elements of K in one load of four lanes
TILE_STEPS = 8  # token tiles times steps whose activations a thread holds at most


def divisor(n, most):
    """Largest divisor of n that is at most `most`."""
    return max(d for d in range(1, max(1, min(n, most)) + 1) if n % d == 0)


def split(n, k):
    """(warps of a block along K, blocks along K)."""
    warps = divisor(k // STEP, WARPS)
    return warps, divisor(k // STEP // warps, BLOCKS // (n // ROWS))


class Skinny:
    """Sums of one slice of K: bf16 into `out` where there is one slice, else float32 into part[slice]."""

    def __init__(self, n, k, tokens):
        self.n, self.tokens = n, tokens
        self.warps, self.splits = split(n, k)
        self.tiles = (tokens + 7) // 8  # of 8 tokens
        self.per_warp = k // (self.warps * self.splits)
        self.unroll = divisor(self.per_warp // STEP, min(UNROLL, max(1, TILE_STEPS // self.tiles)))
        self.steps = self.per_warp // (STEP * self.unroll)
        self.threads = 32 * self.warps

    @cute.jit
    def __call__(self, x: cute.Tensor, w: cute.Tensor, out: cute.Tensor, stream: cuda.CUstream):
        self.kernel(x, w, out).launch(
            grid=[self.n // ROWS, self.splits, 1], block=[self.threads, 1, 1], stream=stream, use_pdl=PDL,
            min_blocks_per_mp=1)  # fmt: skip

    @cute.jit
    def load(self, atom: cute.CopyAtom, low: cute.Tensor, high: cute.Tensor, rw: cute.Tensor, at: Int32):
        for u in cutlass.range_constexpr(self.unroll):
            cute.copy(atom, cute.local_tile(low, (8,), (at + 4 * u,)), rw[None, 0, u])
            cute.copy(atom, cute.local_tile(high, (8,), (at + 4 * u,)), rw[None, 1, u])

    @cute.kernel
    def kernel(self, x: cute.Tensor, w: cute.Tensor, out: cute.Tensor):
        tid, _, _ = cute.arch.thread_idx()
        tile, piece, _ = cute.arch.block_idx()
        lane, warp = tid % 32, cute.arch.make_warp_uniform(tid // 32)
        g, q = lane // 4, lane % 4
        low, high = w[tile * ROWS + g, None], w[tile * ROWS + g + 8, None]
        start = (piece * self.warps + warp) * (self.per_warp // 8) + q  # in vectors of 8
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyG2ROp(), BFloat16, num_bits_per_copy=128,
            l1c_evict_priority=cute.nvgpu.CacheEvictionPriority.NO_ALLOCATE)  # fmt: skip
        rw = [cute.make_rmem_tensor(cute.make_layout((8, 2, self.unroll)), BFloat16) for _ in range(2)]
        rx = cute.make_rmem_tensor(cute.make_layout((8, self.tiles, self.unroll)), BFloat16)
        # fragments are views of those registers: (pair, row half, k half) and (k step)
        shape_a = cute.make_layout(((2, 2, 2), 1, (2, self.unroll)), stride=((1, 8, 2), 0, (4, 16)))
        ra = [cute.make_tensor(rw[b].iterator, shape_a) for b in range(2)]
        shape_b = cute.make_layout(((2, 2), self.tiles, (2, self.unroll)), stride=((1, 2), 8, (4, 8 * self.tiles)))
        rb = cute.make_tensor(rx.iterator, shape_b)
        mma = cute.make_tiled_mma(cute.nvgpu.warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        rc = cute.make_rmem_tensor(cute.make_layout(((2, 2), 1, self.tiles)), Float32)
        rc.fill(0.0)
        self.load(atom, low, high, rw[0], start)
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_wait()
        rows = [cutlass.min(g + 8 * m, self.tokens - 1) for m in range(self.tiles)]  # clamp, do not predicate
        for it in cutlass.range_constexpr(self.steps):
            if cutlass.const_expr(it + 1 < self.steps):
                self.load(atom, low, high, rw[(it + 1) % 2], start + (it + 1) * 4 * self.unroll)
            for u in cutlass.range_constexpr(self.unroll):
                for m in cutlass.range_constexpr(self.tiles):
                    at = start + it * 4 * self.unroll + 4 * u
                    cute.autovec_copy(cute.local_tile(x[rows[m], None], (8,), (at,)), rx[None, m, u])
            for i in cutlass.range_constexpr(2 * self.unroll):
                cute.gemm(mma, rc, ra[it % 2][None, None, i], rb[None, None, i], rc)
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_launch_dependents()
        columns = 8 * self.tiles
        shared = cutlass.memory.SmemAllocator()
        layout = cute.make_layout((ROWS, columns, self.warps), stride=(1, ROWS + 1, (ROWS + 1) * columns))
        sums = shared.allocate_tensor(Float32, layout, byte_alignment=16)
        for m in cutlass.range_constexpr(self.tiles):
            for e in cutlass.range_constexpr(2):
                for h in cutlass.range_constexpr(2):
                    sums[g + 8 * h, m * 8 + q * 2 + e, warp] = rc[(e, h), 0, m]
        cute.arch.sync_threads()
        for i in cutlass.range_constexpr((ROWS * columns + self.threads - 1) // self.threads):
            o = i * self.threads + tid
            row, token = o % ROWS, o // ROWS
            if token < self.tokens:
                v = sums[row, token, 0]
                for s in cutlass.range_constexpr(1, self.warps):
                    v = v + sums[row, token, s]
                if cutlass.const_expr(self.splits == 1):
                    out[token, tile * ROWS + row] = v.to(BFloat16)
                else:
                    out[piece, token, tile * ROWS + row] = v


class Split:
    """Slices of K in blocks of their own; then their sums, one output a thread."""

    THREADS = 128

    def __init__(self, n, k, tokens):
        self.skinny = Skinny(n, k, tokens)
        self.n, self.total = n, tokens * n

    @cute.jit
    def __call__(
        self, x: cute.Tensor, w: cute.Tensor, out: cute.Tensor, part: cute.Tensor, stream: cuda.CUstream
    ):  # fmt: skip
        self.skinny(x, w, part, stream)
        blocks = (self.total + self.THREADS - 1) // self.THREADS
        self.add(part, out).launch(grid=[blocks, 1, 1], block=[self.THREADS, 1, 1], stream=stream, use_pdl=PDL)

    @cute.kernel
    def add(self, part: cute.Tensor, out: cute.Tensor):
        tid, _, _ = cute.arch.thread_idx()
        bx, _, _ = cute.arch.block_idx()
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_launch_dependents()
            cute.arch.griddepcontrol_wait()
        o = bx * self.THREADS + tid
        if o < self.total:
            token, n = o // self.n, o % self.n
            v = part[0, token, n]
            for s in cutlass.range_constexpr(1, self.skinny.splits):
                v = v + part[s, token, n]
            out[token, n] = v.to(BFloat16)


def workspaces(dims, tokens, arch):
    _, splits = split(dims[OUTPUTS], dims[INPUTS])
    return [("f32", (splits, tokens, dims[OUTPUTS]))] if splits > 1 else []


def design(dims, tokens, arch):
    warps, splits = split(dims[OUTPUTS], dims[INPUTS])
    return f"mma, {warps} warps and {splits} blocks along K"


def build(dims, tokens, arch):
    n, k = dims[OUTPUTS], dims[INPUTS]
    return Skinny(n, k, tokens) if split(n, k)[1] == 1 else Split(n, k, tokens)
