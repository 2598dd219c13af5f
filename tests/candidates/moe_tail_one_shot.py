"""The end of the MoE block on all ranks in one kernel: latent sum and norm, up shard, shared-expert sum, gather.

1. norm (the last CTAs): a CTA takes some tokens. It sends this rank's partial latents to all peers, waits for theirs,
   adds in rank order, norms, and writes the row to `normed`; then it says so to the other CTAs of its rank.
2. up (CTAs 0..): a CTA owns some columns of this rank's shard. It sends the shared partials of the columns that its
   like on each peer owns, holds its first weights, and multiplies once all rows are normed: weights are the 16-row
   operand of mma.sync, tokens the 8-wide one; warps share K and meet in shared memory in a fixed order.
3. add: a thread waits for the peers' shared partials of eight columns, adds in rank order, rounds, adds to its own, and
   sends the sum to all peers.
4. gather: it waits for the columns that its likes on the peers have sent, and writes them beside its own.

A word that has not come is the bf16 pair (+0, -0); senders turn -0 into +0. What was read is armed again, and the fence
at the end puts that in order before all that this rank sends from the next call on. CTAs wait for the same CTA of the
peers, and for those that norm; all are resident together. `state`: [0] one more than the rank that did not answer
within WAIT_NS, zero while all do; [1] one more than the call in which it was missed; then what hangs on it is NaN, and
later calls send nothing and wait for nobody. [2] CTAs that have normed, over all calls. From OWN on: each CTA's calls.
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
WORDS = 4  # of a piece, two columns each
PARITIES = 2
LOST, LOST_CALL, READY, OWN = 0, 1, 2, 4  # words of `state`
UPS, NORMS = 112, 20  # CTAs at most
WARPS = 8  # of a CTA at most
STEP, LANES = 32, 32  # of K in a 16-byte load of four lanes, two MMAs
DEPTH, DEPTH_MANY, MANY = 8, 4, 8  # K steps of weights that a lane holds, up to MANY tokens and beyond


def divisor(n, most):
    """Largest divisor of n that is at most `most`."""
    return max(d for d in range(1, min(n, most) + 1) if n % d == 0)


class Mailbox:
    """Pieces of 16 bytes that ranks send each other, `pieces` from each rank."""

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
    def plus_zero(self, words: cute.Tensor):
        """All halves with -0 turned into +0."""
        for w in cutlass.range_constexpr(WORDS):
            low, high = words[w] & 0xFFFF, words[w] & Int32(-65536)
            if low == 0x8000:
                low = Int32(0)
            if high == SENTINEL:
                high = Int32(0)
            words[w] = low | high

    @cute.jit
    def load(self, source: cute.Tensor, words: cute.Tensor):
        """Eight columns as they are sent."""
        cute.autovec_copy(source, words)
        self.plus_zero(words)

    @cute.jit
    def send(self, words: cute.Tensor, peers, parity: Int32, rank: Int32, piece: Int32):
        for peer in cutlass.range_constexpr(self.ranks):
            if peer != rank:
                self.put(self.slot(peers[peer], parity, rank, piece), words)

    @cute.jit
    def take(self, came: cute.Tensor, base: Int64, parity: Int32, rank: Int32, piece: Int32, lost: Int32, call: Int32,
             state: cute.Tensor):  # fmt: skip
        """Waits for every peer's piece and arms it again: 0. After WAIT_NS: one more than a rank that is missed."""
        came.fill(0)
        began, looks, waiting = cute.arch.globaltimer(), Int32(0), lost == 0
        missed = lost
        while waiting:
            missed = Int32(0)
            for source in cutlass.range_constexpr(self.ranks):
                if source != rank:
                    self.get(self.slot(base, parity, Int32(source), piece), came[None, source])
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
            empty = cute.make_rmem_tensor(cute.make_layout(WORDS), Int32)
            empty.fill(SENTINEL)
            for source in cutlass.range_constexpr(self.ranks):
                if source != rank:
                    self.put(self.slot(base, parity, Int32(source), piece), empty)
        elif cute.arch.atomic_cas((state.iterator + LOST).llvm_ptr, cmp=Int32(0), val=missed, scope="gpu") == 0:
            state[LOST_CALL] = call + 1
        return missed

    @cute.jit
    def sum(self, came: cute.Tensor, mine: cute.Tensor, rank: Int32, missed: Int32):
        """All ranks' columns in rank order in float32, rounded once; NaN where a rank is missed."""
        for r in cutlass.range_constexpr(self.ranks):
            if r == rank:
                for w in cutlass.range_constexpr(WORDS):
                    came[w, r] = mine[w]
        words = cute.recast_tensor(came, BFloat16)
        total = words[None, 0].load().to(Float32)
        for r in cutlass.range_constexpr(1, self.ranks):
            total = total + words[None, r].load().to(Float32)
        rounded = cute.make_rmem_tensor(cute.make_layout(2 * WORDS), BFloat16)
        rounded.store(total.to(BFloat16))
        if missed != 0:
            cute.recast_tensor(rounded, Int32).fill(NOTHING)
        return rounded.load().to(Float32)


class Norm:
    """Rows of the latent, summed over the ranks and normed, by some CTAs."""

    def __init__(self, ranks, tokens, latent, threads):
        self.ranks, self.latent, self.threads = ranks, latent, threads
        self.ctas = divisor(tokens, NORMS)
        self.tokens = tokens // self.ctas  # of a CTA
        self.eights = latent // 8
        self.each = (self.eights + threads - 1) // threads  # pieces of a thread and token at most
        self.box = Mailbox(ranks, tokens * self.eights)

    @cute.jit
    def send(self, part: cute.Tensor, peers, parity: Int32, rank: Int32, first: Int32, tid: Int32):
        mine = cute.make_rmem_tensor(cute.make_layout(WORDS), Int32)
        for t in cutlass.range(self.tokens, unroll=1):
            for i in cutlass.range_constexpr(self.each):
                at = i * self.threads + tid
                if at < self.eights:
                    self.box.load(cute.local_tile(part[first + t, None], (WORDS,), (at,)), mine)
                    self.box.send(mine, peers, parity, rank, (first + t) * self.eights + at)

    @cute.jit
    def run(self, part: cute.Tensor, gamma: cute.Tensor, normed: cute.Tensor, home: Int64, sums: cute.Tensor,
            state: cute.Tensor, eps: Float32, parity: Int32, rank: Int32, lost: Int32, call: Int32, first: Int32,
            tid: Int32):  # fmt: skip
        came = cute.make_rmem_tensor(cute.make_layout((WORDS, self.ranks)), Int32)
        mine = cute.make_rmem_tensor(cute.make_layout(WORDS), Int32)
        held = cute.make_rmem_tensor(cute.make_layout((8, self.each)), Float32)
        weight = cute.make_rmem_tensor(cute.make_layout(8), BFloat16)
        for t in cutlass.range(self.tokens, unroll=1):
            token = first + t
            held.fill(0.0)  # spare threads add zeros
            for i in cutlass.range_constexpr(self.each):
                at = i * self.threads + tid
                if at < self.eights:
                    self.box.load(cute.local_tile(part[token, None], (WORDS,), (at,)), mine)
                    missed = self.box.take(came, home, parity, rank, token * self.eights + at, lost, call, state)
                    held[None, i].store(self.box.sum(came, mine, rank, missed))
            square = (held.load() * held.load()).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)
            sums[tid // LANES] = cute.arch.warp_reduction_sum(square)
            cute.arch.sync_threads()
            total = sums[0]
            for w in cutlass.range_constexpr(1, self.threads // LANES):
                total += sums[w]
            scale = cute.math.rsqrt(total * (1.0 / self.latent) + eps)
            for i in cutlass.range_constexpr(self.each):
                at = i * self.threads + tid
                if at < self.eights:
                    cute.autovec_copy(cute.local_tile(gamma, (8,), (at,)), weight)
                    weight.store((held[None, i].load() * scale * weight.load().to(Float32)).to(BFloat16))
                    cute.autovec_copy(weight, cute.local_tile(normed[token, None], (8,), (at,)))
            cute.arch.sync_threads()


class Up:
    """Columns of this rank's shard: normed rows times w_up, and what the ranks' shared experts add to them."""

    def __init__(self, ranks, tokens, latent, columns):
        self.ranks, self.tokens, self.latent, self.columns = ranks, tokens, latent, columns
        tiles = columns // 16
        self.row_tiles = next(d for d in range(1, tiles + 1) if tiles % d == 0 and tiles // d <= UPS)
        self.rows, self.ctas = 16 * self.row_tiles, tiles // self.row_tiles
        self.nt = (tokens + 7) // 8  # token tiles
        self.wk = divisor(latent // STEP, WARPS)
        self.threads = LANES * self.wk
        self.steps = latent // STEP // self.wk  # of a warp
        self.depth = divisor(self.steps, DEPTH if tokens <= MANY else DEPTH_MANY)
        pitch = self.rows + 4  # of the sums: fewer bank conflicts
        self.sums = (self.rows, 8 * self.nt, self.wk), (1, pitch, pitch * 8 * self.nt)
        self.eights = self.rows // 8 * tokens  # pieces of a CTA
        self.each = (self.eights + self.threads - 1) // self.threads  # of a thread at most
        self.box = Mailbox(ranks, tokens * columns // 8)

    def of(self, row, token, owner, c8):
        """Eight columns of an owner's shard in rows of all columns, as words."""
        return cute.local_tile(row[token, None], (WORDS,), (owner * (self.columns // 8) + c8,))

    def place(self, at, cta):
        """Of a CTA's piece: the number among its columns, that among the shard's, the token."""
        r8 = at % (self.rows // 8)
        return r8, cta * (self.rows // 8) + r8, at // (self.rows // 8)

    @cute.jit
    def send(self, shared: cute.Tensor, peers, parity: Int32, rank: Int32, cta: Int32, tid: Int32):
        """The shared-expert partials of the columns that the peers' CTAs of this number own."""
        words = cute.make_rmem_tensor(cute.make_layout(WORDS), Int32)
        for i in cutlass.range(self.each, unroll=1):
            at = i * self.threads + tid
            if at < self.eights:
                _, c8, token = self.place(at, cta)
                for peer in cutlass.range_constexpr(self.ranks):
                    if peer != rank:
                        self.box.load(self.of(shared, token, peer, c8), words)
                        to = self.box.slot(peers[peer], parity, rank, token * (self.columns // 8) + c8)
                        self.box.put(to, words)

    @cute.jit
    def load_w(self, w_up: cute.Tensor, wf: cute.Tensor, cta: Int32, tid: Int32, step: Int32):
        k8 = (tid // LANES * self.steps + step) * (STEP // 8) + tid % LANES % 4
        for t in cutlass.range_constexpr(self.row_tiles):
            for half in cutlass.range_constexpr(2):
                row = w_up[cta * self.rows + 16 * t + 8 * half + tid % LANES // 4, None]
                cute.autovec_copy(cute.local_tile(row, (8,), (k8,)), wf[None, half, t])

    @cute.jit
    def multiply(self, normed: cute.Tensor, w_up: cute.Tensor, wf: cute.Tensor, sums: cute.Tensor, cta: Int32,
                 tid: Int32):  # fmt: skip
        lane, wk = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        mma = cute.make_tiled_mma(nvwarp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        xf = cute.make_rmem_tensor(cute.make_layout((8, self.nt)), BFloat16)
        # fragments are views of those registers: (pair, row half, k half), tile, MMA, step
        tiles = cutlass.const_expr(self.row_tiles)
        shape_a = cute.make_layout(((2, 2, 2), tiles, 2, self.depth), stride=((1, 8, 2), 16, 4, 16 * tiles))
        fa = cute.make_tensor(wf.iterator, shape_a)
        fb = cute.make_tensor(xf.iterator, cute.make_layout(((2, 2), self.nt, 2), stride=((1, 2), 8, 4)))
        acc = cute.make_rmem_tensor(cute.make_layout(((2, 2), self.row_tiles, self.nt)), Float32)
        acc.fill(0.0)
        for turn in cutlass.range(self.steps // self.depth, unroll=1):
            for at in cutlass.range_constexpr(self.depth):
                step = turn * self.depth + at
                for n in cutlass.range_constexpr(self.nt):
                    row = normed[cutlass.min(8 * n + lane // 4, self.tokens - 1), None]  # a spare column goes nowhere
                    k8 = (wk * self.steps + step) * (STEP // 8) + lane % 4
                    cute.autovec_copy(cute.local_tile(row, (8,), (k8,)), xf[None, n])
                for k in cutlass.range_constexpr(2):
                    cute.gemm(mma, acc, fa[None, None, k, at], fb[None, None, k], acc)
                self.load_w(w_up, wf[None, None, None, at], cta, tid, cutlass.min(step + self.depth, self.steps - 1))
        for t in cutlass.range_constexpr(self.row_tiles):
            for n in cutlass.range_constexpr(self.nt):
                for e in cutlass.range_constexpr(2):
                    for half in cutlass.range_constexpr(2):
                        sums[16 * t + lane // 4 + 8 * half, 8 * n + 2 * (lane % 4) + e, wk] = acc[(e, half), t, n]

    @cute.jit
    def add(self, sums: cute.Tensor, shared: cute.Tensor, delta: cute.Tensor, home: Int64, peers, state: cute.Tensor,
            parity: Int32, rank: Int32, lost: Int32, call: Int32, cta: Int32, tid: Int32):  # fmt: skip
        """Own columns of delta, written and sent to all. `home`: of shared partials; `peers`: of columns."""
        came = cute.make_rmem_tensor(cute.make_layout((WORDS, self.ranks)), Int32)
        mine = cute.make_rmem_tensor(cute.make_layout(WORDS), Int32)
        up = cute.make_rmem_tensor(cute.make_layout((8, self.wk)), Float32)
        for i in cutlass.range(self.each, unroll=1):
            at = i * self.threads + tid
            if at < self.eights:
                r8, c8, token = self.place(at, cta)
                for k in cutlass.range_constexpr(self.wk):
                    cute.autovec_copy(cute.local_tile(sums[None, token, k], (8,), (r8,)), up[None, k])
                total = up[None, 0].load()
                for k in cutlass.range_constexpr(1, self.wk):
                    total = total + up[None, k].load()
                self.box.load(self.of(shared, token, rank, c8), mine)
                missed = self.box.take(came, home, parity, rank, token * (self.columns // 8) + c8, lost, call, state)
                summed = self.box.sum(came, mine, rank, missed)
                cute.recast_tensor(mine, BFloat16).store((total.to(BFloat16).to(Float32) + summed).to(BFloat16))
                self.box.plus_zero(mine)
                if missed == 0:
                    self.box.send(mine, peers, parity, rank, token * (self.columns // 8) + c8)
                cute.autovec_copy(mine, self.of(delta, token, rank, c8))

    @cute.jit
    def gather(self, delta: cute.Tensor, home: Int64, state: cute.Tensor, parity: Int32, rank: Int32, lost: Int32,
               call: Int32, cta: Int32, tid: Int32):  # fmt: skip
        """The peers' columns of delta."""
        came = cute.make_rmem_tensor(cute.make_layout((WORDS, self.ranks)), Int32)
        for i in cutlass.range(self.each, unroll=1):
            at = i * self.threads + tid
            if at < self.eights:
                _, c8, token = self.place(at, cta)
                missed = self.box.take(came, home, parity, rank, token * (self.columns // 8) + c8, lost, call, state)
                if missed != 0:
                    came.fill(NOTHING)
                for source in cutlass.range_constexpr(self.ranks):
                    if source != rank:
                        cute.autovec_copy(came[None, source], self.of(delta, token, source, c8))

    @cute.jit
    def wait(self, state: cute.Tensor, target: Int32):
        """For all CTAs of this rank that norm, which themselves end in time."""
        at, began, looks, waiting = (state.iterator + READY).llvm_ptr, cute.arch.globaltimer(), Int32(0), Boolean(True)
        while waiting:
            waiting = cute.arch.load(at, Int32, sem="acquire", scope="gpu") != target
            looks += 1
            if looks % LOOKS == 0:  # noqa: SIM102 (the time is read only then)
                if cute.arch.globaltimer() - began > 2 * WAIT_NS:
                    waiting = Boolean(False)


class Tail:
    def __init__(self, dims, tokens):
        self.up = Up(int(dims["ranks"]), tokens, dims["latent"], dims["columns"])
        self.norm = Norm(self.up.ranks, tokens, dims["latent"], self.up.threads)
        self.ctas = self.up.ctas + self.norm.ctas

    @cute.kernel
    def kernel(
        self, part: cute.Tensor, shared: cute.Tensor, gamma: cute.Tensor, w_up: cute.Tensor, delta: cute.Tensor,
        part_peers: cute.Tensor, share_peers: cute.Tensor, delta_peers: cute.Tensor, eps: Float32, rank: Int32,
        state: cute.Tensor, normed: cute.Tensor,
    ):  # fmt: skip
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        smem = cutlass.memory.SmemAllocator()
        layout = cute.make_layout(self.up.sums[0], stride=self.up.sums[1])
        sums = smem.allocate_tensor(Float32, layout, byte_alignment=128)
        words = [cute.recast_tensor(tensor, Int32) for tensor in (part, shared, delta)]
        squares = smem.allocate_tensor(Float32, cute.make_layout(WARPS), byte_alignment=16)
        call = state[OWN + cta]
        lost = cute.arch.load((state.iterator + LOST).llvm_ptr, Int32, sem="relaxed", scope="gpu")
        parity = call & (PARITIES - 1)
        cute.arch.sync_threads()
        if tid == 0:
            state[OWN + cta] = call + 1
        if cta >= self.up.ctas:
            first = (cta - self.up.ctas) * self.norm.tokens
            if lost == 0:
                self.norm.send(words[0], part_peers, parity, rank, first, tid)
            self.norm.run(words[0], gamma, normed, part_peers[rank], squares, state, eps, parity, rank, lost, call,
                          first, tid)  # fmt: skip
            if tid == 0:
                cute.arch.atomic_add((state.iterator + READY).llvm_ptr, Int32(1), sem="release", scope="gpu")
        else:
            wf = cute.make_rmem_tensor(cute.make_layout((8, 2, self.up.row_tiles, self.up.depth)), BFloat16)
            for step in cutlass.range_constexpr(self.up.depth):
                self.up.load_w(w_up, wf[None, None, None, step], cta, tid, Int32(step))
            if lost == 0:
                self.up.send(words[1], share_peers, parity, rank, cta, tid)
            if tid == 0:
                self.up.wait(state, (call + 1) * self.norm.ctas)
            cute.arch.sync_threads()
            self.up.multiply(normed, w_up, wf, sums, cta, tid)
            cute.arch.sync_threads()
            self.up.add(sums, words[1], words[2], share_peers[rank], delta_peers, state, parity, rank, lost, call, cta,
                        tid)  # fmt: skip
            self.up.gather(words[2], delta_peers[rank], state, parity, rank, lost, call, cta, tid)
        cute.arch.fence_acq_rel_sys()

    @cute.jit
    def __call__(
        self, part: cute.Tensor, shared: cute.Tensor, gamma: cute.Tensor, w_up: cute.Tensor, delta: cute.Tensor,
        parts: cute.Tensor, part_peers: cute.Tensor, shares: cute.Tensor, share_peers: cute.Tensor,
        deltas: cute.Tensor, delta_peers: cute.Tensor, eps: Float32, rank: Int32, state: cute.Tensor,
        normed: cute.Tensor, stream: cuda.CUstream,
    ):  # fmt: skip
        self.kernel(
            part, shared, gamma, w_up, delta, part_peers, share_peers, delta_peers, eps, rank, state, normed
        ).launch(grid=[self.ctas, 1, 1], block=[self.up.threads, 1, 1], stream=stream)


def build(dims, tokens, arch):
    return Tail(dims, tokens)


def symmetric(dims, tokens, arch):
    ranks, widths = int(dims["ranks"]), {"parts": "latent", "shares": "columns", "deltas": "columns"}
    return [(name, "bf16", (ranks, tokens, dims[width]), PARITIES, 0x8000_0000) for name, width in widths.items()]


def workspaces(dims, tokens, arch):
    return [("i32", (OWN + Tail(dims, tokens).ctas,)), ("bf16", (tokens, dims["latent"]))]
