"""Router and latent shards in one GEMM, gathered on all ranks, and the choice of experts, in one kernel.

1. multiply (CTAs 0..): a CTA owns some rows of this rank's w_latent, then w_router, over all of K. Rows are the 16-row
   operand of mma.sync, tokens the 8-wide one; warps share K and meet in shared memory in a fixed order.
2. send: eight latents of a token, rounded, go to all peers in one 16-byte store; each logit goes to all ranks, this one
   too, as a word. What has not come is 0x80000000: the bf16 pair (+0, -0), the float32 -0; -0 is sent as +0.
3. gather: a thread waits for the peers' latents of its own place, writes them into `lat`, and arms the place again.
4. route (the last CTAs): a warp takes a token, waits for the logits of all experts, arms their places, and takes the
   best biased score top_k times: of equal ones the lower id, NaN last.

The fence at the end puts the arming in order before all that this rank sends from the next call on. All CTAs are
resident together. `state`: [0] one more than the rank that did not answer within WAIT_NS, zero while all do; [1] one
more than the call in which it was missed; then peers' latents and weights are NaN and ids -1, and later calls send
nothing and wait for nobody. From OWN on, a word a CTA: the number of its next call.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import warp as nvwarp

WAIT_NS = 4_000_000_000  # for peers, each time
LOOKS = 64  # between two looks at the time
SENTINEL = -(1 << 31)
NOTHING = 0x7FFF_7FFF  # two NaN
TOP = 0x7FFF_FFFF
INFINITY = 0x7F80_0000
LEAST = -(1 << 31) + 0x007F_FFFF  # key of -inf, as which NaN counts
WORDS = 4  # of a piece, two columns each
PARITIES = 2
LOST, LOST_CALL, OWN = 0, 1, 4  # words of `state`
CTAS, WARPS = 112, 8  # that multiply, and of a CTA, at most
STEP, LANES = 32, 32  # of K in a 16-byte load of four lanes, two MMAs
DEPTH, DEPTH_MANY, MANY = 8, 4, 8  # K steps of weights that a lane holds, up to MANY tokens and beyond
RENORM_EPS = 1e-20


def divisor(n, most):
    """Largest divisor of n that is at most `most`."""
    return max(d for d in range(1, min(n, most) + 1) if n % d == 0)


class Mailbox:
    """Places of one size that ranks send each other, `count` from each rank."""

    def __init__(self, ranks, count, size):
        self.ranks, self.count, self.size = ranks, count, size

    @cute.jit
    def slot(self, base: Int64, parity: Int32, source: Int32, at: Int32):
        """Address of a sender's place in a mailbox."""
        return base + Int64((parity * self.ranks + source) * self.count + at) * self.size

    @cute.jit
    def put(self, at: Int64, words: cute.Tensor):
        cute.arch.inline_ptx(
            "st.relaxed.sys.global.v4.b32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
            read_only_args=[at, words[0], words[1], words[2], words[3]],
        )

    @cute.jit
    def get(self, at: Int64, words: cute.Tensor):
        words[0], words[1], words[2], words[3] = cute.arch.inline_ptx(
            "ld.relaxed.sys.global.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
            write_only_types=[Int32, Int32, Int32, Int32],
            read_only_args=[at],
        )

    @cute.jit
    def put_word(self, at: Int64, word: Int32):
        cute.arch.inline_ptx("st.relaxed.sys.global.b32 [{$r0}], {$r1};", read_only_args=[at, word])

    @cute.jit
    def get_word(self, at: Int64):
        text = "ld.relaxed.sys.global.b32 {$w0}, [{$r0}];"
        return cute.arch.inline_ptx(text, write_only_types=[Int32], read_only_args=[at])

    @cute.jit
    def miss(self, state: cute.Tensor, lost: Int32, call: Int32):
        """The first thread that misses a rank says which, and when."""
        if cute.arch.atomic_cas((state.iterator + LOST).llvm_ptr, cmp=Int32(0), val=lost, scope="gpu") == 0:
            state[LOST_CALL] = call + 1


class Shards:
    """This rank's columns of the latent and logits of its experts, sent; the peers' latents gathered."""

    def __init__(self, dims, tokens):
        self.ranks, self.tokens, self.hidden = int(dims["ranks"]), tokens, dims["hidden"]
        self.latents, self.experts = dims["latent_rows"], dims["expert_rows"]
        tiles = (self.latents + self.experts + 15) // 16
        self.row_tiles = (tiles + CTAS - 1) // CTAS
        self.rows, self.ctas = 16 * self.row_tiles, (tiles + self.row_tiles - 1) // self.row_tiles
        self.nt = (tokens + 7) // 8  # token tiles
        self.wk = divisor(self.hidden // STEP, WARPS)
        self.threads = LANES * self.wk
        self.steps = self.hidden // STEP // self.wk  # of a warp
        self.depth = divisor(self.steps, DEPTH if tokens <= MANY else DEPTH_MANY)
        pitch = self.rows + 4  # of the sums: fewer bank conflicts
        self.sums = (self.rows, 8 * self.nt, self.wk), (1, pitch, pitch * 8 * self.nt)
        self.eights = self.rows // 8 * tokens  # pieces of a CTA
        self.each = (self.eights + self.threads - 1) // self.threads  # of a thread at most
        self.lats = Mailbox(self.ranks, tokens * self.latents // 8, 4 * WORDS)
        self.logits = Mailbox(self.ranks, tokens * self.experts, 4)

    @cute.jit
    def load_w(self, w_latent: cute.Tensor, w_router: cute.Tensor, wf: cute.Tensor, cta: Int32, tid: Int32, step):
        k8 = (tid // LANES * self.steps + step) * (STEP // 8) + tid % LANES % 4
        for t in cutlass.range_constexpr(self.row_tiles):
            for half in cutlass.range_constexpr(2):
                row = cta * self.rows + 16 * t + 8 * half + tid % LANES // 4
                if row < self.latents:
                    cute.autovec_copy(cute.local_tile(w_latent[row, None], (8,), (k8,)), wf[None, half, t])
                else:
                    expert = cutlass.min(row - self.latents, self.experts - 1)  # a spare row goes nowhere
                    cute.autovec_copy(cute.local_tile(w_router[expert, None], (8,), (k8,)), wf[None, half, t])

    @cute.jit
    def multiply(self, m: cute.Tensor, w_latent: cute.Tensor, w_router: cute.Tensor, sums: cute.Tensor, cta: Int32,
                 tid: Int32):  # fmt: skip
        lane, wk = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        mma = cute.make_tiled_mma(nvwarp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        wf = cute.make_rmem_tensor(cute.make_layout((8, 2, self.row_tiles, self.depth)), BFloat16)
        xf = cute.make_rmem_tensor(cute.make_layout((8, self.nt)), BFloat16)
        # fragments are views of those registers: (pair, row half, k half), tile, MMA, step
        step_a = cutlass.const_expr(16 * self.row_tiles)
        shape_a = cute.make_layout(((2, 2, 2), self.row_tiles, 2, self.depth), stride=((1, 8, 2), 16, 4, step_a))
        fa = cute.make_tensor(wf.iterator, shape_a)
        fb = cute.make_tensor(xf.iterator, cute.make_layout(((2, 2), self.nt, 2), stride=((1, 2), 8, 4)))
        acc = cute.make_rmem_tensor(cute.make_layout(((2, 2), self.row_tiles, self.nt)), Float32)
        acc.fill(0.0)
        for at in cutlass.range_constexpr(self.depth):
            self.load_w(w_latent, w_router, wf[None, None, None, at], cta, tid, Int32(at))
        for turn in cutlass.range(self.steps // self.depth, unroll=1):
            for at in cutlass.range_constexpr(self.depth):
                step = turn * self.depth + at
                for n in cutlass.range_constexpr(self.nt):
                    row = m[cutlass.min(8 * n + lane // 4, self.tokens - 1), None]  # a spare column goes nowhere
                    k8 = (wk * self.steps + step) * (STEP // 8) + lane % 4
                    cute.autovec_copy(cute.local_tile(row, (8,), (k8,)), xf[None, n])
                for k in cutlass.range_constexpr(2):
                    cute.gemm(mma, acc, fa[None, None, k, at], fb[None, None, k], acc)
                step = cutlass.min(step + self.depth, self.steps - 1)
                self.load_w(w_latent, w_router, wf[None, None, None, at], cta, tid, step)
        for t in cutlass.range_constexpr(self.row_tiles):
            for n in cutlass.range_constexpr(self.nt):
                for e in cutlass.range_constexpr(2):
                    for half in cutlass.range_constexpr(2):
                        sums[16 * t + lane // 4 + 8 * half, 8 * n + 2 * (lane % 4) + e, wk] = acc[(e, half), t, n]

    def place(self, at, cta):
        """Of a CTA's piece: the number among its rows, that among the shard's, the token."""
        r8 = at % (self.rows // 8)
        return r8, cta * (self.rows // 8) + r8, at // (self.rows // 8)

    @cute.jit
    def send(self, sums: cute.Tensor, lat: cute.Tensor, lats: cute.Tensor, logits: cute.Tensor, parity: Int32,
             rank: Int32, lost: Int32, cta: Int32, tid: Int32):  # fmt: skip
        """Every piece summed over the warps, and sent; own latents written."""
        parts = cute.make_rmem_tensor(cute.make_layout((8, self.wk)), Float32)
        for i in cutlass.range(self.each, unroll=1):
            at = i * self.threads + tid
            if at < self.eights:
                r8, c8, token = self.place(at, cta)
                for k in cutlass.range_constexpr(self.wk):
                    cute.autovec_copy(cute.local_tile(sums[None, token, k], (8,), (r8,)), parts[None, k])
                total = parts[None, 0].load()
                for k in cutlass.range_constexpr(1, self.wk):
                    total = total + parts[None, k].load()
                parts[None, 0].store(total)
                if 8 * c8 < self.latents:
                    self.send_latents(parts[None, 0], lat, lats, parity, rank, lost, token, c8)
                elif lost == 0:
                    self.send_logits(parts[None, 0], logits, parity, rank, token, 8 * c8 - self.latents)

    @cute.jit
    def send_latents(self, values: cute.Tensor, lat: cute.Tensor, peers: cute.Tensor, parity: Int32, rank: Int32,
                     lost: Int32, token: Int32, c8: Int32):  # fmt: skip
        words = cute.make_rmem_tensor(cute.make_layout(WORDS), Int32)
        cute.recast_tensor(words, BFloat16).store(values.load().to(BFloat16))
        for w in cutlass.range_constexpr(WORDS):
            low, high = words[w] & 0xFFFF, words[w] & Int32(-65536)
            if low == 0x8000:
                low = Int32(0)
            if high == SENTINEL:
                high = Int32(0)
            words[w] = low | high
        if lost == 0:
            for peer in cutlass.range_constexpr(self.ranks):
                if peer != rank:
                    self.lats.put(self.lats.slot(peers[peer], parity, rank, token * (self.latents // 8) + c8), words)
        cute.autovec_copy(words, self.of(lat, token, rank, c8))

    @cute.jit
    def send_logits(self, values: cute.Tensor, peers: cute.Tensor, parity: Int32, rank: Int32, token: Int32,
                    first: Int32):  # fmt: skip
        bits, place = cute.recast_tensor(values, Int32), token * self.experts + first
        for e in cutlass.range_constexpr(8):
            if first + e < self.experts:
                word = bits[e]
                if word == SENTINEL:
                    word = Int32(0)
                for to in cutlass.range_constexpr(self.ranks):
                    self.logits.put_word(self.logits.slot(peers[to], parity, rank, place + e), word)

    def of(self, lat, token, owner, c8):
        return cute.local_tile(lat[token, None], (WORDS,), (owner * (self.latents // 8) + c8,))

    @cute.jit
    def take(self, came: cute.Tensor, base: Int64, parity: Int32, rank: Int32, piece: Int32, lost: Int32):
        """Waits for every peer's latents and arms the places: 0. After WAIT_NS: one more than a rank that is missed."""
        began, looks, waiting, missed = cute.arch.globaltimer(), Int32(0), lost == 0, lost
        came.fill(0)
        while waiting:
            missed = Int32(0)
            for source in cutlass.range_constexpr(self.ranks):
                if source != rank:
                    self.lats.get(self.lats.slot(base, parity, Int32(source), piece), came[None, source])
            for source in cutlass.range_constexpr(self.ranks):
                for w in cutlass.range_constexpr(WORDS):
                    if came[w, source] == SENTINEL:
                        missed = Int32(source + 1)
            waiting = missed != 0
            looks += 1
            if looks % LOOKS == 0:  # noqa: SIM102 (the time is read only then)
                if cute.arch.globaltimer() - began > WAIT_NS:
                    waiting = Boolean(False)
        if missed == 0:
            empty = cute.make_rmem_tensor_like(came[None, 0])
            empty.fill(SENTINEL)
            for source in cutlass.range_constexpr(self.ranks):
                if source != rank:
                    self.lats.put(self.lats.slot(base, parity, Int32(source), piece), empty)
        else:
            came.fill(NOTHING)
        return missed

    @cute.jit
    def gather(self, lat: cute.Tensor, home: Int64, state: cute.Tensor, parity: Int32, rank: Int32, lost: Int32,
               call: Int32, cta: Int32, tid: Int32):  # fmt: skip
        came = cute.make_rmem_tensor(cute.make_layout((WORDS, self.ranks)), Int32)
        for i in cutlass.range(self.each, unroll=1):
            at = i * self.threads + tid
            _, c8, token = self.place(at, cta)
            if at < self.eights and 8 * c8 < self.latents:
                missed = self.take(came, home, parity, rank, token * (self.latents // 8) + c8, lost)
                if missed != 0:
                    self.lats.miss(state, missed, call)
                for source in cutlass.range_constexpr(self.ranks):
                    if source != rank:
                        cute.autovec_copy(came[None, source], self.of(lat, token, source, c8))


class Route:
    """The best experts of a token from the logits of all, by one warp; a lane keeps one of them, so 32 at most."""

    def __init__(self, dims, logits):
        self.experts, self.own, self.top_k, self.logits = dims["experts"], dims["expert_rows"], dims["top_k"], logits
        self.each = (self.experts + LANES - 1) // LANES  # experts of a lane at most

    @cute.jit
    def here(self, home: Int64, parity: Int32, token: Int32, expert: Int32):
        return self.logits.slot(home, parity, expert // self.own, token * self.own + expert % self.own)

    @cute.jit
    def take(self, bits: cute.Tensor, home: Int64, parity: Int32, token: Int32, lane: Int32, lost: Int32):
        """Waits for the lane's logits and arms their places: 0. After WAIT_NS: one more than a rank that is missed."""
        began, looks, waiting, missed = cute.arch.globaltimer(), Int32(0), lost == 0, lost
        bits.fill(NOTHING)
        while waiting:
            missed = Int32(0)
            for i in cutlass.range_constexpr(self.each):
                if i * LANES + lane < self.experts:
                    bits[i] = self.logits.get_word(self.here(home, parity, token, i * LANES + lane))
                    if bits[i] == SENTINEL:
                        missed = (i * LANES + lane) // self.own + 1
            waiting = missed != 0
            looks += 1
            if looks % LOOKS == 0:  # noqa: SIM102 (the time is read only then)
                if cute.arch.globaltimer() - began > WAIT_NS:
                    waiting = Boolean(False)
        if missed == 0:
            for i in cutlass.range_constexpr(self.each):
                if i * LANES + lane < self.experts:
                    self.logits.put_word(self.here(home, parity, token, i * LANES + lane), Int32(SENTINEL))
        return missed

    @cute.jit
    def score(self, bits: cute.Tensor, bias: cute.Tensor, scores: cute.Tensor, keys: cute.Tensor, lane: Int32):
        """Sigmoids, and keys that order biased scores as integers: NaN as -inf, below all what is no expert."""
        biased = cute.make_rmem_tensor(cute.make_layout(1), Float32)
        for i in cutlass.range_constexpr(self.each):
            scores[i] = 1.0 / (1.0 + cute.math.exp(-cute.recast_tensor(bits, Float32)[i]))
            biased[0] = scores[i] + bias[cutlass.min(i * LANES + lane, self.experts - 1)] + 0.0  # no -0
            key = cute.recast_tensor(biased, Int32)[0]
            if key & TOP > INFINITY:
                key = Int32(LEAST)
            elif key < 0:
                key = key ^ TOP
            if i * LANES + lane >= self.experts:
                key = Int32(SENTINEL)
            keys[i] = key

    @cute.jit
    def best(self, keys: cute.Tensor, scores: cute.Tensor, lane: Int32):
        """The id with the largest key of the warp, of equal ones the lowest, and its score; it is taken out."""
        key, at = keys[0], lane
        for i in cutlass.range_constexpr(1, self.each):
            if keys[i] > key:
                key, at = keys[i], i * LANES + lane
        for step in cutlass.range_constexpr(5):
            other = cute.arch.shuffle_sync_bfly(key, offset=1 << step)
            other_at = cute.arch.shuffle_sync_bfly(at, offset=1 << step)
            if other > key or (other == key and other_at < at):
                key, at = other, other_at
        score = Float32(0.0)
        for i in cutlass.range_constexpr(self.each):
            if i * LANES + lane == at:
                keys[i], score = Int32(SENTINEL), scores[i]
        return at, cute.arch.shuffle_sync(score, at % LANES)

    @cute.jit
    def run(self, bias: cute.Tensor, ids: cute.Tensor, w: cute.Tensor, home: Int64, state: cute.Tensor, scale: Float32,
            parity: Int32, lost: Int32, call: Int32, token: Int32, lane: Int32):  # fmt: skip
        bits = cute.make_rmem_tensor(cute.make_layout(self.each), Int32)
        keys = cute.make_rmem_tensor_like(bits)
        scores = cute.make_rmem_tensor(cute.make_layout(self.each), Float32)
        missed = cute.arch.warp_redux_sync(self.take(bits, home, parity, token, lane, lost), "max")
        if missed != 0:
            bits.fill(NOTHING)
            self.logits.miss(state, missed, call)
        self.score(bits, bias, scores, keys, lane)
        mine, weight, total = Int32(-1), Float32(0.0), Float32(0.0)
        for k in cutlass.range(self.top_k, unroll=1):
            at, score = self.best(keys, scores, lane)
            total += score
            if lane == k and missed == 0:
                mine, weight = at, score
        if lane < self.top_k:
            ids[token, lane] = mine
            w[token, lane] = (weight * scale / (total + RENORM_EPS)).to(BFloat16)


class Front:
    def __init__(self, dims, tokens):
        self.shards = Shards(dims, tokens)
        self.route = Route(dims, self.shards.logits)
        self.tokens, self.warps = tokens, self.shards.wk
        self.ctas = self.shards.ctas + (tokens + self.warps - 1) // self.warps

    @cute.kernel
    def kernel(
        self, m: cute.Tensor, w_router: cute.Tensor, bias: cute.Tensor, w_latent: cute.Tensor, ids: cute.Tensor,
        w: cute.Tensor, lat: cute.Tensor, lat_peers: cute.Tensor, logit_peers: cute.Tensor, scale: Float32,
        rank: Int32, state: cute.Tensor,
    ):  # fmt: skip
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        smem = cutlass.memory.SmemAllocator()
        sums = smem.allocate_tensor(Float32, cute.make_layout(self.shards.sums[0], stride=self.shards.sums[1]), 128)
        call, columns = state[OWN + cta], cute.recast_tensor(lat, Int32)
        lost = cute.arch.load((state.iterator + LOST).llvm_ptr, Int32, sem="relaxed", scope="gpu")
        parity = call & (PARITIES - 1)
        cute.arch.sync_threads()
        if tid == 0:
            state[OWN + cta] = call + 1
        if cta < self.shards.ctas:
            self.shards.multiply(m, w_latent, w_router, sums, cta, tid)
            cute.arch.sync_threads()
            self.shards.send(sums, columns, lat_peers, logit_peers, parity, rank, lost, cta, tid)
            self.shards.gather(columns, lat_peers[rank], state, parity, rank, lost, call, cta, tid)
        else:
            token = (cta - self.shards.ctas) * self.warps + cute.arch.make_warp_uniform(tid // LANES)
            if token < self.tokens:
                self.route.run(bias, ids, w, logit_peers[rank], state, scale, parity, lost, call, token, tid % LANES)
        cute.arch.fence_acq_rel_sys()

    @cute.jit
    def __call__(
        self, m: cute.Tensor, w_router: cute.Tensor, bias: cute.Tensor, w_latent: cute.Tensor, ids: cute.Tensor,
        w: cute.Tensor, lat: cute.Tensor, lats: cute.Tensor, lat_peers: cute.Tensor, logits: cute.Tensor,
        logit_peers: cute.Tensor, scale: Float32, rank: Int32, state: cute.Tensor, stream: cuda.CUstream,
    ):  # fmt: skip
        self.kernel(m, w_router, bias, w_latent, ids, w, lat, lat_peers, logit_peers, scale, rank, state).launch(
            grid=[self.ctas, 1, 1], block=[self.shards.threads, 1, 1], stream=stream
        )


def build(dims, tokens, arch):
    return Front(dims, tokens)


def symmetric(dims, tokens, arch):
    ranks, boxes = int(dims["ranks"]), {"lats": ("bf16", "latent_rows"), "logits": ("f32", "expert_rows")}
    return [(name, dtype, (ranks, tokens, dims[of]), PARITIES, 0x8000_0000) for name, (dtype, of) in boxes.items()]


def workspaces(dims, tokens, arch):
    return [("i32", (OWN + Front(dims, tokens).ctas,))]
