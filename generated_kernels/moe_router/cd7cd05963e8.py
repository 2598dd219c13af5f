"""moe_router: logits by mma.sync with K split over CTAs, then the choice, in the last CTA or in a kernel of its own.

1. logits: a CTA owns `rows` experts and 1/splits of K, its warps share both. Weight rows are the 16-row operand, tokens
   the 8-wide one; K may be permuted, so 16 bytes of a lane are its operands of two mma. Weights are on their way before
   the wait for the kernel before (programmatic dependent launch). Partial sums go to a workspace, in float32.
2. score: partial sums added in the order of the splits, the same for every expert: equal rows give equal logits.
3. choose, one warp a token: the k-th largest of the lanes' maxima is a bound that at least k experts reach. Those that
   do are written down in the order of their ids, and each counts how many are better: its rank. Equal ones: lower id.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32

# ROWS experts a CTA up to MANY tokens, ROWS_MANY beyond; at most CTAS of them; DEPTH K steps of 32 in flight a warp
ROWS, ROWS_MANY, MANY = 16, 64, 16
CTAS, THREADS, DEPTH = 132, 256, 14
LAST = 8  # up to so many tokens the last CTA chooses
EARLY, PDL = True, True  # whether the next kernel may start at once; programmatic dependent launch
X_TILES = 16  # of 8 tokens and 32 of K, held by a lane at a time
CHOOSER = 256  # threads of a CTA that only chooses
AHEAD = 8  # times four logits that a thread loads before it uses them
RENORM_EPS = 1e-20
NAN_KEY = -(2**31)  # below every number's key


def divisor(n, most):
    """Largest divisor of n that is at most `most`: parameters bend to dims that they do not divide."""
    return max(d for d in range(1, min(n, max(most, 1)) + 1) if n % d == 0)


def plan(dims, tokens):
    """Experts of a CTA, splits of K."""
    rows = 16 * divisor(dims["experts"] // 16, (ROWS if tokens <= MANY else ROWS_MANY) // 16)
    return rows, divisor(dims["hidden"] // 32, CTAS * rows // dims["experts"])


@cute.jit
def key_of(x):
    """A whole number that orders as x does, NaN below all."""
    bits = cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[x])
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    if x != x:
        key = Int32(NAN_KEY)
    return key


class Router:
    def __init__(self, dims, tokens):
        self.hidden, self.experts, self.top_k = dims["hidden"], dims["experts"], dims["top_k"]
        self.tokens, self.last, self.with_logits = tokens, tokens <= LAST, dims["logits"] == "yes"
        self.rows, self.splits = plan(dims, tokens)
        self.ctas = self.experts // self.rows * self.splits
        self.warps_r = self.rows // 16
        k_steps = self.hidden // 32 // self.splits
        self.warps_k = divisor(k_steps, THREADS // 32 // self.warps_r)
        self.steps = k_steps // self.warps_k  # of 32, of a warp
        self.threads = 32 * self.warps_k * self.warps_r
        self.tiles = (tokens + 7) // 8
        self.depth, self.x_depth = min(DEPTH, self.steps), min(max(1, X_TILES // self.tiles), self.steps)

    @cute.jit
    def run(self, m, w_router, bias, ids, w, logits, part, count, scale, stream):
        self.multiply(m, w_router, bias, ids, w, logits, part, count, scale).launch(
            grid=[self.experts // self.rows, self.splits, 1], block=[self.threads, 1, 1], stream=stream, use_pdl=PDL,
            min_blocks_per_mp=1)  # fmt: skip
        if cutlass.const_expr(not self.last):
            self.choose_only(bias, ids, w, logits, part, scale).launch(
                grid=[self.tokens, 1, 1], block=[CHOOSER, 1, 1], stream=stream, use_pdl=PDL)  # fmt: skip

    @cute.jit
    def load_w(self, w_router, wf: cute.Tensor, row, k8, step: cutlass.Constexpr[int]):
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyG2ROp(), BFloat16, num_bits_per_copy=128,
            l1c_evict_priority=cute.nvgpu.CacheEvictionPriority.NO_ALLOCATE)  # fmt: skip
        for half in cutlass.range_constexpr(2):
            tile = cute.local_tile(w_router[row + 8 * half, None], (8,), (k8 + 4 * step,))
            cute.copy(atom, tile, wf[None, half, step % self.depth])

    @cute.jit
    def load_x(self, m, xf: cute.Tensor, g, k8, step: cutlass.Constexpr[int]):
        for n in cutlass.range_constexpr(self.tiles):
            token = cutlass.min(g + 8 * n, self.tokens - 1)  # clamp: a spare column goes nowhere
            tile = cute.local_tile(m[token, None], (8,), (k8 + 4 * step,))
            cute.autovec_copy(tile, xf[None, n, step % self.x_depth])

    @cute.kernel
    def multiply(
        self, m: cute.Tensor, w_router: cute.Tensor, bias: cute.Tensor, ids: cute.Tensor, w: cute.Tensor,
        logits: cute.Tensor, part: cute.Tensor, count: cute.Tensor, scale: Float32,
    ):  # fmt: skip
        if cutlass.const_expr(PDL and EARLY):
            cute.arch.griddepcontrol_launch_dependents()
        tid, _, _ = cute.arch.thread_idx()
        tile, piece, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(tid // 32)
        wk, wr, g, q = warp % self.warps_k, warp // self.warps_k, tid % 32 // 4, tid % 4
        row = tile * self.rows + wr * 16 + g
        k8 = (piece * self.warps_k + wk) * self.steps * 4 + q  # in vectors of 8
        wf = cute.make_rmem_tensor(cute.make_layout((8, 2, self.depth)), BFloat16)
        xf = cute.make_rmem_tensor(cute.make_layout((8, self.tiles, self.x_depth)), BFloat16)
        # fragments are views of those registers: (pair, row half, k half), k step
        shape_a = cute.make_layout(((2, 2, 2), 1, 2, self.depth), stride=((1, 8, 2), 0, 4, 16))
        shape_b = cute.make_layout(((2, 2), self.tiles, 2, self.x_depth), stride=((1, 2), 8, 4, 8 * self.tiles))
        fa, fb = cute.make_tensor(wf.iterator, shape_a), cute.make_tensor(xf.iterator, shape_b)
        mma = cute.make_tiled_mma(cute.nvgpu.warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        acc = cute.make_rmem_tensor(cute.make_layout(((2, 2), 1, self.tiles)), Float32)
        acc.fill(0.0)
        for s in cutlass.range_constexpr(self.depth):  # weights depend on no earlier kernel
            self.load_w(w_router, wf, row, k8, s)
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_wait()
        for s in cutlass.range_constexpr(self.x_depth):
            self.load_x(m, xf, g, k8, s)
        for s in cutlass.range_constexpr(self.steps):
            for half in cutlass.range_constexpr(2):
                a, b = fa[None, None, half, s % self.depth], fb[None, None, half, s % self.x_depth]
                cute.gemm(mma, acc, a, b, acc)
            if cutlass.const_expr(s + self.depth < self.steps):
                self.load_w(w_router, wf, row, k8, s + self.depth)
            if cutlass.const_expr(s + self.x_depth < self.steps):
                self.load_x(m, xf, g, k8, s + self.x_depth)
        columns, pitch = cutlass.const_expr(8 * self.tiles), cutlass.const_expr(self.rows + 1)  # + 1: no bank conflicts
        smem = cutlass.memory.SmemAllocator()
        layout = cute.make_layout((self.rows, columns, self.warps_k), stride=(1, pitch, pitch * columns))
        sums = smem.allocate_tensor(Float32, layout, byte_alignment=16)
        for n in cutlass.range_constexpr(self.tiles):
            for e in cutlass.range_constexpr(2):
                for half in cutlass.range_constexpr(2):
                    sums[wr * 16 + g + 8 * half, n * 8 + q * 2 + e, wk] = acc[(e, half), 0, n]
        cute.arch.sync_threads()
        outs = cutlass.const_expr(self.rows * self.tokens)
        for i in cutlass.range_constexpr((outs + self.threads - 1) // self.threads):
            at = i * self.threads + tid
            if at < outs:
                r, token = at % self.rows, at // self.rows
                v = sums[r, token, 0]
                for k in cutlass.range_constexpr(1, self.warps_k):
                    v += sums[r, token, k]
                part[piece, token, tile * self.rows + r] = v
        if cutlass.const_expr(self.last):
            ticket = smem.allocate_tensor(Int32, cute.make_layout(1), byte_alignment=16)
            cute.arch.sync_threads()  # all partial sums of the CTA are written
            if tid == 0:
                ticket[0] = cute.arch.atomic_add(count.iterator.llvm_ptr, Int32(1), sem="acq_rel", scope="gpu")
            cute.arch.sync_threads()
            if ticket[0] == self.ctas - 1:
                if tid == 0:
                    count[0] = 0  # as the next call needs it
                self.choose(smem, bias, ids, w, logits, part, scale, 0, self.tokens, tid, self.threads)
        if cutlass.const_expr(PDL and not EARLY):
            cute.arch.griddepcontrol_launch_dependents()

    @cute.kernel
    def choose_only(
        self, bias: cute.Tensor, ids: cute.Tensor, w: cute.Tensor, logits: cute.Tensor, part: cute.Tensor,
        scale: Float32,
    ):  # fmt: skip
        tid, _, _ = cute.arch.thread_idx()
        token, _, _ = cute.arch.block_idx()
        if cutlass.const_expr(PDL):
            if cutlass.const_expr(EARLY):
                cute.arch.griddepcontrol_launch_dependents()
            cute.arch.griddepcontrol_wait()
        smem = cutlass.memory.SmemAllocator()
        self.choose(smem, bias, ids, w, logits, part, scale, token, 1, tid, CHOOSER)
        if cutlass.const_expr(PDL and not EARLY):
            cute.arch.griddepcontrol_launch_dependents()

    @cute.jit
    def choose(
        self, smem, bias, ids, w, logits, part, scale, first, count: cutlass.Constexpr[int], tid,
        threads: cutlass.Constexpr[int],
    ):  # fmt: skip
        """Scores of `count` tokens from `first` on by all threads, then a warp for each token."""
        by_token = cute.make_layout((self.experts, count))
        score = smem.allocate_tensor(Float32, by_token, byte_alignment=16)
        key = smem.allocate_tensor(Int32, by_token, byte_alignment=16)  # then the keys of those that reach the bound
        near = smem.allocate_tensor(Int32, by_token, byte_alignment=16)  # experts that reach it
        chosen = smem.allocate_tensor(Float32, cute.make_layout((self.top_k, count)), byte_alignment=16)
        vectors = cutlass.const_expr(self.experts // 4 * count)
        got = cute.make_rmem_tensor(cute.make_layout((4, AHEAD, self.splits)), Float32)
        add = cute.make_rmem_tensor(cute.make_layout((4, AHEAD)), Float32)
        for i in cutlass.range_constexpr((vectors + threads * AHEAD - 1) // (threads * AHEAD)):
            for j in cutlass.range_constexpr(min(AHEAD, (vectors - i * threads * AHEAD + threads - 1) // threads)):
                at = cutlass.min((i * AHEAD + j) * threads + tid, vectors - 1)
                e4, t = at % (self.experts // 4), at // (self.experts // 4)
                cute.autovec_copy(cute.local_tile(bias, (4,), (e4,)), add[None, j])
                for s in cutlass.range_constexpr(self.splits):
                    cute.autovec_copy(cute.local_tile(part[s, first + t, None], (4,), (e4,)), got[None, j, s])
            for j in cutlass.range_constexpr(min(AHEAD, (vectors - i * threads * AHEAD + threads - 1) // threads)):
                at = (i * AHEAD + j) * threads + tid
                if at < vectors:
                    e4, t = at % (self.experts // 4), at // (self.experts // 4)
                    four = got[None, j, None]
                    self.score_four(four, add[None, j], e4, logits, first + t, score[None, t], key[None, t])
        cute.arch.sync_threads()
        warp, lane = tid // 32, tid % 32
        for t in cutlass.range((count + threads // 32 - 1 - warp) // (threads // 32), unroll=1):
            token = t * (threads // 32) + warp
            keys, ranked = key[None, token], chosen[None, token]
            n = self.note_best(keys, near[None, token], lane)
            cute.arch.sync_warp()
            self.rank(n, keys, near[None, token], score[None, token], ranked, ids, first + token, lane)
            cute.arch.sync_warp()
            s = Float32(0.0)
            if lane < self.top_k:
                s = ranked[lane]
            total = cute.arch.warp_reduction_sum(s)
            if lane < self.top_k:
                w[first + token, lane] = (s * scale / (total + RENORM_EPS)).to(BFloat16)

    @cute.jit
    def score_four(
        self, got: cute.Tensor, add: cute.Tensor, e4, logits, token, score: cute.Tensor, key: cute.Tensor
    ):  # fmt: skip
        """Four experts of a token: their partial sums got [4, splits] and biases to logit, score and key."""
        for k in cutlass.range_constexpr(4):
            v = got[k, 0]
            for s in cutlass.range_constexpr(1, self.splits):
                v += got[k, s]
            if cutlass.const_expr(self.with_logits):
                logits[token, 4 * e4 + k] = v
            sigmoid = cute.arch.rcp_approx(1.0 + cute.math.exp(-v, fastmath=True))
            score[4 * e4 + k] = sigmoid
            key[4 * e4 + k] = key_of(sigmoid + add[k])

    @cute.jit
    def note_best(self, key: cute.Tensor, near: cute.Tensor, lane):
        """Experts that reach a bound which at least k do, by rising id, to `near`, their keys to the front of `key`.

        Returns how many.
        """
        per = cutlass.const_expr((self.experts + 31) // 32)
        mine = cute.make_rmem_tensor(cute.make_layout(per), Int32)
        top = Int32(NAN_KEY)
        for j in cutlass.range_constexpr(per):
            mine[j] = Int32(NAN_KEY)
            if j * 32 + lane < self.experts:
                mine[j] = key[j * 32 + lane]
            top = cutlass.max(top, mine[j])
        place = Int32(0)  # of the lane's best among the lanes'
        for other in cutlass.range_constexpr(32):
            theirs = cute.arch.shuffle_sync(top, other)
            if theirs > top:
                place += 1
            if theirs == top:
                if other < lane:
                    place += 1
        bound = Int32(NAN_KEY)
        if place == self.top_k - 1:
            bound = top
        bound = cute.arch.warp_redux_sync(bound, "max")
        n, below = Int32(0), (Int32(1) << lane) - 1
        cute.arch.sync_warp()  # all keys are in registers
        for j in cutlass.range_constexpr(per):
            reaches = mine[j] >= bound
            if j * 32 + lane >= self.experts:
                reaches = cutlass.Boolean(False)
            those = cute.arch.vote_ballot_sync(reaches)
            if reaches:
                at = n + cute.arch.popc(those & below)
                near[at], key[at] = j * 32 + lane, mine[j]
            n += cute.arch.popc(those)
        return n

    @cute.jit
    def rank(
        self, n, key: cute.Tensor, near: cute.Tensor, score: cute.Tensor, chosen: cute.Tensor, ids, token, lane
    ):  # fmt: skip
        for i in cutlass.range((n + 31) // 32, unroll=1):
            at = i * 32 + lane
            if at < n:
                mine, place = key[at], Int32(0)
                for other in cutlass.range(n, unroll=4):
                    theirs = key[other]
                    if theirs > mine:
                        place += 1
                    if theirs == mine:
                        if other < at:
                            place += 1
                if place < self.top_k:
                    expert = near[at]
                    ids[token, place] = expert
                    chosen[place] = score[expert]


class Plain(Router):
    @cute.jit
    def __call__(
        self, m: cute.Tensor, w_router: cute.Tensor, bias: cute.Tensor, ids: cute.Tensor, w: cute.Tensor,
        scale: Float32, part: cute.Tensor, count: cute.Tensor, stream: cuda.CUstream,
    ):  # fmt: skip
        self.run(m, w_router, bias, ids, w, part, part, count, scale, stream)


class WithLogits(Router):
    @cute.jit
    def __call__(
        self, m: cute.Tensor, w_router: cute.Tensor, bias: cute.Tensor, ids: cute.Tensor, w: cute.Tensor,
        logits: cute.Tensor, scale: Float32, part: cute.Tensor, count: cute.Tensor, stream: cuda.CUstream,
    ):  # fmt: skip
        self.run(m, w_router, bias, ids, w, logits, part, count, scale, stream)


def workspaces(dims, tokens, arch):
    return [("f32", (plan(dims, tokens)[1], tokens, dims["experts"])), ("i32", (1,))]


def design(dims, tokens, arch):
    rows, splits = plan(dims, tokens)
    chosen = "the last CTA chooses" if tokens <= LAST else "a second kernel chooses"
    return f"mma, {rows} experts a CTA, {splits} K splits, {chosen}"


def build(dims, tokens, arch):
    return (WithLogits if dims["logits"] == "yes" else Plain)(dims, tokens)
