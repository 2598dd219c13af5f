import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32


class OutGate:
    """y = bf16(lat[h] @ w_uv[h]) * sigmoid(gate), in one launch.

    A CTA owns one head, 8 * vec values of it and a group of tokens. The latent axis is split over the warps. The weights
    are the A operand of mma.m16n8k16 (16 values x 16 latents), 8 tokens are the B operand. A lane loads `vec` contiguous
    values of 8 latent rows, straight into registers and before the PDL wait; pairs of rows are interleaved in registers,
    which is the transposition. The order of the latents does not matter, so 8 consecutive ones of a token (16 bytes)
    feed two MMAs. Partial sums of the warps meet in shared memory and are added in a fixed order.
    """

    def __init__(self, dims, tokens: int):
        self.heads, self.latent, self.value = dims["heads"], dims["latent"], dims["value"]
        self.gate_at, self.tokens = dims["gate_at"], tokens
        self.vec = next(n for n in (4, 2) if self.value % (8 * n) == 0)  # values of a lane
        self.cols = 8 * self.vec  # values of a CTA
        self.warps = next(n for n in (8, 4, 2, 1) if self.latent % (32 * n) == 0)
        self.steps = self.latent // (32 * self.warps)  # of 32 latents
        self.tiles = min(2, (tokens + 7) // 8)  # MMA column tiles of 8 tokens
        self.group = min(tokens, 8 * self.tiles)  # tokens of a CTA
        self.groups = (tokens + self.group - 1) // self.group
        self.threads = 32 * self.warps
        self.outs = self.cols * self.group
        self.per_thread = (self.outs + self.threads - 1) // self.threads

    @cute.jit
    def __call__(
        self,
        mLat: cute.Tensor,
        mW: cute.Tensor,
        mP: cute.Tensor,
        mLen: cute.Tensor,
        mY: cute.Tensor,
        stream: cuda.CUstream,
    ):
        self.kernel(mLat, mW, mP, mLen, mY).launch(
            grid=[self.value // self.cols, self.heads, self.groups],
            block=[self.threads, 1, 1],
            stream=stream,
            use_pdl=True,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(self, mLat: cute.Tensor, mW: cute.Tensor, mP: cute.Tensor, mLen: cute.Tensor, mY: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        part, head, group = cute.arch.block_idx()
        lane, warp = t % 32, cute.arch.make_warp_uniform(t // 32)
        g, q = lane // 4, lane % 4
        first = warp * self.steps  # in steps of 32 latents
        row_tiles = self.vec // 2  # MMA row tiles of 16 values

        # weights: rW[j, r, s] is value g * vec + j of latent 32 * (first + s) + 8 * q + r
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyG2ROp(),
            BFloat16,
            num_bits_per_copy=16 * self.vec,
            l1c_evict_priority=cute.nvgpu.CacheEvictionPriority.NO_ALLOCATE,
        )
        rW = cute.make_rmem_tensor(cute.make_layout((self.vec, 8, self.steps)), BFloat16)
        for s in cutlass.range_constexpr(self.steps):
            for r in cutlass.range_constexpr(8):
                gRow = mW[head, (first + s) * 32 + q * 8 + r, None]
                cute.copy(atom, cute.local_tile(gRow, (self.vec,), (part * 8 + g,)), rW[None, r, s])

        cute.arch.griddepcontrol_wait()

        # tokens: clamped, not predicated; a NaN row stays in its own column of the MMA
        rX = cute.make_rmem_tensor(cute.make_layout((8, self.tiles, self.steps)), BFloat16)
        rows = [cutlass.min(group * self.group + g + 8 * m, self.tokens - 1) for m in range(self.tiles)]
        for s in cutlass.range_constexpr(self.steps):
            for m in cutlass.range_constexpr(self.tiles):
                gX = cute.local_tile(mLat[rows[m], head, None], (8,), ((first + s) * 4 + q,))
                cute.autovec_copy(gX, rX[None, m, s])

        # what the thread needs at the end: the gate and the length of each of its outputs
        rG = cute.make_rmem_tensor((self.per_thread,), Float32)
        rL = cute.make_rmem_tensor((self.per_thread,), Int32)
        for i in cutlass.range_constexpr(self.per_thread):
            o = cutlass.min(i * self.threads + t, self.outs - 1)
            token = cutlass.min(group * self.group + o // self.cols, self.tokens - 1)
            column = head * self.value + part * self.cols + o % self.cols
            rG[i] = mP[token, self.gate_at + column].to(Float32)
            rL[i] = mLen[token]
        cute.arch.griddepcontrol_launch_dependents()

        # fragments: A is (pair, row half, k half), (row tile), (k step); pairs are two neighbouring latent rows
        rA = cute.make_rmem_tensor(cute.make_layout(((2, 2, 2), row_tiles, 2 * self.steps)), BFloat16)
        for s in cutlass.range_constexpr(self.steps):
            for u in cutlass.range_constexpr(2):
                for i in cutlass.range_constexpr(row_tiles):
                    for kh in cutlass.range_constexpr(2):
                        for h in cutlass.range_constexpr(2):
                            for e in cutlass.range_constexpr(2):
                                rA[(e, h, kh), i, 2 * s + u] = rW[2 * i + h, 4 * u + 2 * kh + e, s]
        shape_b = cute.make_layout(
            ((2, 2), self.tiles, (2, self.steps)), stride=((1, 2), 8, (4, 8 * self.tiles))
        )
        rB = cute.make_tensor(rX.iterator, shape_b)
        mma = cute.make_tiled_mma(cute.nvgpu.warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        rC = cute.make_rmem_tensor(cute.make_layout(((2, 2), row_tiles, self.tiles)), Float32)
        rC.fill(0.0)
        for k in cutlass.range_constexpr(2 * self.steps):
            cute.gemm(mma, rC, rA[None, None, k], rB[None, None, k], rC)

        # partial sums of the warps: a lane holds vec contiguous values of each of its tokens
        shared = cutlass.memory.SmemAllocator()
        pitch = self.cols + 4
        layout = cute.make_layout(
            (self.cols, 8 * self.tiles, self.warps), stride=(1, pitch, pitch * 8 * self.tiles)
        )
        sC = shared.allocate_tensor(Float32, layout, byte_alignment=16)
        rO = cute.make_rmem_tensor((self.vec,), Float32)
        for m in cutlass.range_constexpr(self.tiles):
            for e in cutlass.range_constexpr(2):
                for i in cutlass.range_constexpr(row_tiles):
                    for h in cutlass.range_constexpr(2):
                        rO[2 * i + h] = rC[(e, h), i, m]
                cute.autovec_copy(rO, cute.local_tile(sC[None, m * 8 + q * 2 + e, warp], (self.vec,), (g,)))

        # sigmoid while the other warps arrive: exp may be inf, 1 / inf is 0
        for i in cutlass.range_constexpr(self.per_thread):
            rG[i] = Float32(1.0) / (Float32(1.0) + cute.math.exp(-rG[i]))
        cute.arch.sync_threads()

        for i in cutlass.range_constexpr(self.per_thread):
            o = i * self.threads + t
            clamped = cutlass.min(o, self.outs - 1)
            v, n = clamped % self.cols, clamped // self.cols
            token = group * self.group + n
            acc = Float32(0.0)
            for w in cutlass.range_constexpr(self.warps):
                acc += sC[v, n, w]
            out = Float32(0.0)
            if rL[i] > 0:  # select: a token of length 0 may hold NaN
                out = acc.to(BFloat16).to(Float32) * rG[i]
            if o < self.outs and token < self.tokens:
                mY[token, head * self.value + part * self.cols + v] = out.to(BFloat16)


def build(dims, tokens, arch):
    return OutGate(dims, tokens)


def design(dims, tokens, arch):
    return f"one launch, mma from registers, {min(2, (tokens + 7) // 8)} column tiles"
