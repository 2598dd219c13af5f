"""Output projection, sum over ranks and AttnRes in one kernel: partials go from registers into the peers' mailboxes.

1. project (CTAs 0..): a CTA owns some rows of w_o over all of K. A lane queues its own 16-byte pieces in shared memory
   (cp.async). Weight rows are the 16-row operand of mma.sync, tokens the 8-wide one; 8 consecutive k of a lane feed two
   MMAs. Sums of warps meet in shared memory, in a fixed order: the partial of this rank, rounded to bf16.
2. exchange: a thread stores 16 bytes of it into its rank's slot of every peer's mailbox, waits until the peers' pieces
   of the same columns are there (a word that has not come is the bf16 pair (+0, -0), which no sender sends), adds all
   in rank order, rounds, adds the prefix, and arms what it read again. CTAs wait for the same CTA of the peers only.
3. mix: a CTA a token. CTAs of their own take the first MIXERS tokens: the blocks and their sums are ready when the
   last projecting CTA says that the new prefix is there; CTAs that have projected take the others.

All CTAs are resident together, one an SM. `state`: [0] one more than the rank that did not answer within WAIT_NS, zero
while all do; [1] one more than the call in which it was missed; then prefix and out are NaN, and later calls send
nothing and wait for nobody. [2] CTAs that have written their part of prefix, over all calls. From OWN on, a word a CTA:
the number of its next call. PDL: as in allreduce_one_shot.py; False is what the interpreter of several ranks checks.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.nvgpu import warp as nvwarp

WAIT_NS = 4_000_000_000  # for peers, of one call
LOOKS = 64  # between two looks at the time
SENTINEL = -(1 << 31)
NOTHING = 0x7FFF_7FFF  # two NaN
WORDS = 4  # of a piece, two columns each
PARITIES = 2
LOST, LOST_CALL, READY, OWN = 0, 1, 2, 4  # words of `state`
PDL = False  # programmatic dependent launch
CTAS = 112  # of the projection at most
MIXERS = 20  # CTAs that only mix; with those an SM each
WARPS_R, WARPS_K = 2, 4  # of a CTA, along rows of w_o (more for many tokens) and along K
DEPTH = 12  # K steps of weights that a warp has in flight
STEP, LANES = 32, 32  # of K in a 16-byte copy of four lanes, two MMAs
X_TILES = 8  # of 8 tokens and 32 of K, held by a lane at a time
SUM_TILES = 8  # 16 x 8 sums of a warp at most
WARPS, WARPS_MANY, MANY = 16, 8, 8  # of a CTA at most up to MANY tokens and beyond: what registers hold
BELOW_ALL = -3.0e38  # score of a slot that is not mixed


def divisor(n, most):
    """Largest divisor of n that is at most `most`: parameters bend to dims that they do not divide."""
    return max(d for d in range(1, max(1, min(n, most)) + 1) if n % d == 0)


class Mailbox:
    """Pieces of 16 bytes that ranks send each other."""

    def __init__(self, ranks, pieces):
        self.ranks, self.pieces = ranks, pieces

    @cute.jit
    def slot(self, base: Int64, parity: Int32, source: Int32, piece: Int32):
        """Address of a sender's piece in a mailbox."""
        return base + Int64((parity * self.ranks + source) * self.pieces + piece) * (4 * WORDS)

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
    def plus_zero(self, word: Int32):
        """Both halves with -0 turned into +0."""
        low, high = word & 0xFFFF, word & Int32(-65536)
        if low == 0x8000:
            low = Int32(0)
        if high == SENTINEL:
            high = Int32(0)
        return low | high

    @cute.jit
    def send(self, mine: cute.Tensor, peers, parity, rank, piece):
        for peer in cutlass.range_constexpr(self.ranks):
            if peer != rank:
                self.put(self.slot(peers[peer], parity, rank, piece), mine)

    @cute.jit
    def missing(self, came: cute.Tensor, base: Int64, parity, rank, piece):
        """Reads every peer's piece; one more than the first rank of which a word has not come, or 0."""
        for source in cutlass.range_constexpr(self.ranks):
            if source != rank:
                self.get(self.slot(base, parity, Int32(source), piece), came[None, source])
        found = Int32(0)
        for back in cutlass.range_constexpr(self.ranks):
            source = cutlass.const_expr(self.ranks - 1 - back)
            for w in cutlass.range_constexpr(WORDS):
                if came[w, source] == SENTINEL:
                    found = Int32(source + 1)
        return found

    @cute.jit
    def wait(self, came: cute.Tensor, base: Int64, parity, rank, piece, began):
        """Until everything came: 0. WAIT_NS after `began`: one more than a rank that is missed."""
        looks, lost, waiting = Int32(0), Int32(0), Boolean(True)
        while waiting:
            lost = self.missing(came, base, parity, rank, piece)
            waiting = lost != 0
            looks += 1
            if looks % LOOKS == 0:  # noqa: SIM102 (the time is read only then)
                if cute.arch.globaltimer() - began > WAIT_NS:
                    waiting = Boolean(False)
        return lost

    @cute.jit
    def arm(self, base: Int64, parity, rank, piece):
        empty = cute.make_rmem_tensor(cute.make_layout(WORDS), Int32)
        empty.fill(SENTINEL)
        for source in cutlass.range_constexpr(self.ranks):
            if source != rank:
                self.put(self.slot(base, parity, Int32(source), piece), empty)


class Project:
    """y @ w_o.T of this rank, exchanged, and the new prefix from it."""

    def __init__(self, dims, tokens):
        self.tokens, self.hidden, self.local, self.ranks = tokens, dims["hidden"], dims["local"], int(dims["ranks"])
        self.delta = dims["variant"] == "delta"
        tiles = self.hidden // 16
        row_tiles = next(d for d in range(1, tiles + 1) if tiles % d == 0 and tiles // d <= CTAS)
        self.rows, self.ctas = 16 * row_tiles, tiles // row_tiles
        self.nt = (tokens + 7) // 8  # token tiles
        wide = [w for w in range(1, row_tiles + 1) if row_tiles % w == 0 and row_tiles // w * self.nt <= SUM_TILES]
        self.wr = max(divisor(row_tiles, WARPS_R), min(wide, default=row_tiles))
        self.tw = row_tiles // self.wr  # row tiles of a warp
        self.wk = divisor(self.local // STEP, min(WARPS_K, (WARPS if tokens <= MANY else WARPS_MANY) // self.wr))
        self.steps = self.local // STEP // self.wk  # of a warp
        self.threads = LANES * self.wr * self.wk
        self.rolled = tokens > MANY  # else the compiler loads so far ahead that registers do not hold it
        self.depth = min(DEPTH, self.steps)
        ahead = max(2, X_TILES // self.nt)  # K steps of activations
        self.x_depth = divisor(self.steps, ahead) if self.rolled else min(ahead, self.steps)
        self.pitch = self.rows + 4  # of the sums: no bank conflicts; they take the place of the queue
        self.bytes = max(32 * self.threads * self.tw * self.depth, 4 * self.pitch * 8 * self.nt * self.wk)
        self.eights = self.rows // 8 * tokens  # pieces of a CTA
        self.mine = (self.eights + self.threads - 1) // self.threads  # of a thread at most
        self.box = Mailbox(self.ranks, tokens * self.hidden // 8)

    @cute.jit
    def queue_of(self, place, tid):
        at = (cute.recast_ptr(place, dtype=BFloat16) + tid * 8).align(16)
        lanes = cutlass.const_expr(8 * self.threads)
        strides = (1, lanes, 2 * lanes, 2 * lanes * self.tw)
        return cute.make_tensor(at, cute.make_layout((8, 2, self.tw, self.depth), stride=strides))

    @cute.jit
    def fill(self, w_o, place, cta, tid):
        """Starts as many copies of weights as the queue holds; they depend on no earlier kernel."""
        queue = self.queue_of(place, tid)
        for s in cutlass.range_constexpr(self.depth):
            self.load_w(w_o, queue, cta, tid, s)
            cute.arch.cp_async_commit_group()

    @cute.jit
    def load_w(self, w_o, queue: cute.Tensor, cta, tid, step):
        """Start copying this lane's weights of one K step."""
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        wk, wr = warp % self.wk, warp // self.wk
        op = cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL)
        atom = cute.make_copy_atom(op, BFloat16, num_bits_per_copy=128)
        k8 = (wk * self.steps + step) * (STEP // 8) + lane % 4  # in vectors of 8
        for t in cutlass.range_constexpr(self.tw):
            for half in cutlass.range_constexpr(2):
                row = w_o[cta * self.rows + (wr * self.tw + t) * 16 + 8 * half + lane // 4, None]
                cute.copy(atom, cute.local_tile(row, (8,), (k8,)), queue[None, half, t, step % self.depth])

    @cute.jit
    def load_x(self, y, xf: cute.Tensor, tid, step):
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        k8 = (warp % self.wk * self.steps + step) * (STEP // 8) + lane % 4
        for n in cutlass.range_constexpr(self.nt):
            row = y[cutlass.min(8 * n + lane // 4, self.tokens - 1), None]  # clamp: a spare column goes nowhere
            cute.autovec_copy(cute.local_tile(row, (8,), (k8,)), xf[None, n])

    @cute.jit
    def multiply(self, y, w_o, queue: cute.Tensor, sums: cute.Tensor, cta, tid):
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        wk, wr, g, q = warp % self.wk, warp // self.wk, lane // 4, lane % 4
        wf = cute.make_rmem_tensor(cute.make_layout((8, 2, self.tw)), BFloat16)
        xf = cute.make_rmem_tensor(cute.make_layout((8, self.nt, self.x_depth)), BFloat16)
        # fragments are views of those registers: (pair, row half, k half), tile, MMA, step
        fa = cute.make_tensor(wf.iterator, cute.make_layout(((2, 2, 2), self.tw, 2), stride=((1, 8, 2), 16, 4)))
        shape_b = cute.make_layout(((2, 2), self.nt, 2, self.x_depth), stride=((1, 2), 8, 4, 8 * self.nt))
        fb = cute.make_tensor(xf.iterator, shape_b)
        acc = cute.make_rmem_tensor(cute.make_layout(((2, 2), self.tw, self.nt)), Float32)
        acc.fill(0.0)
        for s in cutlass.range_constexpr(self.x_depth):
            self.load_x(y, xf[None, None, s], tid, s)
        if cutlass.const_expr(self.rolled):
            for turn in cutlass.range(self.steps // self.x_depth, unroll=1):
                for at in cutlass.range_constexpr(self.x_depth):
                    step = turn * self.x_depth + at
                    self.step(queue, wf, acc, fa, fb[None, None, None, at], step)
                    if step + self.depth < self.steps:
                        self.load_w(w_o, queue, cta, tid, step + self.depth)
                    cute.arch.cp_async_commit_group()
                    self.load_x(y, xf[None, None, at], tid, cutlass.min(step + self.x_depth, self.steps - 1))
        else:
            for step in cutlass.range_constexpr(self.steps):
                at = step % self.x_depth
                self.step(queue, wf, acc, fa, fb[None, None, None, at], step)
                if cutlass.const_expr(step + self.depth < self.steps):
                    self.load_w(w_o, queue, cta, tid, step + self.depth)
                cute.arch.cp_async_commit_group()
                if cutlass.const_expr(step + self.x_depth < self.steps):
                    self.load_x(y, xf[None, None, at], tid, step + self.x_depth)
        cute.arch.sync_threads()  # every operand is used up
        for t in cutlass.range_constexpr(self.tw):
            for n in cutlass.range_constexpr(self.nt):
                for e in cutlass.range_constexpr(2):
                    for half in cutlass.range_constexpr(2):
                        sums[(wr * self.tw + t) * 16 + g + 8 * half, n * 8 + 2 * q + e, wk] = acc[(e, half), t, n]

    @cute.jit
    def step(self, queue: cute.Tensor, wf: cute.Tensor, acc: cute.Tensor, fa: cute.Tensor, fb: cute.Tensor, step):
        """One K step of the warp: its weights have landed, its activations are in registers."""
        mma = cute.make_tiled_mma(nvwarp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        cute.arch.cp_async_wait_group(self.depth - 1)
        for t in cutlass.range_constexpr(self.tw):
            for half in cutlass.range_constexpr(2):
                cute.autovec_copy(queue[None, half, t, step % self.depth], wf[None, half, t])
        for k in cutlass.range_constexpr(2):
            cute.gemm(mma, acc, fa[None, None, k], fb[None, None, k], acc)

    @cute.jit
    def run(self, y, w_o, place, prefix, peers, rank, call, state: cute.Tensor, cta, tid):
        """This CTA's columns of the new prefix. The caller fences."""
        strides = (1, self.pitch, self.pitch * 8 * self.nt)
        layout = cute.make_layout((self.rows, 8 * self.nt, self.wk), stride=strides)
        sums = cute.make_tensor(cute.recast_ptr(place, dtype=Float32), layout)
        self.multiply(y, w_o, self.queue_of(place, tid), sums, cta, tid)
        cute.arch.sync_threads()
        lost = cute.arch.load((state.iterator + LOST).llvm_ptr, Int32, sem="relaxed", scope="gpu")
        mine = cute.make_rmem_tensor(cute.make_layout((WORDS, self.mine)), Int32)
        before = cute.make_rmem_tensor(cute.make_layout((8, self.mine)), BFloat16)
        mine.fill(0)
        before.fill(0.0)
        if lost == 0:
            for i in cutlass.range_constexpr(self.mine):
                self.send(sums, mine[None, i], before[None, i], prefix, peers, rank, call, cta, i * self.threads + tid)
        began = cute.arch.globaltimer()
        for i in cutlass.range_constexpr(self.mine):
            self.finish(mine[None, i], before[None, i], prefix, peers, rank, call, lost, state, began, cta,
                        i * self.threads + tid)  # fmt: skip

    def place_of(self, at, cta):
        """Of a CTA's piece: the number among its columns, that among hidden, the token."""
        r8 = at % (self.rows // 8)
        return r8, cta * (self.rows // 8) + r8, at // (self.rows // 8)

    @cute.jit
    def send(self, sums, mine: cute.Tensor, before: cute.Tensor, prefix, peers, rank, call, cta, at):
        """The partial of eight columns, rounded, to all peers; its bits stay in `mine`."""
        if at < self.eights:
            r8, c8, token = self.place_of(at, cta)
            part = cute.make_rmem_tensor(cute.make_layout((8, self.wk)), Float32)
            for k in cutlass.range_constexpr(self.wk):
                cute.autovec_copy(cute.local_tile(sums[None, token, k], (8,), (r8,)), part[None, k])
            v = part[None, 0].load()
            for k in cutlass.range_constexpr(1, self.wk):
                v = v + part[None, k].load()
            cute.recast_tensor(mine, BFloat16).store(v.to(BFloat16))
            for w in cutlass.range_constexpr(WORDS):
                mine[w] = self.box.plus_zero(mine[w])
            self.box.send(mine, peers, call & (PARITIES - 1), rank, token * (self.hidden // 8) + c8)
            if cutlass.const_expr(self.delta):
                cute.autovec_copy(cute.local_tile(prefix[token, None], (8,), (c8,)), before)

    @cute.jit
    def finish(self, mine: cute.Tensor, before: cute.Tensor, prefix, peers, rank, call, lost, state, began, cta, at):
        """What the peers sent for these columns, all summed in rank order; the new prefix, and the mailbox armed."""
        if at < self.eights:
            _, c8, token = self.place_of(at, cta)
            piece, parity = token * (self.hidden // 8) + c8, call & (PARITIES - 1)
            came = cute.make_rmem_tensor(cute.make_layout((WORDS, self.ranks)), Int32)
            came.fill(0)
            for r in cutlass.range_constexpr(self.ranks):
                if r == rank:
                    for w in cutlass.range_constexpr(WORDS):
                        came[w, r] = mine[w]
            missed = lost
            if lost == 0:
                missed = self.box.wait(came, peers[rank], parity, rank, piece, began)
            rounded = cute.make_rmem_tensor(cute.make_layout(8), BFloat16)
            sent = cute.recast_tensor(came, BFloat16)
            total = sent[None, 0].load().to(Float32)
            for r in cutlass.range_constexpr(1, self.ranks):
                total = total + sent[None, r].load().to(Float32)
            rounded.store(total.to(BFloat16))
            if cutlass.const_expr(self.delta):
                rounded.store((before.load().to(Float32) + rounded.load().to(Float32)).to(BFloat16))
            if missed == 0:
                self.box.arm(peers[rank], parity, rank, piece)
            else:
                cute.recast_tensor(rounded, Int32).fill(NOTHING)
                lost_at = (state.iterator + LOST).llvm_ptr
                if cute.arch.atomic_cas(lost_at, cmp=Int32(0), val=missed, sem="relaxed", scope="gpu") == 0:
                    state[LOST_CALL] = call + 1
            cute.autovec_copy(rounded, cute.local_tile(prefix[token, None], (8,), (c8,)))


class Mix:
    """out of one token from the new prefix and the finished blocks, by one CTA: a lane's columns in shared memory."""

    def __init__(self, dims, threads):
        self.hidden, self.slots, self.threads = dims["hidden"], dims["slots"], threads
        self.vectors = self.hidden // 8
        self.each = (self.vectors + threads - 1) // threads  # vectors of 8 columns of a thread at most
        self.warps = threads // LANES
        self.sums = 2 * self.slots
        self.bytes = 16 * threads * self.each * self.slots

    @cute.jit
    def run(self, state: cute.Tensor, target, place, sums_at, prefix, blocks, w_norm, w_query, w_out, out, token, nb,
            eps, eps_out, tid):  # fmt: skip
        layout = cute.make_layout(
            (8, self.each, self.slots), stride=(1, 8 * self.threads, 8 * self.threads * self.each)
        )
        held = cute.make_tensor((cute.recast_ptr(place, dtype=BFloat16) + tid * 8).align(16), layout)
        self.fetch(blocks[token, None, None], held, nb, tid)
        weight = self.weight(w_norm, w_query, tid)
        values = cute.make_rmem_tensor(cute.make_layout(self.sums), Float32)
        values.fill(0.0)
        cute.arch.cp_async_wait_group(0)
        for s in cutlass.range_constexpr(self.slots):
            if s < nb:
                values[2 * s], values[2 * s + 1] = self.dots(held[None, None, s], weight)
        self.reduce(values, sums_at[None, None, 0], tid)
        if tid == 0:
            self.wait(state, target)
        cute.arch.sync_threads()
        p = cute.make_rmem_tensor(cute.make_layout((8, self.each)), BFloat16)
        p.fill(0.0)  # spare lanes add zeros
        self.load(prefix[token, None], p, tid)
        last = cute.make_rmem_tensor(cute.make_layout(2), Float32)
        last[0], last[1] = self.dots(p, weight)
        self.reduce(last, sums_at[None, None, 1], tid)
        weights = cute.make_rmem_tensor(cute.make_layout(self.slots + 1), Float32)
        weights[self.slots] = last[0] * cute.math.rsqrt(last[1] * (1.0 / self.hidden) + eps)
        self.soften(values, weights, nb, eps)
        self.finish(self.mixed(p, held, weights, nb), sums_at[None, None, 2], w_out, out[token, None], eps_out, tid)

    @cute.jit
    def fetch(self, rows: cute.Tensor, held: cute.Tensor, nb, tid):
        """Starts copying this lane's columns of the blocks that are mixed; spare lanes get zeros."""
        atom = cute.make_copy_atom(
            cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL), BFloat16, num_bits_per_copy=128
        )
        zeros = cute.make_rmem_tensor(cute.make_layout(8), BFloat16)
        zeros.fill(0.0)
        for s in cutlass.range_constexpr(self.slots):
            if s < nb:
                for i in cutlass.range_constexpr(self.each):
                    at = i * self.threads + tid
                    if at < self.vectors:
                        cute.copy(atom, cute.local_tile(rows[s, None], (8,), (at,)), held[None, i, s])
                    else:
                        cute.autovec_copy(zeros, held[None, i, s])
        cute.arch.cp_async_commit_group()

    @cute.jit
    def weight(self, w_norm, w_query, tid):
        """w_norm times w_query, the thread's columns, float32."""
        norm = cute.make_rmem_tensor(cute.make_layout((8, self.each)), BFloat16)
        query = cute.make_rmem_tensor_like(norm)
        norm.fill(0.0)
        query.fill(0.0)
        self.load(w_norm, norm, tid)
        self.load(w_query, query, tid)
        both = cute.make_rmem_tensor(cute.make_layout((8, self.each)), Float32)
        both.store(norm.load().to(Float32) * query.load().to(Float32))
        return both

    @cute.jit
    def finish(self, mix: cute.Tensor, sums_at: cute.Tensor, w_out, out: cute.Tensor, eps_out, tid):
        """Norms the mix and writes it."""
        square = cute.make_rmem_tensor(cute.make_layout(1), Float32)
        square[0] = self.dot(mix.load(), mix.load())
        self.reduce(square, sums_at, tid)
        scale = cute.math.rsqrt(square[0] * (1.0 / self.hidden) + eps_out)
        w = cute.make_rmem_tensor(cute.make_layout(8), BFloat16)
        for i in cutlass.range_constexpr(self.each):
            at = i * self.threads + tid
            if at < self.vectors:
                cute.autovec_copy(cute.local_tile(w_out, (8,), (at,)), w)
                w.store((mix[None, i].load() * scale * w.load().to(Float32)).to(BFloat16))
                cute.autovec_copy(w, cute.local_tile(out, (8,), (at,)))

    @cute.jit
    def wait(self, state: cute.Tensor, target):
        """For all projecting CTAs of this rank, which themselves end in time."""
        at, began, looks, waiting = (state.iterator + READY).llvm_ptr, cute.arch.globaltimer(), Int32(0), Boolean(True)
        while waiting:
            waiting = cute.arch.load(at, Int32, sem="acquire", scope="gpu") != target
            looks += 1
            if looks % LOOKS == 0:  # noqa: SIM102 (the time is read only then)
                if cute.arch.globaltimer() - began > 2 * WAIT_NS:
                    waiting = Boolean(False)

    @cute.jit
    def load(self, row: cute.Tensor, reg: cute.Tensor, tid):
        """The thread's columns of a row."""
        for i in cutlass.range_constexpr(self.each):
            at = i * self.threads + tid
            if at < self.vectors:
                cute.autovec_copy(cute.local_tile(row, (8,), (at,)), reg[None, i])

    @cute.jit
    def dots(self, source: cute.Tensor, weight: cute.Tensor):
        """The thread's part of a source's sums with `weight` and with itself."""
        x = cute.make_rmem_tensor(cute.make_layout(8), BFloat16)
        score, size = Float32(0.0), Float32(0.0)
        for i in cutlass.range_constexpr(self.each):
            cute.autovec_copy(source[None, i], x)
            v = x.load().to(Float32)
            score, size = score + self.dot(v, weight[None, i].load()), size + self.dot(v, v)
        return score, size

    @cute.jit
    def dot(self, a, b):
        return (a * b).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)

    @cute.jit
    def soften(self, values: cute.Tensor, weights: cute.Tensor, nb, eps):
        """Softmax over sources: the last one's score is in `weights`, the others' are made from their sums."""
        top = weights[self.slots]
        for s in cutlass.range_constexpr(self.slots):
            weights[s] = values[2 * s] * cute.math.rsqrt(values[2 * s + 1] * (1.0 / self.hidden) + eps)
            if s >= nb:
                weights[s] = Float32(BELOW_ALL)
            top = cutlass.max(top, weights[s])
        total = Float32(0.0)
        for s in cutlass.range_constexpr(self.slots + 1):
            weights[s] = cute.math.exp(weights[s] - top, fastmath=True)
            total += weights[s]
        for s in cutlass.range_constexpr(self.slots + 1):
            weights[s] = weights[s] / total

    @cute.jit
    def mixed(self, p: cute.Tensor, held: cute.Tensor, weights: cute.Tensor, nb):
        x = cute.make_rmem_tensor(cute.make_layout((8, self.each)), BFloat16)
        mix = cute.make_rmem_tensor(cute.make_layout((8, self.each)), Float32)
        mix.store(p.load().to(Float32) * weights[self.slots])
        for s in cutlass.range_constexpr(self.slots):
            if s < nb:
                cute.autovec_copy(held[None, None, s], x)
                mix.store(mix.load() + x.load().to(Float32) * weights[s])
        return mix

    @cute.jit
    def reduce(self, values: cute.Tensor, part: cute.Tensor, tid):
        """Each of at most 32 values summed over the CTA, in place. part [warps, 32] is used once."""
        n, lane = cutlass.const_expr(cute.size(values)), tid % LANES
        part[tid // LANES, lane] = self.sum_of_lane(values, n, lane)
        cute.arch.sync_threads()
        total = part[0, lane]
        for w in cutlass.range_constexpr(1, self.warps):
            total += part[w, lane]
        for j in cutlass.range_constexpr(n):
            values[j] = cute.arch.shuffle_sync(total, j)

    @cute.jit
    def sum_of_lane(self, values: cute.Tensor, n: cutlass.Constexpr[int], lane):
        """Lane j gets the warp's sum of value j, n <= 32: each step gives half of the values away."""
        held = [values[j] if j < n else Float32(0.0) for j in range(LANES)]
        for step in cutlass.range_constexpr(5):
            offset = cutlass.const_expr(16 >> step)
            high = lane & offset != 0
            for j in cutlass.range_constexpr(offset):
                kept = held[j + offset] if high else held[j]
                given = held[j] if high else held[j + offset]
                held[j] = kept + cute.arch.shuffle_sync_bfly(given, offset=offset)
        return held[0]


class Fused:
    def __init__(self, dims, tokens):
        self.project = Project(dims, tokens)
        self.mix = Mix(dims, self.project.threads)
        self.tokens, self.mixers = tokens, min(tokens, MIXERS)
        self.ctas = self.project.ctas + self.mixers
        if tokens > self.ctas:
            raise ValueError(f"{tokens} tokens are more than the {self.ctas} CTAs that mix one each")

    @cute.kernel
    def kernel(
        self, y: cute.Tensor, w_o: cute.Tensor, prefix: cute.Tensor, blocks: cute.Tensor, w_norm: cute.Tensor,
        w_query: cute.Tensor, w_out: cute.Tensor, out: cute.Tensor, peers: cute.Tensor, nb: Int32, eps: Float32,
        eps_out: Float32, rank: Int32, state: cute.Tensor,
    ):  # fmt: skip
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        projects = cutlass.const_expr(self.project.ctas)
        smem = cutlass.memory.SmemAllocator()
        place = smem.allocate_array(cutlass.Uint8, max(self.project.bytes, self.mix.bytes), byte_alignment=128)
        layout = cute.make_layout((self.mix.warps, LANES, 3), stride=(LANES, 1, LANES * self.mix.warps))
        sums_at = smem.allocate_tensor(Float32, layout, byte_alignment=16)
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_launch_dependents()
        if cta < projects:
            self.project.fill(w_o, place, cta, tid)
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_wait()
        call = state[OWN + cta]
        cute.arch.sync_threads()
        if tid == 0:
            state[OWN + cta] = call + 1
        if cta < projects:
            self.project.run(y, w_o, place, prefix, peers, rank, call, state, cta, tid)
            cute.arch.sync_threads()
            if tid == 0:
                at = (state.iterator + READY).llvm_ptr
                cute.arch.atomic_add(at, Int32(1), sem="release", scope="gpu")
            cute.arch.fence_acq_rel_sys()
        token = cta + self.mixers
        if cta >= projects:
            token = cta - projects
        if token < self.tokens:
            self.mix.run(state, (call + 1) * projects, place, sums_at, prefix, blocks, w_norm, w_query, w_out, out,
                         token, nb, eps, eps_out, tid)  # fmt: skip

    @cute.jit
    def __call__(
        self, y: cute.Tensor, w_o: cute.Tensor, prefix: cute.Tensor, blocks: cute.Tensor, w_norm: cute.Tensor,
        w_query: cute.Tensor, w_out: cute.Tensor, out: cute.Tensor, box: cute.Tensor, peers: cute.Tensor, nb: Int32,
        eps: Float32, eps_out: Float32, rank: Int32, state: cute.Tensor, stream: cuda.CUstream,
    ):  # fmt: skip
        self.kernel(
            y, w_o, prefix, blocks, w_norm, w_query, w_out, out, peers, nb, eps, eps_out, rank, state
        ).launch(
            grid=[self.ctas, 1, 1], block=[self.project.threads, 1, 1], stream=stream, use_pdl=PDL,
            min_blocks_per_mp=1)  # fmt: skip


def build(dims, tokens, arch):
    return Fused(dims, tokens)


def symmetric(dims, tokens, arch):
    return [("box", "bf16", (int(dims["ranks"]), tokens, dims["hidden"]), PARITIES, 0x8000_0000)]


def workspaces(dims, tokens, arch):
    return [("i32", (OWN + Fused(dims, tokens).ctas,))]
