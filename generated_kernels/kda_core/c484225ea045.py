"""kda_core: one cluster of CTAs a (request, head), the head's state in registers between one read and one write.

A cluster of `split` CTAs (1 where there are heads enough) shares a head. Each CTA owns the same 128 / split channels of
q, k, v and of the decay, and the state rows of its v channels:

1. weights: its rows of f_b, conv_w, biases, all before the wait for the kernel before (programmatic dependent launch);
2. prepare: rg = bf16(f_a f_b^T) by mma.sync (rows of f_b are the 16-row operand, the request's tokens the 8-wide one),
   decay D, convolution; D and the raw q, k go to every CTA of the cluster, v stays;
3. advance, token by token: a part of a warp holds a state row, k over its lanes. With S' = S D both S' k and S' q are
   reduced at once, as S q = S' q + u (k q); q and k are not scaled, their norms multiply the sums;
4. norm: square sums of o cross the cluster, then y.

A request in padding (slot <= 0) writes zeros to y and nothing else; the branch is the same for the whole cluster.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64

CTAS = 264  # a head is split until there are about this many CTAs
ELEMENTS = 32  # of the state that a thread keeps, where threads allow
LANES = 16  # that share a state row, at least
EARLY, PDL = True, True  # whether the next kernel may start at once; programmatic dependent launch
HEAD = 128  # width of a head, and rank of the decay gate
TAPS = 3  # inputs that the convolution sees besides the newest
GATE_STEPS = HEAD // 32  # K steps of 32, of two mma each
LOG2_E = 1.4426950408889634


def plan(dims):
    """CTAs of a head, threads, lanes of a state row."""
    heads = dims["requests"] * dims["heads"]
    split = next(s for s in (1, 2, 4, 8) if heads * s >= CTAS or s == 8)
    own = HEAD // split
    threads = max(128, min(512, own * HEAD // ELEMENTS))
    return split, threads, max(LANES, threads // own)


@cute.jit
def sigmoid(x):
    return cute.arch.rcp_approx(1.0 + cute.math.exp(-x, fastmath=True))


class KdaCore:
    def __init__(self, dims):
        self.requests, self.heads, self.width, self.q = dims["requests"], dims["heads"], dims["width"], int(dims["q"])
        self.split, self.threads, self.lanes = plan(dims)
        self.own = HEAD // self.split  # channels, and state rows, of a CTA
        self.warps, self.groups = self.threads // 32, self.threads // self.lanes
        self.rows = self.own // self.groups  # state rows of a thread
        self.chunks = HEAD // (4 * self.lanes)  # 16-byte pieces of a state row in a lane
        self.tiles = (self.own // 16 + self.warps - 1) // self.warps  # 16 rows of f_b, of a warp
        self.inputs = (3 * self.own + self.threads - 1) // self.threads  # channels that a thread convolves
        self.outputs = (self.q * self.own + self.threads - 1) // self.threads

    @cute.jit
    def run(
        self, p, conv_w, f_b, a_log, dt_bias, w_onorm, slots, accepted, conv, s, y, low, scale, eps_qk, eps, stream
    ):  # fmt: skip
        made = self.kernel(
            p, conv_w, f_b, a_log, dt_bias, w_onorm, slots, accepted, conv, s, y, low, scale, eps_qk, eps
        )
        made.launch(
            grid=[self.split, self.heads, self.requests], block=[self.threads, 1, 1], cluster=[self.split, 1, 1],
            stream=stream, use_pdl=PDL, min_blocks_per_mp=1)  # fmt: skip

    @cute.kernel
    def kernel(
        self, p: cute.Tensor, conv_w: cute.Tensor, f_b: cute.Tensor, a_log: cute.Tensor, dt_bias: cute.Tensor,
        w_onorm: cute.Tensor, slots: cute.Tensor, accepted: cute.Tensor, conv: cute.Tensor, s: cute.Tensor,
        y: cute.Tensor, low: Float32, scale: Float32, eps_qk: Float32, eps: Float32,
    ):  # fmt: skip
        if cutlass.const_expr(PDL and EARLY):
            cute.arch.griddepcontrol_launch_dependents()
        tid, _, _ = cute.arch.thread_idx()
        rank, head, request = cute.arch.block_idx()
        first = head * HEAD + rank * self.own  # of the CTA's channels
        if cutlass.const_expr(self.split > 1):
            cute.arch.cluster_arrive()
        smem = cutlass.memory.SmemAllocator()
        # of each token: raw q, raw k and D of the head; the CTA's v and o; square sums of o by warps of the cluster
        shared = smem.allocate_tensor(Float32, cute.make_layout((HEAD, 3, self.q)), byte_alignment=16)
        v = smem.allocate_tensor(Float32, cute.make_layout((self.own, self.q)), byte_alignment=16)
        o = smem.allocate_tensor(Float32, cute.make_layout((self.own, self.q)), byte_alignment=16)
        sums = smem.allocate_tensor(Float32, cute.make_layout((self.split * self.warps, self.q)), byte_alignment=16)
        # 1. weights
        wf = cute.make_rmem_tensor(cute.make_layout((8, 2, GATE_STEPS, self.tiles)), BFloat16)
        wc = cute.make_rmem_tensor(cute.make_layout((4, self.inputs)), Float32)
        bias = cute.make_rmem_tensor(cute.make_layout((2, self.tiles)), Float32)
        self.load_weights(f_b, conv_w, dt_bias, wf, wc, bias, first, tid)
        slope = cute.math.exp(a_log[head], fastmath=True)
        norm = cute.make_rmem_tensor(cute.make_layout(self.outputs), BFloat16)
        for i in cutlass.range_constexpr(self.outputs):
            norm[i] = w_onorm[rank * self.own + (i * self.threads + tid) % self.own]
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_wait()
        # the request's rows, wherever its state lies
        slot = slots[request * self.q]
        fa = cute.make_rmem_tensor(cute.make_layout((8, GATE_STEPS)), BFloat16)
        raw = cute.make_rmem_tensor(cute.make_layout((self.q, self.inputs)), BFloat16)
        gate = cute.make_rmem_tensor(cute.make_layout(self.outputs), BFloat16)
        self.load_rows(p, fa, raw, gate, request, first, tid)
        if cutlass.const_expr(self.split > 1):
            cute.arch.cluster_wait()  # all have started: their shared memory may be written
        if slot > 0:
            start = Int32(0)  # of the taps in the window
            before = slot
            if cutlass.const_expr(self.q > 1):
                start = accepted[request] - 1
                before = slots[request * self.q + start]
            state = cute.make_rmem_tensor(cute.make_layout((4, self.chunks, self.rows)), Float32)
            self.move_state(s, before, head, rank, state, tid, False)
            # 2. prepare
            self.decays(wf, fa, bias, shared, slope, low, rank, tid)
            self.convolve(conv, slot, start, raw, wc, shared, v, rank, first, tid)
            self.meet()
            # 3. advance
            for t in cutlass.range_constexpr(self.q):
                strength = sigmoid(p[request * self.q + t, 4 * self.width + HEAD + head].to(Float32))
                self.advance(state, shared, v, o, sums, t, strength, scale, eps_qk, rank, tid)
                self.move_state(s, slots[request * self.q + t], head, rank, state, tid, True)
            self.meet()
            # 4. norm
            for i in cutlass.range_constexpr(self.outputs):
                at = i * self.threads + tid
                if at < self.q * self.own:
                    t, c = at // self.own, at % self.own
                    total = Float32(0.0)
                    for w in cutlass.range_constexpr(self.split * self.warps):
                        total += sums[w, t]
                    scaled = o[c, t] * cute.math.rsqrt(total * (1.0 / HEAD) + eps, fastmath=True)
                    out = scaled * norm[i].to(Float32) * sigmoid(gate[i].to(Float32))
                    y[request * self.q + t, first + c] = out.to(BFloat16)
        else:
            for i in cutlass.range_constexpr(self.outputs):
                at = i * self.threads + tid
                if at < self.q * self.own:
                    y[request * self.q + at // self.own, first + at % self.own] = BFloat16(0.0)
        if cutlass.const_expr(PDL and not EARLY):
            cute.arch.griddepcontrol_launch_dependents()

    @cute.jit
    def load_weights(self, f_b, conv_w, dt_bias, wf: cute.Tensor, wc: cute.Tensor, bias: cute.Tensor, first, tid):
        """The lane's part of its warp's row tiles of f_b, and the weights of the channels that the thread convolves."""
        for i in cutlass.range_constexpr(self.tiles):
            for half in cutlass.range_constexpr(2):
                row = first + self.tile_row(i, half, tid)
                bias[half, i] = dt_bias[row]
                for step in cutlass.range_constexpr(GATE_STEPS):
                    tile = cute.local_tile(f_b[row, None], (8,), (4 * step + tid % 4,))
                    cute.autovec_copy(tile, wf[None, half, step, i])
        for i in cutlass.range_constexpr(self.inputs):
            cute.autovec_copy(conv_w[self.channel(i, first, tid), None], wc[None, i])

    @cute.jit
    def tile_row(self, i: cutlass.Constexpr[int], half: cutlass.Constexpr[int], tid):
        """Which of the CTA's channels; warps without a tile repeat the last one, to the same result."""
        tile = cutlass.min(i * self.warps + tid // 32, self.own // 16 - 1)
        return tile * 16 + tid % 32 // 4 + 8 * half

    @cute.jit
    def channel(self, i: cutlass.Constexpr[int], first, tid):
        """Column of q, k or v that the thread convolves; spare threads repeat the last one."""
        at = cutlass.min(i * self.threads + tid, 3 * self.own - 1)
        return at // self.own * self.width + first + at % self.own

    @cute.jit
    def load_rows(self, p, fa: cute.Tensor, raw: cute.Tensor, gate: cute.Tensor, request, first, tid):
        token = request * self.q + cutlass.min(tid % 32 // 4, self.q - 1)  # clamp: a spare column goes nowhere
        for step in cutlass.range_constexpr(GATE_STEPS):
            at = self.width // 2 + 4 * step + tid % 4  # in vectors of 8; q, k, v, g come first
            cute.autovec_copy(cute.local_tile(p[token, None], (8,), (at,)), fa[None, step])
        for i in cutlass.range_constexpr(self.inputs):
            for t in cutlass.range_constexpr(self.q):
                raw[t, i] = p[request * self.q + t, self.channel(i, first, tid)]
        for i in cutlass.range_constexpr(self.outputs):
            at = cutlass.min(i * self.threads + tid, self.q * self.own - 1)
            gate[i] = p[request * self.q + at // self.own, 3 * self.width + first + at % self.own]

    @cute.jit
    def move_state(self, s, slot, head, rank, state: cute.Tensor, tid, out: cutlass.Constexpr[bool]):
        """The thread's part of the state rows of one slot: into registers or `out` of them."""
        for r in cutlass.range_constexpr(self.rows):
            row = s[Int64(slot), head, rank * self.own + r * self.groups + tid // self.lanes, None]
            for c in cutlass.range_constexpr(self.chunks):
                there, here = cute.local_tile(row, (4,), (c * self.lanes + tid % self.lanes,)), state[None, c, r]
                if cutlass.const_expr(out):
                    cute.autovec_copy(here, there)
                else:
                    cute.autovec_copy(there, here)

    @cute.jit
    def decays(self, wf: cute.Tensor, fa: cute.Tensor, bias: cute.Tensor, shared: cute.Tensor, slope, low, rank, tid):
        """D of the CTA's channels, for all tokens of the request, to the whole cluster."""
        mma = cute.make_tiled_mma(cute.nvgpu.warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        # K may be permuted: 16 bytes of a lane are its operands of two mma, so fragments are views of what was loaded
        shape_a = cute.make_layout(((2, 2, 2), 1, (2, GATE_STEPS)), stride=((1, 8, 2), 0, (4, 16)))
        shape_b = cute.make_layout(((2, 2), 1, (2, GATE_STEPS)), stride=((1, 2), 0, (4, 8)))
        fb = cute.make_tensor(fa.iterator, shape_b)
        for i in cutlass.range_constexpr(self.tiles):
            a = cute.make_tensor(wf[None, None, None, i].iterator, shape_a)
            rg = cute.make_rmem_tensor(cute.make_layout(((2, 2), 1, 1)), Float32)
            rg.fill(0.0)
            for step in cutlass.range_constexpr(2 * GATE_STEPS):
                cute.gemm(mma, rg, a[None, None, step], fb[None, None, step], rg)
            for half in cutlass.range_constexpr(2):
                for e in cutlass.range_constexpr(2):
                    t = 2 * (tid % 4) + e
                    if t < self.q:
                        x = rg[(e, half), 0, 0].to(BFloat16).to(Float32) + bias[half, i]
                        d = cute.math.exp2(low * LOG2_E * sigmoid(slope * x), fastmath=True)
                        self.share(shared, rank * self.own + self.tile_row(i, half, tid), 2, t, d)

    @cute.jit
    def convolve(
        self, conv, slot, start, raw: cute.Tensor, wc: cute.Tensor, shared: cute.Tensor, v: cute.Tensor, rank, first,
        tid,
    ):  # fmt: skip
        """silu of the convolution: q, k to the whole cluster, v stays; and the window with the new raw inputs."""
        seen = cute.make_rmem_tensor(cute.make_layout((TAPS + self.q, self.inputs)), BFloat16)
        for i in cutlass.range_constexpr(self.inputs):
            if i * self.threads + tid < 3 * self.own:  # spare threads would read what others write
                for j in cutlass.range_constexpr(TAPS):
                    seen[j, i] = conv[Int64(slot), self.channel(i, first, tid), start + j]
            for t in cutlass.range_constexpr(self.q):
                seen[TAPS + t, i] = raw[t, i]
        for i in cutlass.range_constexpr(self.inputs):
            at = i * self.threads + tid
            if at < 3 * self.own:
                kind, c = at // self.own, at % self.own
                for t in cutlass.range_constexpr(self.q):
                    z = Float32(0.0)
                    for j in cutlass.range_constexpr(TAPS + 1):
                        z += seen[t + j, i].to(Float32) * wc[j, i]
                    z = z * sigmoid(z)
                    if kind == 2:
                        v[c, t] = z
                    else:
                        self.share(shared, rank * self.own + c, kind, t, z)
                for j in cutlass.range_constexpr(TAPS + self.q - 1):
                    conv[Int64(slot), self.channel(i, first, tid), j] = seen[j + 1, i]

    @cute.jit
    def advance(
        self, state: cute.Tensor, shared: cute.Tensor, v: cute.Tensor, o: cute.Tensor, sums: cute.Tensor,
        t: cutlass.Constexpr[int], strength, scale, eps_qk, rank, tid,
    ):  # fmt: skip
        """One token: the state after it, its o to shared memory, the warp's square sum to the whole cluster."""
        lane, group = tid % self.lanes, tid // self.lanes
        got = cute.make_rmem_tensor(cute.make_layout((4, self.chunks, 3)), Float32)
        for kind in cutlass.range_constexpr(3):
            for c in cutlass.range_constexpr(self.chunks):
                tile = cute.local_tile(shared[None, kind, t], (4,), (c * self.lanes + lane,))
                cute.autovec_copy(tile, got[None, c, kind])
        q, k, decay = (got[None, None, kind].load() for kind in range(3))
        root_q = cute.math.rsqrt(self.across(self.dot(q, q)) + eps_qk, fastmath=True) * scale
        root_k = cute.math.rsqrt(self.across(self.dot(k, k)) + eps_qk, fastmath=True)
        kq = self.across(self.dot(k, q)) * root_k * root_q
        square = Float32(0.0)
        along = cute.make_rmem_tensor(cute.make_layout((2, self.rows)), Float32)  # S' k and S' q
        for r in cutlass.range_constexpr(self.rows):
            decayed = state[None, None, r].load() * decay
            state[None, None, r].store(decayed)
            along[0, r], along[1, r] = self.dot(decayed, k), self.dot(decayed, q)
        for r in cutlass.range_constexpr(self.rows):
            row = r * self.groups + group
            u = strength * (v[row, t] - self.across(along[0, r]) * root_k)
            out = self.across(along[1, r]) * root_q + u * kq
            state[None, None, r].store(state[None, None, r].load() + k * (u * root_k))
            if lane == 0:  # all lanes of a row have it
                o[row, t] = out
                square += out * out
        square = cute.arch.warp_reduction_sum(square)
        if tid % 32 == 0:
            self.share_sum(sums, rank * self.warps + tid // 32, t, square)

    @cute.jit
    def dot(self, a, b):
        return (a * b).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)

    @cute.jit
    def across(self, x):
        """Sum over the lanes of a state row."""
        return cute.arch.warp_reduction_sum(x, threads_in_group=self.lanes)

    @cute.jit
    def share(self, shared: cute.Tensor, c, kind, t, x):
        self.everywhere(shared, cute.crd2idx((c, kind, t), shared.layout), x)

    @cute.jit
    def share_sum(self, sums: cute.Tensor, w, t, x):
        self.everywhere(sums, cute.crd2idx((w, t), sums.layout), x)

    @cute.jit
    def everywhere(self, there: cute.Tensor, offset, x):
        """x to the same place in the shared memory of every CTA of the cluster."""
        if cutlass.const_expr(self.split == 1):
            cute.make_tensor(there.iterator + offset, cute.make_layout(1))[0] = x
        else:
            for peer in cutlass.range_constexpr(self.split):
                at = cute.arch.map_dsmem_ptr(there.iterator + offset, Int32(peer))
                cute.arch.inline_ptx("st.shared::cluster.f32 [{$r0}], {$r1};", read_only_args=[at.toint(), x])

    @cute.jit
    def meet(self):
        """What any CTA of the cluster has shared is seen by all."""
        if cutlass.const_expr(self.split > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()


class Decode(KdaCore):
    @cute.jit
    def __call__(
        self, p: cute.Tensor, conv_w: cute.Tensor, f_b: cute.Tensor, a_log: cute.Tensor, dt_bias: cute.Tensor,
        w_onorm: cute.Tensor, slots: cute.Tensor, conv: cute.Tensor, s: cute.Tensor, y: cute.Tensor, low: Float32,
        scale: Float32, eps_qk: Float32, eps: Float32, stream: cuda.CUstream,
    ):  # fmt: skip
        self.run(p, conv_w, f_b, a_log, dt_bias, w_onorm, slots, slots, conv, s, y, low, scale, eps_qk, eps, stream)


class Verify(KdaCore):
    @cute.jit
    def __call__(
        self, p: cute.Tensor, conv_w: cute.Tensor, f_b: cute.Tensor, a_log: cute.Tensor, dt_bias: cute.Tensor,
        w_onorm: cute.Tensor, slots: cute.Tensor, accepted: cute.Tensor, conv: cute.Tensor, s: cute.Tensor,
        y: cute.Tensor, low: Float32, scale: Float32, eps_qk: Float32, eps: Float32, stream: cuda.CUstream,
    ):  # fmt: skip
        flat = cute.make_tensor(slots.iterator, cute.make_layout(self.requests * self.q))
        self.run(p, conv_w, f_b, a_log, dt_bias, w_onorm, flat, accepted, conv, s, y, low, scale, eps_qk, eps, stream)


def design(dims, tokens, arch):
    split, threads, lanes = plan(dims)
    return f"cluster of {split} a head, {threads} threads, {lanes} lanes a state row"


def build(dims, tokens, arch):
    return (Decode if dims["q"] == "1" else Verify)(dims)
