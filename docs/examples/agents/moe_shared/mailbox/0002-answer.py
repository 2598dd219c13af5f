import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32

SITU_BETA = 4.0
SITU_LINEAR_BETA = 25.0
MOST_BLOCKS = 132  # all of them must be resident at once


@cute.jit
def situ(g: Float32, u: Float32) -> Float32:
    """beta tanh(g / beta) sigmoid(g) * lambda tanh(u / lambda); exp(-g) = inf gives a sigmoid of 0."""
    sig = cute.arch.rcp_approx(1.0 + cute.math.exp(-g))
    left = SITU_BETA * cute.math.tanh(g * (1.0 / SITU_BETA)) * sig
    return left * (SITU_LINEAR_BETA * cute.math.tanh(u * (1.0 / SITU_LINEAR_BETA)))


class Fused:
    """One launch: gate_up tile and SiTU, a grid-wide hand-over of h, the down rows of this block.

    A block owns `pairs` gate/up pairs and `rows` rows of w_down; the down weights are in registers before the hand-over.
    """

    def __init__(self, hidden, width, tokens):
        self.hidden, self.width, self.tokens = hidden, width, tokens
        self.cols = (tokens + 7) // 8
        self.pairs = next(
            p for p in (1, 2, 3, 4, 5, 6, 7, 8) if width % p == 0 and (width // p <= MOST_BLOCKS or p == 8)
        )
        self.blocks = width // self.pairs
        self.rows = (hidden + self.blocks - 1) // self.blocks
        self.warps = next(n for n in (16, 14, 8, 7, 4, 2, 1) if hidden % (32 * n) == 0)
        self.steps = hidden // (32 * self.warps)
        self.unroll = 2 if self.steps % 2 == 0 else 1
        self.row_tiles = (self.rows + 15) // 16
        self.splits = next(
            s for s in (16, 12, 8, 6, 4, 3, 2, 1) if (width // 32) % s == 0 and s * self.row_tiles <= self.warps
        )
        self.steps2 = width // (32 * self.splits)
        self.jobs = self.row_tiles * self.splits

    @cute.jit
    def __call__(
        self,
        mM: cute.Tensor,
        mGU: cute.Tensor,
        mD: cute.Tensor,
        mY: cute.Tensor,
        mH: cute.Tensor,
        mCount: cute.Tensor,
        stream: cuda.CUstream,
    ):
        self.kernel(mM, mGU, mD, mY, mH, mCount).launch(
            grid=[self.blocks, 1, 1],
            block=[32 * self.warps, 1, 1],
            stream=stream,
            use_pdl=True,
            cooperative=True,
            min_blocks_per_mp=1,
        )

    @cute.jit
    def load(
        self,
        atom: cute.CopyAtom,
        gLow: cute.Tensor,
        gHigh: cute.Tensor,
        rW: cute.Tensor,
        v: Int32,
        unroll: cutlass.Constexpr[int],
    ):
        for u in cutlass.range_constexpr(unroll):
            cute.copy(atom, cute.local_tile(gLow, (8,), (v + 4 * u,)), rW[None, 0, u])
            cute.copy(atom, cute.local_tile(gHigh, (8,), (v + 4 * u,)), rW[None, 1, u])

    @cute.kernel
    def kernel(
        self,
        mM: cute.Tensor,
        mGU: cute.Tensor,
        mD: cute.Tensor,
        mY: cute.Tensor,
        mH: cute.Tensor,
        mCount: cute.Tensor,
    ):
        t, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        lane, warp = t % 32, cute.arch.make_warp_uniform(t // 32)
        g, q = lane // 4, lane % 4
        unroll, cols, steps, steps2 = self.unroll, self.cols, self.steps, self.steps2
        threads = 32 * self.warps
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyG2ROp(),
            BFloat16,
            num_bits_per_copy=128,
            l1c_evict_priority=cute.nvgpu.CacheEvictionPriority.NO_ALLOCATE,
        )
        mma = cute.make_tiled_mma(cute.nvgpu.warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))

        # gate_up: rows 0-7 of the tile are gates, 8-15 ups; lanes beyond `pairs` repeat the last pair
        pair = block * self.pairs + cutlass.min(g, self.pairs - 1)
        gLow, gHigh = mGU[pair, None], mGU[self.width + pair, None]
        start = warp * (steps * 4) + q
        rW = [cute.make_rmem_tensor(cute.make_layout((8, 2, unroll)), BFloat16) for _ in range(2)]
        rX = cute.make_rmem_tensor(cute.make_layout((8, cols, unroll)), BFloat16)
        shape_a = cute.make_layout(((2, 2, 2), 1, (2, unroll)), stride=((1, 8, 2), 0, (4, 16)))
        rA = [cute.make_tensor(rW[b].iterator, shape_a) for b in range(2)]
        shape_b = cute.make_layout(((2, 2), cols, (2, unroll)), stride=((1, 2), 8, (4, 8 * cols)))
        rB = cute.make_tensor(rX.iterator, shape_b)
        rC = cute.make_rmem_tensor(cute.make_layout(((2, 2), 1, cols)), Float32)
        rC.fill(0.0)
        self.load(atom, gLow, gHigh, rW[0], start, unroll)

        # down: every weight of this warp's share, before anything is waited for
        job = cutlass.min(warp, self.jobs - 1)
        row_tile, split = job // self.splits, job % self.splits
        last = cutlass.min(block * self.rows + self.rows - 1, self.hidden - 1)
        low = cutlass.min(block * self.rows + row_tile * 16 + g, last)
        high = cutlass.min(block * self.rows + row_tile * 16 + g + 8, last)
        gDLow, gDHigh = mD[low, None], mD[high, None]
        start2 = split * (steps2 * 4) + q
        rD = cute.make_rmem_tensor(cute.make_layout((8, 2, steps2)), BFloat16)
        rDA = cute.make_tensor(
            rD.iterator, cute.make_layout(((2, 2, 2), 1, (2, steps2)), stride=((1, 8, 2), 0, (4, 16)))
        )
        self.load(atom, gDLow, gDHigh, rD, start2, steps2)

        cute.arch.griddepcontrol_wait()
        tokens = [cutlass.min(g + 8 * m, self.tokens - 1) for m in range(cols)]
        for it in cutlass.range_constexpr(steps // unroll):
            if cutlass.const_expr(it + 1 < steps // unroll):
                self.load(atom, gLow, gHigh, rW[(it + 1) % 2], start + (it + 1) * 4 * unroll, unroll)
            for u in cutlass.range_constexpr(unroll):
                for m in cutlass.range_constexpr(cols):
                    gX = cute.local_tile(mM[tokens[m], None], (8,), (start + (it * unroll + u) * 4,))
                    cute.autovec_copy(gX, rX[None, m, u])
            for k in cutlass.range_constexpr(2 * unroll):
                cute.gemm(mma, rC, rA[it % 2][None, None, k], rB[None, None, k], rC)

        shared = cutlass.memory.SmemAllocator()
        layout = cute.make_layout((16, 8 * cols, self.warps), stride=(1, 17, 17 * 8 * cols))
        sC = shared.allocate_tensor(Float32, layout, byte_alignment=16)
        for m in cutlass.range_constexpr(cols):
            for e in cutlass.range_constexpr(2):
                for h in cutlass.range_constexpr(2):
                    sC[g + 8 * h, m * 8 + q * 2 + e, warp] = rC[(e, h), 0, m]
        cute.arch.sync_threads()
        outs = self.pairs * self.tokens
        for i in cutlass.range_constexpr((outs + threads - 1) // threads):
            o = i * threads + t
            if o < outs:
                r, token = o % self.pairs, o // self.pairs
                gate = Float32(0.0)
                lin = Float32(0.0)
                for w in cutlass.range_constexpr(self.warps):
                    gate += sC[r, token, w]
                    lin += sC[r + 8, token, w]
                value = situ(gate.to(BFloat16).to(Float32), lin.to(BFloat16).to(Float32))
                mH[token, block * self.pairs + r] = value.to(BFloat16)
        cute.arch.sync_threads()

        # hand-over: all blocks have written h; who leaves last re-arms both counters
        if t == 0:
            arrive = mCount.iterator
            leave = mCount.iterator + 1
            cute.arch.fence_acq_rel_gpu()
            seen = Int32(1) + cute.arch.atomic_add(arrive, Int32(1), sem="acq_rel", scope="gpu")
            while seen < self.blocks:
                seen = cute.arch.load(arrive, Int32, sem="acquire", scope="gpu")
            cute.arch.fence_acq_rel_gpu()
            gone = cute.arch.atomic_add(leave, Int32(1), sem="acq_rel", scope="gpu")
            if gone == self.blocks - 1:
                mCount[0] = Int32(0)
                mCount[1] = Int32(0)
        cute.arch.sync_threads()

        rH = cute.make_rmem_tensor(cute.make_layout((8, cols, steps2)), BFloat16)
        rHB = cute.make_tensor(
            rH.iterator, cute.make_layout(((2, 2), cols, (2, steps2)), stride=((1, 2), 8, (4, 8 * cols)))
        )
        rC.fill(0.0)
        for u in cutlass.range_constexpr(steps2):
            for m in cutlass.range_constexpr(cols):
                cute.autovec_copy(cute.local_tile(mH[tokens[m], None], (8,), (start2 + u * 4,)), rH[None, m, u])
        cute.arch.griddepcontrol_launch_dependents()
        for k in cutlass.range_constexpr(2 * steps2):
            cute.gemm(mma, rC, rDA[None, None, k], rHB[None, None, k], rC)
        for m in cutlass.range_constexpr(cols):
            for e in cutlass.range_constexpr(2):
                for h in cutlass.range_constexpr(2):
                    sC[g + 8 * h, m * 8 + q * 2 + e, warp] = rC[(e, h), 0, m]
        cute.arch.sync_threads()
        outs2 = self.rows * self.tokens
        for i in cutlass.range_constexpr((outs2 + threads - 1) // threads):
            o = i * threads + t
            r, token = o % self.rows, o // self.rows
            row = block * self.rows + r
            if o < outs2 and row < self.hidden:
                v = Float32(0.0)
                for s in cutlass.range_constexpr(self.splits):
                    v += sC[r % 16, token, (r // 16) * self.splits + s]
                mY[token, row] = v.to(BFloat16)


def workspaces(dims, tokens, arch):
    return [("bf16", (tokens, dims["width"])), ("i32", (4,))]


def build(dims, tokens, arch):
    return Fused(dims["hidden"], dims["width"], tokens)


def design(dims, tokens, arch):
    return "one cooperative PDL launch, grid hand-over, down weights in registers"
