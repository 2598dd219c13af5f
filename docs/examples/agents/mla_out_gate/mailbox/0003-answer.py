import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32


def _first(choices, fits):
    return next(n for n in choices if fits(n))


class OutGate:
    """y = bf16(lat[h] @ w_uv[h]) * sigmoid(gate), in one launch; the latent axis is split over a cluster.

    A cluster owns one head, 8 * vec values of it and a group of tokens; its CTAs split the latents, and so do the warps of
    a CTA. The weights are the A operand of mma.m16n8k16 (16 values x 16 latents), 8 tokens are the B operand. A lane loads
    `vec` contiguous values of 8 latent rows, straight into registers and before the PDL wait; pairs of rows are
    interleaved in registers, which is the transposition. The order of the latents does not matter, so 8 consecutive ones
    of a token (16 bytes) feed two MMAs. Each CTA finishes the tokens of one column pair of the MMA tile: every warp pushes its
    partial sums through DSMEM to the CTA that owns them, one cluster barrier, then the owner adds them from its own shared
    memory in a fixed order. The barrier that says "the peers have started" is hidden behind the loads.
    """

    def __init__(self, dims, tokens: int):
        self.heads, self.latent, self.value = dims["heads"], dims["latent"], dims["value"]
        self.gate_at, self.tokens = dims["gate_at"], tokens
        self.vec = _first((8, 4), lambda n: self.value % (8 * n) == 0)  # values of a lane
        self.cols = 8 * self.vec  # values of a cluster
        self.splits = _first((4, 2, 1), lambda n: self.latent % (32 * n) == 0)  # CTAs of a cluster
        share = self.latent // self.splits
        self.warps = _first((4, 2, 1), lambda n: share % (32 * n) == 0)
        self.steps = share // (32 * self.warps)  # of 32 latents
        self.tiles = min(2, (tokens + 7) // 8)  # MMA column tiles of 8 tokens
        self.group = min(tokens, 8 * self.tiles)  # tokens of a cluster
        self.groups = (tokens + self.group - 1) // self.group
        self.threads = 32 * self.warps
        self.pairs = 4 // self.splits  # column pairs of an MMA tile that a CTA owns
        self.own_tokens = 2 * self.pairs * self.tiles
        self.own = self.cols * self.own_tokens  # outputs that a CTA finishes
        self.per_thread = (self.own + self.threads - 1) // self.threads
        self.plane = self.own  # partial sums that a warp sends to one owner
        self.sources = self.splits * self.warps

    @cute.jit
    def remote(self, base: Int32, peer: Int32) -> Int32:
        return cute.arch.inline_ptx(
            "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};", write_only_types=[Int32], read_only_args=[base, peer]
        )

    @cute.jit
    def push(self, address: Int32, a: Float32, b: Float32, c: Float32, d: Float32):
        cute.arch.inline_ptx(
            "st.shared::cluster.v4.f32 [{$r0}], {{ {$r1}, {$r2}, {$r3}, {$r4} }};",
            read_only_args=[address, a, b, c, d],
        )

    def place(self, o, rank):
        """(token of the group, value of the tile) of output o of the CTA `rank`."""
        position, n = o % self.cols, o // self.cols
        value = (position // 4 % 8) * self.vec + (position // 32) * 4 + position % 4
        pair = n // 2
        token = (pair // self.pairs) * 8 + (rank * self.pairs + pair % self.pairs) * 2 + n % 2
        return token, value

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
            grid=[self.splits * (self.value // self.cols), self.heads, self.groups],
            block=[self.threads, 1, 1],
            cluster=(self.splits, 1, 1),
            stream=stream,
            use_pdl=True,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(self, mLat: cute.Tensor, mW: cute.Tensor, mP: cute.Tensor, mLen: cute.Tensor, mY: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        bx, head, group = cute.arch.block_idx()
        rank, part = bx % self.splits, bx // self.splits
        lane, warp = t % 32, cute.arch.make_warp_uniform(t // 32)
        g, q = lane // 4, lane % 4
        first = (rank * self.warps + warp) * self.steps  # in steps of 32 latents
        row_tiles = self.vec // 2  # MMA row tiles of 16 values
        shared = cutlass.memory.SmemAllocator()
        sC = shared.allocate_tensor(Float32, cute.make_layout((self.plane, self.sources)), byte_alignment=128)
        cute.arch.cluster_arrive()  # this CTA runs: its shared memory may be written

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
            n, v = self.place(cutlass.min(i * self.threads + t, self.own - 1), rank)
            token = cutlass.min(group * self.group + n, self.tokens - 1)
            column = head * self.value + part * self.cols + v
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

        # partial sums: lane (g, q) holds vec values of tokens 2q and 2q + 1 of each tile; they belong to CTA q // pairs
        cute.arch.cluster_wait()
        source = rank * self.warps + warp
        base = self.remote(Int32(sC.iterator.toint()), Int32(q // self.pairs))
        for m in cutlass.range_constexpr(self.tiles):
            for e in cutlass.range_constexpr(2):
                if m * 8 + q * 2 + e < self.group:
                    slot = (m * self.pairs + q % self.pairs) * 2 + e
                    address = base + (source * self.plane + slot * self.cols + g * 4) * 4
                    for c in cutlass.range_constexpr(self.vec // 4):
                        self.push(
                            address + c * 128,
                            rC[(e, 0), 2 * c, m],
                            rC[(e, 1), 2 * c, m],
                            rC[(e, 0), 2 * c + 1, m],
                            rC[(e, 1), 2 * c + 1, m],
                        )
        cute.arch.cluster_arrive()

        # sigmoid while the other warps and CTAs arrive: exp may be inf, 1 / inf is 0
        for i in cutlass.range_constexpr(self.per_thread):
            rG[i] = Float32(1.0) / (Float32(1.0) + cute.math.exp(-rG[i]))
        cute.arch.cluster_wait()

        for i in cutlass.range_constexpr(self.per_thread):
            o = i * self.threads + t
            n, v = self.place(o, rank)
            token = group * self.group + n
            if o < self.own and n < self.group and token < self.tokens:
                acc = Float32(0.0)
                for w in cutlass.range_constexpr(self.sources):
                    acc += sC[o, w]
                out = Float32(0.0)
                if rL[i] > 0:  # select: a token of length 0 may hold NaN
                    out = acc.to(BFloat16).to(Float32) * rG[i]
                mY[token, head * self.value + part * self.cols + v] = out.to(BFloat16)


def build(dims, tokens, arch):
    return OutGate(dims, tokens)


def design(dims, tokens, arch):
    made = OutGate(dims, tokens)
    return f"one launch, cluster of {made.splits} over the latent, sums pushed by DSMEM, mma, {made.tiles} column tiles"
