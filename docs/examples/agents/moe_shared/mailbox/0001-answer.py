import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32

SITU_BETA = 4.0
SITU_LINEAR_BETA = 25.0


@cute.jit
def situ(g: Float32, u: Float32) -> Float32:
    """beta tanh(g / beta) sigmoid(g) * lambda tanh(u / lambda); exp(-g) = inf gives a sigmoid of 0."""
    sig = cute.arch.rcp_approx(1.0 + cute.math.exp(-g))
    left = SITU_BETA * cute.math.tanh(g * (1.0 / SITU_BETA)) * sig
    return left * (SITU_LINEAR_BETA * cute.math.tanh(u * (1.0 / SITU_LINEAR_BETA)))


class Shared:
    """Two PDL-chained skinny GEMMs on mma.m16n8k16, weights straight into registers, K split over warps."""

    def __init__(self, hidden, width, tokens):
        self.hidden, self.width, self.tokens = hidden, width, tokens
        self.tiles = (tokens + 7) // 8
        self.warps_up = next(n for n in (16, 14, 8, 7, 4, 2, 1) if hidden % (32 * n) == 0)
        if hidden // (32 * self.warps_up) < 1:
            self.warps_up = 1
        self.warps_down = next(n for n in (8, 6, 4, 3, 2, 1) if width % (32 * n) == 0)
        self.unroll_up = self.pick(hidden // (32 * self.warps_up))
        self.unroll_down = self.pick(width // (32 * self.warps_down))

    def pick(self, steps):
        return next(u for u in (4, 7, 6, 5, 3, 2, 1) if steps % u == 0)

    @cute.jit
    def __call__(
        self,
        mM: cute.Tensor,
        mGU: cute.Tensor,
        mD: cute.Tensor,
        mY: cute.Tensor,
        mH: cute.Tensor,
        stream: cuda.CUstream,
    ):
        self.up(mM, mGU, mH).launch(
            grid=[self.width // 8, 1, 1],
            block=[32 * self.warps_up, 1, 1],
            stream=stream,
            use_pdl=True,
            min_blocks_per_mp=1,
        )
        self.down(mH, mD, mY).launch(
            grid=[self.hidden // 16, 1, 1],
            block=[32 * self.warps_down, 1, 1],
            stream=stream,
            use_pdl=True,
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
    def up(self, mM: cute.Tensor, mGU: cute.Tensor, mH: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        tile, _, _ = cute.arch.block_idx()
        lane, warp = t % 32, cute.arch.make_warp_uniform(t // 32)
        g, q = lane // 4, lane % 4
        unroll, warps = self.unroll_up, self.warps_up
        per_warp = self.hidden // warps
        steps = per_warp // (32 * unroll)
        gLow, gHigh = mGU[tile * 8 + g, None], mGU[self.width + tile * 8 + g, None]
        start = warp * (per_warp // 8) + q
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyG2ROp(),
            BFloat16,
            num_bits_per_copy=128,
            l1c_evict_priority=cute.nvgpu.CacheEvictionPriority.NO_ALLOCATE,
        )
        rW = [cute.make_rmem_tensor(cute.make_layout((8, 2, unroll)), BFloat16) for _ in range(2)]
        rX = cute.make_rmem_tensor(cute.make_layout((8, self.tiles, unroll)), BFloat16)
        shape_a = cute.make_layout(((2, 2, 2), 1, (2, unroll)), stride=((1, 8, 2), 0, (4, 16)))
        rA = [cute.make_tensor(rW[b].iterator, shape_a) for b in range(2)]
        shape_b = cute.make_layout(
            ((2, 2), self.tiles, (2, unroll)), stride=((1, 2), 8, (4, 8 * self.tiles))
        )
        rB = cute.make_tensor(rX.iterator, shape_b)
        mma = cute.make_tiled_mma(cute.nvgpu.warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        rC = cute.make_rmem_tensor(cute.make_layout(((2, 2), 1, self.tiles)), Float32)
        rC.fill(0.0)
        self.load(atom, gLow, gHigh, rW[0], start, unroll)
        cute.arch.griddepcontrol_wait()
        rows = [cutlass.min(g + 8 * m, self.tokens - 1) for m in range(self.tiles)]
        for it in cutlass.range_constexpr(steps):
            if cutlass.const_expr(it + 1 < steps):
                self.load(atom, gLow, gHigh, rW[(it + 1) % 2], start + (it + 1) * 4 * unroll, unroll)
            for u in cutlass.range_constexpr(unroll):
                for m in cutlass.range_constexpr(self.tiles):
                    gX = cute.local_tile(mM[rows[m], None], (8,), (start + (it * unroll + u) * 4,))
                    cute.autovec_copy(gX, rX[None, m, u])
            for k in cutlass.range_constexpr(2 * unroll):
                cute.gemm(mma, rC, rA[it % 2][None, None, k], rB[None, None, k], rC)
        cute.arch.griddepcontrol_launch_dependents()
        shared = cutlass.memory.SmemAllocator()
        layout = cute.make_layout((16, 8 * self.tiles, warps), stride=(1, 17, 17 * 8 * self.tiles))
        sC = shared.allocate_tensor(Float32, layout, byte_alignment=16)
        for m in cutlass.range_constexpr(self.tiles):
            for e in cutlass.range_constexpr(2):
                for h in cutlass.range_constexpr(2):
                    sC[g + 8 * h, m * 8 + q * 2 + e, warp] = rC[(e, h), 0, m]
        cute.arch.sync_threads()
        threads, outs = 32 * warps, 8 * 8 * self.tiles
        for i in cutlass.range_constexpr((outs + threads - 1) // threads):
            o = i * threads + t
            r, token = o % 8, o // 8
            if o < outs and token < self.tokens:
                gate = Float32(0.0)
                lin = Float32(0.0)
                for w in cutlass.range_constexpr(warps):
                    gate += sC[r, token, w]
                    lin += sC[r + 8, token, w]
                value = situ(gate.to(BFloat16).to(Float32), lin.to(BFloat16).to(Float32))
                mH[token, tile * 8 + r] = value.to(BFloat16)

    @cute.kernel
    def down(self, mH: cute.Tensor, mD: cute.Tensor, mY: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        tile, _, _ = cute.arch.block_idx()
        lane, warp = t % 32, cute.arch.make_warp_uniform(t // 32)
        g, q = lane // 4, lane % 4
        unroll, warps = self.unroll_down, self.warps_down
        per_warp = self.width // warps
        steps = per_warp // (32 * unroll)
        gLow, gHigh = mD[tile * 16 + g, None], mD[tile * 16 + g + 8, None]
        start = warp * (per_warp // 8) + q
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyG2ROp(),
            BFloat16,
            num_bits_per_copy=128,
            l1c_evict_priority=cute.nvgpu.CacheEvictionPriority.NO_ALLOCATE,
        )
        rW = [cute.make_rmem_tensor(cute.make_layout((8, 2, unroll)), BFloat16) for _ in range(2)]
        rX = cute.make_rmem_tensor(cute.make_layout((8, self.tiles, unroll)), BFloat16)
        shape_a = cute.make_layout(((2, 2, 2), 1, (2, unroll)), stride=((1, 8, 2), 0, (4, 16)))
        rA = [cute.make_tensor(rW[b].iterator, shape_a) for b in range(2)]
        shape_b = cute.make_layout(
            ((2, 2), self.tiles, (2, unroll)), stride=((1, 2), 8, (4, 8 * self.tiles))
        )
        rB = cute.make_tensor(rX.iterator, shape_b)
        mma = cute.make_tiled_mma(cute.nvgpu.warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        rC = cute.make_rmem_tensor(cute.make_layout(((2, 2), 1, self.tiles)), Float32)
        rC.fill(0.0)
        self.load(atom, gLow, gHigh, rW[0], start, unroll)
        cute.arch.griddepcontrol_wait()
        rows = [cutlass.min(g + 8 * m, self.tokens - 1) for m in range(self.tiles)]
        for it in cutlass.range_constexpr(steps):
            if cutlass.const_expr(it + 1 < steps):
                self.load(atom, gLow, gHigh, rW[(it + 1) % 2], start + (it + 1) * 4 * unroll, unroll)
            for u in cutlass.range_constexpr(unroll):
                for m in cutlass.range_constexpr(self.tiles):
                    gX = cute.local_tile(mH[rows[m], None], (8,), (start + (it * unroll + u) * 4,))
                    cute.autovec_copy(gX, rX[None, m, u])
            for k in cutlass.range_constexpr(2 * unroll):
                cute.gemm(mma, rC, rA[it % 2][None, None, k], rB[None, None, k], rC)
        cute.arch.griddepcontrol_launch_dependents()
        shared = cutlass.memory.SmemAllocator()
        layout = cute.make_layout((16, 8 * self.tiles, warps), stride=(1, 17, 17 * 8 * self.tiles))
        sC = shared.allocate_tensor(Float32, layout, byte_alignment=16)
        for m in cutlass.range_constexpr(self.tiles):
            for e in cutlass.range_constexpr(2):
                for h in cutlass.range_constexpr(2):
                    sC[g + 8 * h, m * 8 + q * 2 + e, warp] = rC[(e, h), 0, m]
        cute.arch.sync_threads()
        threads, outs = 32 * warps, 16 * 8 * self.tiles
        for i in cutlass.range_constexpr((outs + threads - 1) // threads):
            o = i * threads + t
            r, token = o % 16, o // 16
            if o < outs and token < self.tokens:
                v = Float32(0.0)
                for w in cutlass.range_constexpr(warps):
                    v += sC[r, token, w]
                mY[token, tile * 16 + r] = v.to(BFloat16)


def workspaces(dims, tokens, arch):
    return [("bf16", (tokens, dims["width"]))]


def build(dims, tokens, arch):
    return Shared(dims["hidden"], dims["width"], tokens)


def design(dims, tokens, arch):
    return "two PDL launches, mma from registers"
