"""out = x w^T: tokens are the 64 rows of wgmma, weights its columns, so any multiple of 8 rows of w is a CTA's tile.

1. stream: one warp fetches tiles of 64 columns of K by TMA into a ring of stages (128-byte swizzle), one warpgroup
   multiplies them. The ring's weights are on their way before the wait for the kernel before, and rings are small enough
   that CTAs of the next kernel fit beside these (programmatic dependent launch).
2. sums: K is split over the CTAs of a cluster. Each leaves its float32 sums in its own shared memory and adds its share
   of the outputs from all of them, in the order of K. CTAs of a cluster with the same K share the activations' tiles
   (multicast): at 64 tokens these are as many bytes as the weights.

Below FROM tokens, and where there is no wgmma, 16 rows of w are the A operand of mma.m16n8k16 straight from registers.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

OUTPUTS, INPUTS = "latent", "hidden"  # dims of w
FROM = 1  # tokens from which on wgmma is used
CTAS, PARTS, SHARE = 132, 2, 1  # CTAs at most; of a cluster along K, and along rows
RING, PDL = 208, True  # KiB of shared memory for the ring
WARPS, UNROLL, BLOCKS = 8, 4, 132  # of mma; blocks: K is split to have that many
M, MOST_ROWS, TILE_K = 64, 256, 64  # of wgmma: tokens, rows of w; columns of K in 128 bytes
CONSUMERS, THREADS = 128, 256  # the first warpgroup multiplies, a warp of the second fetches
TILE_ROWS, STEP = 16, 32  # of mma: rows of w in a tile; elements of K in one load of four lanes
TILE_STEPS = 8  # of mma: token tiles times steps whose activations a thread holds at most


def divisor(n, most):
    """Largest divisor of n that is at most `most`."""
    return max(d for d in range(1, max(1, min(n, most)) + 1) if n % d == 0)


def shape(n, k, few):
    """CTAs of a cluster along K, rows of w a CTA, CTAs of a cluster along rows, groups of rows."""
    parts = divisor(k // TILE_K, PARTS)
    rows = min(MOST_ROWS, (n * parts + 16 * CTAS - 1) // (16 * CTAS) * 16)
    groups = (n + rows - 1) // rows
    share = min(SHARE, groups, few // 8)
    return parts, rows, share, (groups + share - 1) // share * share  # a group beyond w has zeros


class Stream:
    """One kernel. A cluster is PARTS CTAs along K and SHARE along rows."""

    def __init__(self, n, k, tokens):
        self.n, self.k, self.tokens = n, k, tokens
        self.few = (tokens + 7) // 8 * 8  # rows of a tile of activations that are fetched; the others are zero
        self.parts, self.rows, self.share, self.groups = shape(n, k, self.few)
        self.tiles = k // TILE_K // self.parts
        stage_bytes = (self.rows + M) * TILE_K * 2
        self.stages = min(self.tiles, max(2, RING * 1024 // stage_bytes))  # the one before is freed in the next
        self.pitch = self.rows + 4  # of the sums: fewer bank conflicts
        self.bytes = max(self.stages * stage_bytes, tokens * self.pitch * 4)

    @cute.jit
    def __call__(self, x: cute.Tensor, w: cute.Tensor, out: cute.Tensor, stream: cuda.CUstream):
        major, tile = OperandMajorMode.K, (M, self.rows, TILE_K)
        mma = hopper_helpers.make_trivial_tiled_mma(BFloat16, BFloat16, major, major, Float32, (1, 1, 1), tile[:2])
        lx = hopper_helpers.make_smem_layout_a(LayoutEnum.ROW_MAJOR, tile, BFloat16, self.stages)
        lw = hopper_helpers.make_smem_layout_b(LayoutEnum.ROW_MAJOR, tile, BFloat16, self.stages)
        load = cpasync.CopyBulkTensorTileG2SOp()
        many = cpasync.CopyBulkTensorTileG2SMulticastOp() if self.share > 1 else load
        if cutlass.const_expr(self.tokens == 1):  # TMA wants two rows: tiles of K are rows, and the first one counts
            x = cute.make_tensor(x.iterator, cute.make_layout((self.k // TILE_K, TILE_K), stride=(TILE_K, 1)))
        taken = (self.few, TILE_K)
        lt = hopper_helpers.make_smem_layout_b(LayoutEnum.ROW_MAJOR, (M, *taken), BFloat16, 1)
        atom_x, x = cpasync.make_tiled_tma_atom(many, x, cute.slice_(lt, (None, None, 0)), taken, self.share)
        atom_w, w = cpasync.make_tiled_tma_atom(load, w, cute.slice_(lw, (None, None, 0)), (self.rows, TILE_K))
        self.kernel(mma, atom_x, x, atom_w, w, out, lx, lw).launch(
            grid=[self.parts, self.groups, 1], block=[THREADS, 1, 1], cluster=(self.parts, self.share, 1),
            stream=stream, use_pdl=PDL, min_blocks_per_mp=1)  # fmt: skip

    @cute.kernel
    def kernel(
        self, mma: cute.TiledMma, atom_x: cute.CopyAtom, x: cute.Tensor, atom_w: cute.CopyAtom, w: cute.Tensor,
        out: cute.Tensor, lx: cute.ComposedLayout, lw: cute.ComposedLayout,
    ):  # fmt: skip
        tid, _, _ = cute.arch.thread_idx()
        part, group, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(tid // 32)
        shared = cutlass.memory.SmemAllocator()
        place = shared.allocate_array(cutlass.Uint8, self.bytes, byte_alignment=1024)
        full = shared.allocate_array(cutlass.Int64, self.stages)
        empty = shared.allocate_array(cutlass.Int64, self.stages)
        start = cute.recast_ptr(place, dtype=BFloat16)
        sw = cute.make_tensor(cute.recast_ptr(start, lw.inner), lw.outer)
        sx = cute.make_tensor(cute.recast_ptr(start + self.stages * self.rows * TILE_K, lx.inner), lx.outer)
        if tid == 0:
            for s in cutlass.range_constexpr(self.stages):
                cute.arch.mbarrier_init(full + s, 1)
                cute.arch.mbarrier_init(empty + s, CONSUMERS // 32 * self.share)
            cute.arch.mbarrier_init_fence()
        self.clear(start + self.stages * self.rows * TILE_K, tid)
        cute.arch.sync_threads()
        first = part * self.tiles  # of K
        gw = cute.local_tile(w, (self.rows, TILE_K), (group, None))
        sw_to, gw = cpasync.tma_partition(
            atom_w, 0, cute.make_layout(1), cute.group_modes(sw, 0, 2), cute.group_modes(gw, 0, 2))  # fmt: skip
        sx_to = cute.local_tile(sx, (self.few, TILE_K), (0, 0, None))
        if warp == CONSUMERS // 32:
            for s in cutlass.range_constexpr(self.stages):
                self.expect(full + s)
                cute.copy(atom_w, gw[(None, first + s)], sw_to[(None, s)], tma_bar_ptr=full + s)
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_launch_dependents()
        if cutlass.const_expr(self.parts * self.share > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()  # barriers of all CTAs are there
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_wait()
        mine = mma.get_slice(tid % CONSUMERS)
        where = mine.partition_C(cute.make_identity_tensor((M, self.rows)))
        layout = cute.make_layout((self.tokens, self.rows), stride=(self.pitch, 1))
        sums = cute.make_tensor(cute.recast_ptr(place, dtype=Float32), layout)
        if warp < CONSUMERS // 32:
            acc = cute.make_rmem_tensor(where.shape, Float32)
            rx, rw = mma.make_fragment_A(mine.partition_A(sx)), mma.make_fragment_B(mine.partition_B(sw))
            self.multiply(mma, rx, rw, acc, full, empty, part, tid)
            cute.arch.barrier(barrier_id=1, number_of_threads=CONSUMERS)  # all have read the ring: the sums take it
            for i in cutlass.range_constexpr(cute.size(acc)):
                token, row = where[i]
                if token < self.tokens:
                    sums[token, row] = acc[i]
        elif warp == CONSUMERS // 32:
            for s in cutlass.range_constexpr(self.stages):
                self.fetch_x(atom_x, x, sx_to[None, None, s], first + s, full + s, part, group)
            for i in cutlass.range(self.stages, self.tiles, unroll=1):
                s = i % self.stages
                cute.arch.mbarrier_wait(empty + s, (i // self.stages + 1) % 2)
                self.expect(full + s)
                cute.copy(atom_w, gw[(None, first + i)], sw_to[(None, s)], tma_bar_ptr=full + s)
                self.fetch_x(atom_x, x, sx_to[None, None, s], first + i, full + s, part, group)
        self.meet()
        self.add(sums, out, part, group, tid)
        if cutlass.const_expr(self.parts * self.share > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()  # nobody leaves while others read its sums

    @cute.jit
    def clear(self, at, tid):
        """Zeros where no activations come: rows of wgmma beyond the tokens."""
        zeros = cute.make_rmem_tensor((8,), BFloat16)
        zeros.fill(0.0)
        spare = cutlass.const_expr((M - self.few) * TILE_K // 8)  # vectors of a stage
        for i in cutlass.range_constexpr((self.stages * spare + THREADS - 1) // THREADS):
            v = i * THREADS + tid
            if v < self.stages * spare:
                to = at + (v // spare * M + self.few) * TILE_K + v % spare * 8
                cute.autovec_copy(zeros, cute.make_tensor(to.align(16), cute.make_layout(8)))
        if cutlass.const_expr(spare > 0):
            cute.arch.fence_proxy("async.shared", space="cta")

    @cute.jit
    def expect(self, bar):
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(bar, (self.rows + self.few) * TILE_K * 2)

    @cute.jit
    def fetch_x(self, atom, x, target, tile, bar, part, group):
        """A tile of activations, or this CTA's share of one that goes to all CTAs that want it."""
        if cutlass.const_expr(self.tokens == 1):
            taken = cute.local_tile(cute.domain_offset((tile, 0), x), (self.few, TILE_K), (0, 0))
        else:
            taken = cute.local_tile(x, (self.few, TILE_K), (0, tile))
        to, source = cpasync.tma_partition(
            atom, group % self.share, cute.make_layout(self.share), cute.group_modes(target, 0, 2),
            cute.group_modes(taken, 0, 2))  # fmt: skip
        if cutlass.const_expr(self.share > 1):
            mates = cutlass.const_expr(sum(1 << self.parts * j for j in range(self.share)))
            mask = (Int32(mates) << part).to(cutlass.Int16)
            cute.copy(atom, source, to, tma_bar_ptr=bar, mcast_mask=mask)
        else:
            cute.copy(atom, source, to, tma_bar_ptr=bar)

    @cute.jit
    def multiply(self, mma, rx, rw, acc, full, empty, part, tid):
        """All tiles of this CTA; a stage is free again when the multiplication after it has begun."""
        acc.fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)
        for i in cutlass.range(self.tiles, unroll=1):
            s = i % self.stages
            cute.arch.mbarrier_wait(full + s, i // self.stages % 2)
            warpgroup.fence()
            for k in cutlass.range_constexpr(TILE_K // 16):
                cute.gemm(mma, acc, rx[None, None, k, s], rw[None, None, k, s], acc)
            warpgroup.commit_group()
            warpgroup.wait_group(1)
            if i > 0:
                self.release(empty + (i - 1) % self.stages, part, tid % 32)
        warpgroup.wait_group(0)

    @cute.jit
    def release(self, bar, part, lane):
        """Lane j of each warp tells CTA j of those that share tiles."""
        if cutlass.const_expr(self.share > 1):
            if lane < self.share:
                cute.arch.mbarrier_arrive(bar, part + self.parts * lane)
        else:
            if lane == 0:
                cute.arch.mbarrier_arrive(bar)

    @cute.jit
    def meet(self):
        if cutlass.const_expr(self.parts * self.share > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

    @cute.jit
    def add(self, sums, out, part, group, tid):
        """This CTA's share of the outputs, 8 at a time, from all parts of K."""
        wide = cutlass.const_expr(self.rows // 8)
        mate = cutlass.const_expr(self.parts) * (group % self.share)
        a, b = cute.make_rmem_tensor((8,), Float32), cute.make_rmem_tensor((8,), Float32)
        r = cute.make_rmem_tensor((8,), BFloat16)
        for i in cutlass.range_constexpr((self.tokens * wide + THREADS * self.parts - 1) // (THREADS * self.parts)):
            v = (i * self.parts + part) * THREADS + tid
            token, at = v // wide, v % wide * 8
            row = group * self.rows + at
            if v < self.tokens * wide and row < self.n:
                own = (sums.iterator + token * self.pitch + at).align(16)
                a.fill(0.0)
                for p in cutlass.range_constexpr(self.parts):
                    other = own
                    if cutlass.const_expr(self.parts > 1):
                        other = cute.arch.map_dsmem_ptr(own, mate + p)
                    cute.autovec_copy(cute.make_tensor(other, cute.make_layout(8)), b)
                    a.store(a.load() + b.load())
                r.store(a.load().to(BFloat16))
                cute.autovec_copy(r, cute.local_tile(out[token, None], (8,), (row // 8,)))


def mma_split(n, k):
    """(warps of a block along K, blocks along K) of mma."""
    warps = divisor(k // STEP, WARPS)
    return warps, divisor(k // STEP // warps, BLOCKS // (n // TILE_ROWS))


class Skinny:
    """Sums of one slice of K: bf16 into `out` where there is one slice, else float32 into part[slice]."""

    def __init__(self, n, k, tokens):
        self.n, self.tokens = n, tokens
        self.warps, self.splits = mma_split(n, k)
        self.tiles = (tokens + 7) // 8  # of 8 tokens
        self.per_warp = k // (self.warps * self.splits)
        self.unroll = divisor(self.per_warp // STEP, min(UNROLL, max(1, TILE_STEPS // self.tiles)))
        self.steps = self.per_warp // (STEP * self.unroll)
        self.threads = 32 * self.warps

    @cute.jit
    def __call__(self, x: cute.Tensor, w: cute.Tensor, out: cute.Tensor, stream: cuda.CUstream):
        self.kernel(x, w, out).launch(
            grid=[self.n // TILE_ROWS, self.splits, 1], block=[self.threads, 1, 1], stream=stream, use_pdl=PDL,
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
        low, high = w[tile * TILE_ROWS + g, None], w[tile * TILE_ROWS + g + 8, None]
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
        layout = cute.make_layout((TILE_ROWS, columns, self.warps), stride=(1, TILE_ROWS + 1, (TILE_ROWS + 1) * columns))
        sums = shared.allocate_tensor(Float32, layout, byte_alignment=16)
        for m in cutlass.range_constexpr(self.tiles):
            for e in cutlass.range_constexpr(2):
                for h in cutlass.range_constexpr(2):
                    sums[g + 8 * h, m * 8 + q * 2 + e, warp] = rc[(e, h), 0, m]
        cute.arch.sync_threads()
        for i in cutlass.range_constexpr((TILE_ROWS * columns + self.threads - 1) // self.threads):
            o = i * self.threads + tid
            row, token = o % TILE_ROWS, o // TILE_ROWS
            if token < self.tokens:
                v = sums[row, token, 0]
                for s in cutlass.range_constexpr(1, self.warps):
                    v = v + sums[row, token, s]
                if cutlass.const_expr(self.splits == 1):
                    out[token, tile * TILE_ROWS + row] = v.to(BFloat16)
                else:
                    out[piece, token, tile * TILE_ROWS + row] = v


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


def streams(tokens, arch):
    return arch == "sm_90a" and tokens >= FROM


def workspaces(dims, tokens, arch):
    _, splits = mma_split(dims[OUTPUTS], dims[INPUTS])
    return [("f32", (splits, tokens, dims[OUTPUTS]))] if splits > 1 and not streams(tokens, arch) else []


def design(dims, tokens, arch):
    n, k = dims[OUTPUTS], dims[INPUTS]
    if streams(tokens, arch):
        made = Stream(n, k, tokens)
        return f"wgmma, {made.parts} x {made.groups} CTAs of {made.rows} rows, {made.stages} stages, {made.share} share x"
    warps, splits = mma_split(n, k)
    return f"mma, {warps} warps and {splits} blocks along K"


def build(dims, tokens, arch):
    n, k = dims[OUTPUTS], dims[INPUTS]
    if streams(tokens, arch):
        return Stream(n, k, tokens)
    return Skinny(n, k, tokens) if mma_split(n, k)[1] == 1 else Split(n, k, tokens)
