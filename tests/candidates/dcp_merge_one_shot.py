"""Attended rows to their heads' owners, merge, W_UV and gate, in one kernel: CTAs wait for the same CTA of the peers.

A CTA takes one head of every owner, and as many tokens as divide the batch, TOKENS at most.

1. fetch: w_uv of its own head is on its way into shared memory (cp.async) before anything is waited for.
2. send: the rows and lses of head h of every peer go into this rank's slot of that peer's mailboxes, 16 bytes a store.
   A word that has not come is 0x80000000: the pair (+0, -0) among rows, -0 among lses; -0 is sent as +0.
3. merge: a thread waits for eight columns of a row and its lse from all ranks, weighs them in rank order, and puts the
   rounded row into shared memory. It arms its columns again; lses, which many threads read, are armed behind a barrier.
4. value: a thread has eight values and a part of the latent; warps meet in shared memory in a fixed order.
5. gate: the rounded value times the sigmoid of its gate.

The fence behind them acquires what came, and puts the arming in order before all that this rank sends from the next
call on. `state`: [0] one more than the rank that did not answer within WAIT_NS, zero while all do; [1] one more than
the call in which it was missed; then y is NaN where a row did not come, and later calls send nothing and wait for
nobody. From OWN on, a word a CTA: the number of its next call.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync

WAIT_NS = 4_000_000_000  # for peers, of one call
LOOKS = 64  # between two looks at the time
SENTINEL = -(1 << 31)
NOTHING = 0x7FFF_7FFF  # two NaN
WORDS = 4  # of a piece, two columns each
PARITIES = 2
LOST, LOST_CALL, OWN = 0, 1, 4  # words of `state`
TOKENS = 8  # of a CTA at most
THREADS, LANES = 256, 32
WARPS = THREADS // LANES


def divisor(n, most):
    """Largest divisor of n that is at most `most`."""
    return max(d for d in range(1, min(n, most) + 1) if n % d == 0)


class Mailbox:
    """Places of one size that ranks send each other, `count` of them from each rank."""

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
        return cute.arch.inline_ptx(
            "ld.relaxed.sys.global.b32 {$w0}, [{$r0}];", write_only_types=[Int32], read_only_args=[at]
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


class Merge:
    def __init__(self, dims, tokens):
        self.ranks, self.heads, self.latent, self.value = (
            int(dims["ranks"]), dims["heads"], dims["latent"], dims["value"],
        )  # fmt: skip
        self.gate_at = dims["gate_at"]
        self.tile = divisor(tokens, TOKENS)
        self.groups, self.ctas = tokens // self.tile, tokens // self.tile * self.heads
        self.eights = self.latent // 8  # pieces of a row
        self.pieces = self.tile * self.eights  # of a CTA, and of a rank
        self.each = (self.pieces + THREADS - 1) // THREADS  # of a thread at most
        self.fours = self.value // 8  # threads that share a part of the latent
        self.parts = THREADS // self.fours
        self.part = self.latent // self.parts  # latent of a thread
        self.rows = Mailbox(self.ranks, tokens * self.heads * self.eights, 4 * WORDS)
        self.lses = Mailbox(self.ranks, tokens * self.heads, 4)

    @cute.jit
    def fetch(self, w_uv: cute.Tensor, weights: cute.Tensor, head: Int32, tid: Int32):
        """Starts copying the head's [latent, value] weights."""
        op = cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL)
        atom = cute.make_copy_atom(op, BFloat16, num_bits_per_copy=128)
        for i in cutlass.range(self.latent // self.parts, unroll=8):
            row, column = i * self.parts + tid // self.fours, tid % self.fours
            source = cute.local_tile(w_uv[head, row, None], (8,), (column,))
            cute.copy(atom, source, cute.local_tile(weights[row, None], (8,), (column,)))
        cute.arch.cp_async_commit_group()

    @cute.jit
    def row(self, lat: cute.Tensor, words: cute.Tensor, token: Int32, head: Int32, piece: Int32):
        """Eight columns of a row as they are sent."""
        own = cute.recast_tensor(lat[token, head, None], Int32)
        cute.autovec_copy(cute.local_tile(own, (WORDS,), (piece,)), words)
        for w in cutlass.range_constexpr(WORDS):
            words[w] = self.rows.plus_zero(words[w])

    @cute.jit
    def lse_bits(self, lse: cute.Tensor, token: Int32, head: Int32):
        bits = cute.recast_tensor(lse, Int32)[token, head]
        if bits == SENTINEL:
            bits = Int32(0)
        return bits

    @cute.jit
    def send(self, lat: cute.Tensor, lse: cute.Tensor, rows, lses, parity: Int32, rank: Int32, first: Int32,
             head: Int32, tid: Int32):  # fmt: skip
        """This rank's part of the head of every peer."""
        words = cute.make_rmem_tensor(cute.make_layout(WORDS), Int32)
        for peer in cutlass.range_constexpr(self.ranks):
            if peer != rank:
                for i in cutlass.range_constexpr(self.each):
                    at = i * THREADS + tid
                    if at < self.pieces:
                        token, piece = first + at // self.eights, at % self.eights
                        self.row(lat, words, token, peer * self.heads + head, piece)
                        to = (token * self.heads + head) * self.eights + piece
                        self.rows.put(self.rows.slot(rows[peer], parity, rank, to), words)
                if tid < self.tile:
                    token = first + tid
                    to = self.lses.slot(lses[peer], parity, rank, token * self.heads + head)
                    self.lses.put_word(to, self.lse_bits(lse, token, peer * self.heads + head))

    @cute.jit
    def missing(self, came: cute.Tensor, sums: cute.Tensor, rows, lses, parity: Int32, rank: Int32, place: Int32,
                piece: Int32):  # fmt: skip
        """Reads every peer's columns and lse; one more than the first rank of which a word has not come, or 0."""
        for source in cutlass.range_constexpr(self.ranks):
            if source != rank:
                here = self.rows.slot(rows, parity, Int32(source), place * self.eights + piece)
                self.rows.get(here, came[None, source])
                sums[source] = self.lses.get_word(self.lses.slot(lses, parity, Int32(source), place))
        found = Int32(0)
        for back in cutlass.range_constexpr(self.ranks):
            source = cutlass.const_expr(self.ranks - 1 - back)
            if sums[source] == SENTINEL:
                found = Int32(source + 1)
            for w in cutlass.range_constexpr(WORDS):
                if came[w, source] == SENTINEL:
                    found = Int32(source + 1)
        return found

    @cute.jit
    def wait(self, came: cute.Tensor, sums: cute.Tensor, rows, lses, parity: Int32, rank: Int32, place: Int32,
             piece: Int32, began):  # fmt: skip
        """Until everything came: 0. WAIT_NS after `began`: one more than a rank that is missed."""
        looks, lost, waiting = Int32(0), Int32(0), Boolean(True)
        while waiting:
            lost = self.missing(came, sums, rows, lses, parity, rank, place, piece)
            waiting = lost != 0
            looks += 1
            if looks % LOOKS == 0:  # noqa: SIM102 (the time is read only then)
                if cute.arch.globaltimer() - began > WAIT_NS:
                    waiting = Boolean(False)
        return lost

    @cute.jit
    def weigh(self, came: cute.Tensor, sums: cute.Tensor, merged: cute.Tensor):
        """The weighted mean of all ranks' columns, in rank order in float32, rounded once."""
        lse = cute.recast_tensor(sums, Float32)
        sent = cute.recast_tensor(came, BFloat16)
        top = lse[0]
        for source in cutlass.range_constexpr(1, self.ranks):
            top = cutlass.max(top, lse[source])
        weight = cute.math.exp2(lse[0] - top, fastmath=True)
        total, mixed = weight, sent[None, 0].load().to(Float32) * weight
        for source in cutlass.range_constexpr(1, self.ranks):
            weight = cute.math.exp2(lse[source] - top, fastmath=True)
            total, mixed = total + weight, mixed + sent[None, source].load().to(Float32) * weight
        merged.store((mixed / total).to(BFloat16))

    @cute.jit
    def merge(self, lat: cute.Tensor, lse: cute.Tensor, rows, lses, inside: cute.Tensor, state: cute.Tensor,
              parity: Int32, rank: Int32, lost: Int32, call: Int32, first: Int32, head: Int32, tid: Int32):  # fmt: skip
        """The own head's merged rows of the CTA's tokens, in `inside`; its mailboxes armed again."""
        came = cute.make_rmem_tensor(cute.make_layout((WORDS, self.ranks)), Int32)
        sums = cute.make_rmem_tensor(cute.make_layout(self.ranks), Int32)
        merged = cute.make_rmem_tensor(cute.make_layout(8), BFloat16)
        empty = cute.make_rmem_tensor(cute.make_layout(WORDS), Int32)
        empty.fill(SENTINEL)
        began = cute.arch.globaltimer()
        for i in cutlass.range_constexpr(self.each):
            at = i * THREADS + tid
            if at < self.pieces:
                row, piece = at // self.eights, at % self.eights
                token, missed = first + row, lost
                place = token * self.heads + head
                came.fill(0)
                sums.fill(0)
                for r in cutlass.range_constexpr(self.ranks):
                    if r == rank:
                        self.row(lat, came[None, r], token, r * self.heads + head, piece)
                        sums[r] = self.lse_bits(lse, token, r * self.heads + head)
                if lost == 0:
                    missed = self.wait(came, sums, rows, lses, parity, rank, place, piece, began)
                self.weigh(came, sums, merged)
                if missed != 0:
                    cute.recast_tensor(merged, Int32).fill(NOTHING)
                    self.report(state, missed, call)
                else:
                    for source in cutlass.range_constexpr(self.ranks):
                        if source != rank:
                            here = self.rows.slot(rows, parity, Int32(source), place * self.eights + piece)
                            self.rows.put(here, empty)
                cute.autovec_copy(merged, cute.local_tile(inside[row, None], (8,), (piece,)))
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        if tid < self.tile and lost == 0:
            for source in cutlass.range_constexpr(self.ranks):
                if source != rank:
                    here = self.lses.slot(lses, parity, Int32(source), (first + tid) * self.heads + head)
                    self.lses.put_word(here, Int32(SENTINEL))

    @cute.jit
    def report(self, state: cute.Tensor, lost: Int32, call: Int32):
        """The first thread that misses a rank says which, and when."""
        at = (state.iterator + LOST).llvm_ptr
        if cute.arch.atomic_cas(at, cmp=Int32(0), val=lost, sem="relaxed", scope="gpu") == 0:
            state[LOST_CALL] = call + 1

    @cute.jit
    def multiply(self, weights: cute.Tensor, inside: cute.Tensor, partial: cute.Tensor, tid: Int32):
        """Merged rows times w_uv: the sums of each warp, in `partial`."""
        eight, part = tid % self.fours, tid // self.fours
        w = cute.make_rmem_tensor(cute.make_layout(8), BFloat16)
        acc = cute.make_rmem_tensor(cute.make_layout((8, self.tile)), Float32)
        acc.fill(0.0)
        for i in cutlass.range(self.part, unroll=4):
            at = part * self.part + i
            cute.autovec_copy(cute.local_tile(weights[at, None], (8,), (eight,)), w)
            wide = w.load().to(Float32)
            for row in cutlass.range_constexpr(self.tile):
                acc[None, row].store(acc[None, row].load() + wide * inside[row, at].to(Float32))
        for row in cutlass.range_constexpr(self.tile):
            for e in cutlass.range_constexpr(8):
                for step in cutlass.range_constexpr(5):
                    offset = cutlass.const_expr(1 << step)
                    if cutlass.const_expr(offset >= self.fours):  # lanes with the same values
                        acc[e, row] += cute.arch.shuffle_sync_bfly(acc[e, row], offset=offset)
            if tid % LANES < self.fours:
                cute.autovec_copy(acc[None, row], cute.local_tile(partial[tid // LANES, row, None], (8,), (eight,)))

    @cute.jit
    def gate(self, partial: cute.Tensor, p: cute.Tensor, y: cute.Tensor, first: Int32, head: Int32, tid: Int32):
        for i in cutlass.range_constexpr((self.tile * self.value + THREADS - 1) // THREADS):
            at = i * THREADS + tid
            if at < self.tile * self.value:
                row, v = at // self.value, at % self.value
                total = partial[0, row, v]
                for warp in cutlass.range_constexpr(1, WARPS):
                    total += partial[warp, row, v]
                column = head * self.value + v
                passes = 1.0 / (1.0 + cute.math.exp(-p[first + row, self.gate_at + column].to(Float32), fastmath=True))
                y[first + row, column] = (total.to(BFloat16).to(Float32) * passes).to(BFloat16)

    @cute.kernel
    def kernel(
        self, lat: cute.Tensor, lse: cute.Tensor, w_uv: cute.Tensor, p: cute.Tensor, y: cute.Tensor,
        row_peers: cute.Tensor, lse_peers: cute.Tensor, rank: Int32, state: cute.Tensor,
    ):  # fmt: skip
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        head, first = cta % self.heads, cta // self.heads * self.tile
        smem = cutlass.memory.SmemAllocator()
        by_row = cute.make_layout((self.latent, self.value), stride=(self.value, 1))
        weights = smem.allocate_tensor(BFloat16, by_row, byte_alignment=128)
        merged = cute.make_layout((self.tile, self.latent), stride=(self.latent, 1))
        inside = smem.allocate_tensor(BFloat16, merged, byte_alignment=128)
        sums = cute.make_layout((WARPS, self.tile, self.value), stride=(self.tile * self.value, self.value, 1))
        partial = smem.allocate_tensor(Float32, sums, byte_alignment=128)
        self.fetch(w_uv, weights, head, tid)
        call = state[OWN + cta]
        lost = cute.arch.load((state.iterator + LOST).llvm_ptr, Int32, sem="relaxed", scope="gpu")
        parity = call & (PARITIES - 1)
        if lost == 0:
            self.send(lat, lse, row_peers, lse_peers, parity, rank, first, head, tid)
        cute.arch.sync_threads()
        if tid == 0:
            state[OWN + cta] = call + 1
        self.merge(
            lat, lse, row_peers[rank], lse_peers[rank], inside, state, parity, rank, lost, call, first, head, tid
        )
        cute.arch.fence_acq_rel_sys()
        self.multiply(weights, inside, partial, tid)
        cute.arch.sync_threads()
        self.gate(partial, p, y, first, head, tid)

    @cute.jit
    def __call__(
        self, lat: cute.Tensor, lse: cute.Tensor, w_uv: cute.Tensor, p: cute.Tensor, y: cute.Tensor, rows: cute.Tensor,
        row_peers: cute.Tensor, lses: cute.Tensor, lse_peers: cute.Tensor, rank: Int32, state: cute.Tensor,
        stream: cuda.CUstream,
    ):  # fmt: skip
        self.kernel(lat, lse, w_uv, p, y, row_peers, lse_peers, rank, state).launch(
            grid=[self.ctas, 1, 1], block=[THREADS, 1, 1], stream=stream
        )


def build(dims, tokens, arch):
    return Merge(dims, tokens)


def symmetric(dims, tokens, arch):
    ranks, heads = int(dims["ranks"]), dims["heads"]
    return [
        ("rows", "bf16", (ranks, tokens, heads, dims["latent"]), PARITIES, 0x8000_0000),
        ("lses", "f32", (ranks, tokens, heads), PARITIES, 0x8000_0000),
    ]


def workspaces(dims, tokens, arch):
    return [("i32", (OWN + Merge(dims, tokens).ctas,))]
