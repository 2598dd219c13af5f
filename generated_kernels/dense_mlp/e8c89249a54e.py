"""dense_mlp for a few tokens: y = bf16(SiTU(m w_gate_up^T) w_down^T), every weight byte read once.

Stage 1, gate_up: a CTA owns `pairs` outputs (gate row and up row of each) and 1/ksplit of K. Weight rows are the 16-row
operand of mma.sync, tokens the 8-wide one. The dot product does not mind the order of K, so one 16-byte load of a
lane feeds two MMAs, and each lane can queue its own operands in shared memory with no barrier.
Warps and the CTAs of a cluster that share rows sum their float32 partial products, then SiTU, then h in bf16.
Stage 2, down: same operands; its weights are fetched before h exists (programmatic dependent launch).
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.nvgpu import warp as nvwarp

# Tuning by point, the first row that fits: largest token count, largest weights in MB, then
#   gate_up: groups x ksplit CTAs of warps_k x warps_r warps; w K steps of 32 of weights queued; x: where activations wait
#            ("bulk": all in shared memory; "ring": x_stages K steps beside the weights; "direct": in L2)
#   down:    rows outputs a CTA, warps, w ("reg"/"all": fetched whole into registers / shared memory), x, ring depth
#   pdl:     programmatic dependent launch
COLUMNS = "groups ksplit warps_k warps_r w x x_stages rows down_warps_k down_warps_r down_w down_x down_x_stages pdl"
TUNING = [
    (16, 100, 132, 1, 8, 1, 6, "ring", 6, 64, 4, 2, 4, "ring", 4, True),
    (64, 100, 132, 1, 8, 2, 3, "ring", 3, 64, 4, 4, 4, "ring", 4, True),
    (16, 1000000, 132, 1, 8, 1, 3, "ring", 3, 64, 4, 2, 4, "ring", 4, True),
    (64, 1000000, 132, 1, 4, 4, 4, "ring", 4, 64, 4, 4, 4, "ring", 4, True),
]
BETA, LINEAR_BETA = 4.0, 25.0  # SiTU's constants


def tuning(dims, tokens):
    size = 6e-6 * dims["hidden"] * dims["width"]
    row = next(row for row in TUNING if tokens <= row[0] and size <= row[1])
    return dict(zip(COLUMNS.split(), row[2:]))


def divisor(n, most):
    """Largest divisor of n that is at most `most`: parameters bend to dims that they do not divide."""
    return max(d for d in range(1, min(n, most) + 1) if n % d == 0)


@cute.jit
def tanh(x):
    a = cutlass.max(x, -x)
    e = cute.math.exp(-2.0 * a, fastmath=True)
    t = (1.0 - e) * cute.arch.rcp_approx(1.0 + e)
    if a < 0.015625:  # 1 - e cancels there; x - x^3/3 is exact enough
        t = a * (1.0 - a * a * (1.0 / 3.0))
    if x < 0.0:
        t = -t
    return t


@cute.jit
def situ(gate, up):
    """SiTU of float32 sums that are rounded to bf16 first, as the op is written."""
    g, u = gate.to(BFloat16).to(Float32), up.to(BFloat16).to(Float32)
    sigmoid = cute.arch.rcp_approx(1.0 + cute.math.exp(-g, fastmath=True))
    return BETA * tanh(g * (1.0 / BETA)) * sigmoid * (LINEAR_BETA * tanh(u * (1.0 / LINEAR_BETA)))


def async_copy():
    return cute.make_copy_atom(
        cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL), BFloat16, num_bits_per_copy=128
    )


class Tiles:
    """The part that both stages share: a warp multiplies `tw` row tiles of 16 by `nt` token tiles of 8 over its K range.

    Weights: a queue of `w_stages` K steps in shared memory, or all in registers. Activations: "bulk" (every row of this
    CTA's K range at once), "ring" (`x_stages` K steps, shared by the `wr` warps that work on the same K) or "direct" (from
    L2 to registers when needed).
    """

    def setup(self, tokens, kc, tw, wr, wk, half_stride, tile_stride, p_w, x, x_stages, sums):
        self.tokens, self.kc, self.tw, self.wr, self.wk, self.x = tokens, kc, tw, wr, wk, x
        self.half_stride, self.tile_stride = half_stride, tile_stride  # rows from one half / tile to the next
        self.steps = kc // 32 // wk
        self.in_registers = p_w == "reg"
        self.w_stages = self.steps + 1 if p_w in ("reg", "all") else min(p_w, self.steps + 1)
        self.x_stages = min(x_stages, self.w_stages) if x == "ring" else self.w_stages
        self.nt = (tokens + 7) // 8
        self.threads = 32 * wr * wk
        self.pitch = kc + 32 + (-kc) % 64  # 64 bytes off a multiple of 128: no bank conflicts
        depth = min(self.w_stages, self.steps)
        w_elems = 8 if self.in_registers else self.threads * 16 * tw * depth
        ring = 256 * wk * self.nt * self.x_stages
        x_elems = {"bulk": tokens * self.pitch, "ring": ring, "direct": 8}[x]
        self.token_stride = (sums + 15) // 16 * 16 + 4  # of the partial sums: no bank conflicts
        part = 2 * self.token_stride * 8 * self.nt * wk
        self.part_on_w = not self.in_registers and w_elems * 2 >= part  # they take the place of operands that are used up
        self.w_elems = max(w_elems, part) if self.part_on_w else w_elems
        self.x_elems = x_elems if self.part_on_w else max(x_elems, part)

    def position(self):
        """tid, warp position in K and in rows, lane's row and K vector within a tile."""
        tid, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(tid // 32)
        return tid, warp % self.wk, warp // self.wk, tid % 32 // 4, tid % 4

    @cute.jit
    def load_w(self, w: cute.Tensor, dst: cute.Tensor, row, k8, step: cutlass.Constexpr[int]):
        """Start loading this lane's weights of one K step."""
        if cutlass.const_expr(step < self.steps):
            atom = async_copy()
            if cutlass.const_expr(self.in_registers):
                atom = cute.make_copy_atom(
                    cute.nvgpu.CopyG2ROp(), BFloat16, num_bits_per_copy=128,
                    l1c_evict_priority=cute.nvgpu.CacheEvictionPriority.NO_ALLOCATE)  # fmt: skip
            for t in cutlass.range_constexpr(self.tw):
                for half in cutlass.range_constexpr(2):
                    src = w[row + half * self.half_stride + t * self.tile_stride, None]
                    slot = dst[None, half, t, step % min(self.w_stages, self.steps)]
                    cute.copy(atom, cute.local_tile(src, (8,), (k8 + 4 * step,)), slot)

    @cute.jit
    def load_ring(self, x: cute.Tensor, ring: cute.Tensor, wr, g, k8, step: cutlass.Constexpr[int]):
        """Start loading this warp's share of the activations of one K step."""
        if cutlass.const_expr(self.x == "ring" and step < self.steps):
            for n in cutlass.range_constexpr(self.nt):
                row = x[cutlass.min(g + 8 * n, self.tokens - 1), None]  # clamp: a spare column is never stored
                tile, slot = cute.local_tile(row, (8,), (k8 + 4 * step,)), ring[None, n, step % self.x_stages]
                if cutlass.const_expr(self.wr == 1):
                    cute.copy(async_copy(), tile, slot)
                else:
                    if wr == n % self.wr:
                        cute.copy(async_copy(), tile, slot)

    @cute.jit
    def start_bulk(self, x: cute.Tensor, dst: cute.Tensor, bar, tid, k0):
        """Warp 0 starts one bulk copy a token row."""
        if tid == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(bar, self.tokens * self.kc * 2)
        cute.arch.sync_warp()
        atom = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), BFloat16)
        for r in cutlass.range_constexpr((self.tokens + 31) // 32):
            row = r * 32 + tid
            if row < self.tokens:
                part = cute.local_tile(x[row, None], (self.kc,), (k0,))
                gs, ss = cpasync.group_bulk_copy_modes(part, dst[row, None])
                cute.copy(atom, gs, ss, mbar_ptr=bar)

    @cute.jit
    def accumulate(self, x: cute.Tensor, w: cute.Tensor, row0, k0):
        """Rows from row0, K range k0 of `kc`. Returns float32 partial sums in registers and where to exchange them."""
        tid, wk, wr, g, q = self.position()
        smem = cutlass.memory.SmemAllocator()
        bar = smem.allocate_array(Int64, 1)
        wbuf = smem.allocate_tensor(BFloat16, cute.make_layout((self.w_elems,)), byte_alignment=128)
        xbuf = smem.allocate_tensor(BFloat16, cute.make_layout((self.x_elems,)), byte_alignment=128)
        lanes, depth = cutlass.const_expr(self.threads * 8), cutlass.const_expr(min(self.w_stages, self.steps))
        if cutlass.const_expr(self.in_registers):
            queue = cute.make_rmem_tensor(cute.make_layout((8, 2, self.tw, depth)), BFloat16)
        else:
            strides = (1, lanes, 2 * lanes, 2 * lanes * self.tw)
            at = (wbuf.iterator + tid * 8).align(16)
            queue = cute.make_tensor(at, cute.make_layout((8, 2, self.tw, depth), stride=strides))
        rows = cute.make_tensor(xbuf.iterator, cute.make_layout((self.tokens, self.kc), stride=(self.pitch, 1)))
        at = (xbuf.iterator + (wk * self.x_stages * self.nt * 32 + tid % 32) * 8).align(16)
        ring_layout = cute.make_layout((8, self.nt, self.x_stages), stride=(1, 256, 256 * self.nt))
        ring = cute.make_tensor(at, ring_layout)
        row = row0 + wr * self.tw * self.tile_stride + g
        k8 = (k0 * self.kc + wk * self.steps * 32) // 8 + q  # in vectors of 8
        if tid == 0:
            cute.arch.mbarrier_init(bar, 1)
            cute.arch.mbarrier_init_fence()
        for s in cutlass.range_constexpr(self.w_stages - 1):  # weights depend on no earlier kernel
            self.load_w(w, queue, row, k8, s)
            cute.arch.cp_async_commit_group()
        cute.arch.sync_threads()
        self.wait_for_inputs()
        if cutlass.const_expr(self.x == "bulk"):
            if tid < 32:
                self.start_bulk(x, rows, bar, tid, k0)
        if cutlass.const_expr(self.x == "ring"):
            for s in cutlass.range_constexpr(self.x_stages - 1):
                self.load_ring(x, ring, wr, g, k8, s)
                cute.arch.cp_async_commit_group()
        acc = cute.make_rmem_tensor(cute.make_layout(((2, 2), self.tw, self.nt)), Float32)
        acc.fill(0.0)
        if cutlass.const_expr(self.x == "bulk"):
            cute.arch.mbarrier_wait(bar, 0)
        # rolled up in turns of the queue's depth as long as every load that a turn starts is of a step that exists
        turns = cutlass.const_expr((self.steps + 1) // depth - 1 if self.x_stages == depth else 0)
        for turn in cutlass.range(turns, unroll=1):
            for s in cutlass.range_constexpr(depth):
                self.step(x, w, acc, rows, ring, queue, row, k8, turn * depth, s)
        for s in cutlass.range_constexpr(turns * depth, self.steps):
            self.step(x, w, acc, rows, ring, queue, row, k8, Int32(0), s)
        cute.arch.sync_threads()  # every operand is used up
        part = cute.recast_ptr(wbuf.iterator if self.part_on_w else xbuf.iterator, dtype=Float32)
        return acc, part

    @cute.jit
    def step(
        self, x: cute.Tensor, w: cute.Tensor, acc: cute.Tensor, rows: cute.Tensor, ring: cute.Tensor,
        queue: cute.Tensor, row, k8, before, s: cutlass.Constexpr[int],
    ):  # fmt: skip
        """K step `before` + s, of which s says where in the queues it lies: starts later loads, multiplies its own."""
        _, wk, wr, g, q = self.position()
        at, depth = k8 + 4 * before, cutlass.const_expr(min(self.w_stages, self.steps))
        wreg = cute.make_rmem_tensor(cute.make_layout((8, 2, self.tw)), BFloat16)
        xreg = cute.make_rmem_tensor(cute.make_layout((8, self.nt)), BFloat16)
        cute.arch.cp_async_wait_group(self.x_stages - 2)  # step s has landed
        if cutlass.const_expr(self.x == "ring" and self.wr > 1):  # for all warps of this K range
            cute.arch.barrier(barrier_id=1 + wk, number_of_threads=32 * self.wr)
        self.load_ring(x, ring, wr, g, at, s + self.x_stages - 1)
        self.load_w(w, queue, row, at, s + self.w_stages - 1)
        cute.arch.cp_async_commit_group()
        for t in cutlass.range_constexpr(self.tw):
            for half in cutlass.range_constexpr(2):
                cute.autovec_copy(queue[None, half, t, s % depth], wreg[None, half, t])
        for n in cutlass.range_constexpr(self.nt):
            if cutlass.const_expr(self.x == "bulk"):
                src = rows[cutlass.min(g + 8 * n, self.tokens - 1), None]
                cute.autovec_copy(cute.local_tile(src, (8,), ((wk * self.steps + s) * 4 + q + 4 * before,)), xreg[None, n])
            if cutlass.const_expr(self.x == "direct"):
                src = x[cutlass.min(g + 8 * n, self.tokens - 1), None]
                cute.autovec_copy(cute.local_tile(src, (8,), (at + 4 * s,)), xreg[None, n])
            if cutlass.const_expr(self.x == "ring"):
                cute.autovec_copy(ring[None, n, s % self.x_stages], xreg[None, n])
        self.multiply(acc, wreg, xreg)

    @cute.jit
    def multiply(self, acc: cute.Tensor, wreg: cute.Tensor, xreg: cute.Tensor):
        """acc += 16 x 32 weights times 32 x 8 tokens; the fragments are views of the loaded registers."""
        mma = cute.make_tiled_mma(nvwarp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        a = cute.make_layout(((2, 2, 2), self.tw, 2), stride=((1, 8, 2), 16, 4))
        b = cute.make_layout(((2, 2), self.nt, 2), stride=((1, 2), 8, 4))
        fa, fb = cute.make_tensor(wreg.iterator, a), cute.make_tensor(xreg.iterator, b)
        for k in cutlass.range_constexpr(2):
            cute.gemm(mma, acc, fa[None, None, k], fb[None, None, k], acc)

    @cute.jit
    def wait_for_inputs(self):
        if cutlass.const_expr(self.pdl):
            cute.arch.griddepcontrol_wait()


class GateUp(Tiles):
    """h = SiTU(m w_gate^T, m w_up^T). A tile holds 8 gate rows and the 8 up rows of the same outputs."""

    def __init__(self, hidden, width, tokens, p):
        self.pdl = p["pdl"]
        self.pairs = width // divisor(width // 8, p["groups"])
        self.ksplit = divisor(hidden // 32, p["ksplit"])
        kc, tiles = hidden // self.ksplit, self.pairs // 8
        wr, wk = divisor(tiles, p["warps_r"]), divisor(kc // 32, p["warps_k"])
        self.setup(tokens, kc, tiles // wr, wr, wk, width, 8, p["w"], p["x"], p["x_stages"], 2 * self.pairs)
        self.grid = (self.ksplit, width // self.pairs, 1)

    @cute.jit
    def __call__(self, m: cute.Tensor, w: cute.Tensor, h: cute.Tensor, stream: cuda.CUstream):
        self.kernel(m, w, h).launch(
            grid=self.grid, block=[self.threads, 1, 1], cluster=[self.ksplit, 1, 1], stream=stream,
            use_pdl=self.pdl, min_blocks_per_mp=1)  # fmt: skip

    @cute.kernel
    def kernel(self, m: cute.Tensor, w: cute.Tensor, h: cute.Tensor):
        if cutlass.const_expr(self.pdl):
            cute.arch.griddepcontrol_launch_dependents()
        self.body(m, w, h)

    @cute.jit
    def body(self, m: cute.Tensor, w: cute.Tensor, h: cute.Tensor):
        rank, by, _ = cute.arch.block_idx()
        P, S, T = self.pairs, self.ksplit, self.threads
        tid, wk, wr, g, q = self.position()
        acc, at = self.accumulate(m, w, by * P, rank)
        strides = (1, P, self.token_stride, self.token_stride * 8 * self.nt)
        part = cute.make_tensor(at, cute.make_layout((P, 2, 8 * self.nt, self.wk), stride=strides))
        for t in cutlass.range_constexpr(self.tw):
            for n in cutlass.range_constexpr(self.nt):
                for e in cutlass.range_constexpr(2):
                    for half in cutlass.range_constexpr(2):
                        part[(wr * self.tw + t) * 8 + g, half, n * 8 + q * 2 + e, wk] = acc[(e, half), t, n]
        outs = cutlass.const_expr(P * self.tokens)
        if cutlass.const_expr(S > 1 and self.wk > 1):  # sum the warps first: fewer bytes between the CTAs
            cute.arch.sync_threads()
            for i in cutlass.range((2 * outs + T - 1) // T, unroll=2):
                o = i * T + tid
                if o < 2 * outs:
                    p, half, token = o % P, (o // P) % 2, o // (2 * P)
                    v = part[p, half, token, 0]
                    for k in cutlass.range_constexpr(1, self.wk):
                        v += part[p, half, token, k]
                    part[p, half, token, 0] = v
        self.cluster_barrier()
        share = cutlass.const_expr((outs + S - 1) // S)
        for i in cutlass.range((share + T - 1) // T, unroll=1):
            local = i * T + tid
            o = rank * share + local
            if local < share and o < outs:
                p, token = o % P, o // P
                gate, up = Float32(0.0), Float32(0.0)
                for k in cutlass.range_constexpr(S if S > 1 else self.wk):
                    gate += self.partial(part, p, 0, token, k)
                    up += self.partial(part, p, 1, token, k)
                h[token, by * P + p] = situ(gate, up).to(BFloat16)
        if cutlass.const_expr(S > 1):  # a peer may still read this CTA's shared memory
            self.cluster_barrier()

    @cute.jit
    def cluster_barrier(self):
        if cutlass.const_expr(self.ksplit > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

    @cute.jit
    def partial(self, part: cute.Tensor, p, half, token, k):
        """Partial sum k: of CTA k of the cluster, or of warp k where a CTA has all of K."""
        v = Float32(0.0)
        if cutlass.const_expr(self.ksplit > 1):
            offset = cute.crd2idx((p, half, token, 0), part.layout)
            v = cute.arch.map_dsmem_ptr(part.iterator + offset, Int32(k)).load()
        else:
            v = part[p, half, token, k]
        return v


class Down(Tiles):
    """y = h w_down^T; a CTA owns `rows` outputs and all of K."""

    def __init__(self, hidden, width, tokens, p):
        self.pdl = p["pdl"] and 2 == 2
        self.rows = 16 * divisor(hidden // 16, p["rows"] // 16)
        wr, wk = divisor(self.rows // 16, p["down_warps_r"]), divisor(width // 32, p["down_warps_k"])
        tw = self.rows // 16 // wr
        self.setup(tokens, width, tw, wr, wk, 8, 16, p["down_w"], p["down_x"], p["down_x_stages"], self.rows)
        self.ctas = hidden // self.rows

    @cute.jit
    def __call__(self, h: cute.Tensor, w: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
        self.kernel(h, w, y).launch(
            grid=[self.ctas, 1, 1], block=[self.threads, 1, 1], stream=stream, use_pdl=self.pdl,
            min_blocks_per_mp=1)  # fmt: skip

    @cute.kernel
    def kernel(self, h: cute.Tensor, w: cute.Tensor, y: cute.Tensor):
        if cutlass.const_expr(self.pdl):
            cute.arch.griddepcontrol_launch_dependents()
        bx, _, _ = cute.arch.block_idx()
        self.body(h, w, y, bx)

    @cute.jit
    def body(self, h: cute.Tensor, w: cute.Tensor, y: cute.Tensor, cta):
        tid, wk, wr, g, q = self.position()
        acc, at = self.accumulate(h, w, cta * self.rows, 0)
        strides = (1, self.token_stride, self.token_stride * 8 * self.nt)
        part = cute.make_tensor(at, cute.make_layout((self.rows, 8 * self.nt, self.wk), stride=strides))
        for t in cutlass.range_constexpr(self.tw):
            for n in cutlass.range_constexpr(self.nt):
                for e in cutlass.range_constexpr(2):
                    for half in cutlass.range_constexpr(2):
                        r = (wr * self.tw + t) * 16 + g + 8 * half
                        part[r, n * 8 + q * 2 + e, wk] = acc[(e, half), t, n]
        cute.arch.sync_threads()
        outs = cutlass.const_expr(self.rows * self.tokens)
        for i in cutlass.range((outs + self.threads - 1) // self.threads, unroll=2):
            o = i * self.threads + tid
            if o < outs:
                r, token = o % self.rows, o // self.rows
                v = Float32(0.0)
                for k in cutlass.range_constexpr(self.wk):
                    v += part[r, token, k]
                y[token, cta * self.rows + r] = v.to(BFloat16)


class TwoKernels:
    def __init__(self, dims, tokens):
        p = tuning(dims, tokens)
        self.gate_up = GateUp(dims["hidden"], dims["width"], tokens, p)
        self.down = Down(dims["hidden"], dims["width"], tokens, p)

    @cute.jit
    def __call__(
        self, m: cute.Tensor, w_gate_up: cute.Tensor, w_down: cute.Tensor, y: cute.Tensor, h: cute.Tensor,
        stream: cuda.CUstream,
    ):  # fmt: skip
        self.gate_up(m, w_gate_up, h, stream)
        self.down(h, w_down, y, stream)


def workspaces(dims, tokens, arch):
    return [("bf16", (tokens, dims["width"]))]


def design(dims, tokens, arch):
    p = tuning(dims, tokens)
    return f"mma, {p['groups']} groups x {p['ksplit']} K splits, x {p['x']}, down weights {p['down_w']}"


def build(dims, tokens, arch):
    return TwoKernels(dims, tokens)
