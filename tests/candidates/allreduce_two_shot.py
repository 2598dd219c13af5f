"""Sum over ranks in rank order, added to the residual: two-shot, for many ranks and tokens; no wait without an end.

Rank r owns the r-th part of the elements. A thread sends eight columns of each part to its owner, sums in rank order
what all sent for its own part, sends those sums to all, and takes the others' sums from its mailbox: each rank sends
2 (T - 1) / T times its partial, the one-shot exchange T - 1 times, for one more trip between ranks. Both give the same
bits. Mailboxes, `state`, lost ranks and PDL are as in allreduce_one_shot.py; the mailbox has a half for each shot.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float32, Int32, Int64

WAIT_NS = 4_000_000_000  # for peers, of one call
LOOKS = 64  # between two looks at the time
THREADS = 128  # of a CTA at most
SENTINEL = -(1 << 31)
NOTHING = 0x7FFF_7FFF  # two NaN
WORDS = 4  # of a thread, two columns each
PARITIES = 2
PDL = False  # programmatic dependent launch
LOST, LOST_CALL, OWN = 0, 1, 4  # words of `state`


def divisor(n, most):
    """Largest divisor of n that is at most `most`."""
    return max(d for d in range(1, min(n, most) + 1) if n % d == 0)


class Exchange:
    def __init__(self, ranks, tokens, hidden):
        self.ranks = ranks
        self.pieces = tokens * hidden // (2 * WORDS)
        self.own = self.pieces // ranks
        if self.own * ranks * 2 * WORDS != tokens * hidden:
            raise ValueError(
                f"{tokens} rows of {hidden} cannot be shared out among {ranks} ranks in pieces of 16 bytes"
            )
        self.threads = divisor(self.own, THREADS)
        self.ctas = self.own // self.threads

    @cute.jit
    def slot(self, base: Int64, shot: Int32, source: Int32, mine: Int32):
        """Address of a sender's piece in a mailbox. `shot`: twice the parity, and one more for sums."""
        return base + Int64(shot * self.pieces + source * self.own + mine) * (4 * WORDS)

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
    def missing(self, came: cute.Tensor, base: Int64, shot: Int32, rank: Int32, mine: Int32):
        """Reads every peer's piece; one more than the first rank of which a word has not come, or 0."""
        for source in cutlass.range_constexpr(self.ranks):
            if source != rank:
                self.get(self.slot(base, shot, Int32(source), mine), came[None, source])
        found = Int32(0)
        for back in cutlass.range_constexpr(self.ranks):
            source = cutlass.const_expr(self.ranks - 1 - back)
            for w in cutlass.range_constexpr(WORDS):
                if came[w, source] == SENTINEL:
                    found = Int32(source + 1)
        return found

    @cute.jit
    def wait(self, came: cute.Tensor, base: Int64, shot: Int32, rank: Int32, mine: Int32):
        """Until everything came: 0. After WAIT_NS: one more than a rank that is missed."""
        began = cute.arch.globaltimer()
        looks, lost, waiting = Int32(0), Int32(0), Boolean(True)
        while waiting:
            lost = self.missing(came, base, shot, rank, mine)
            waiting = lost != 0
            looks += 1
            if looks % LOOKS == 0:  # noqa: SIM102 (the time is read only then)
                if cute.arch.globaltimer() - began > WAIT_NS:
                    waiting = Boolean(False)
        return lost

    @cute.jit
    def report(self, state: cute.Tensor, lost: Int32, call: Int32):
        """The first thread that misses a rank says which, and when."""
        at = (state.iterator + LOST).llvm_ptr
        if cute.arch.atomic_cas(at, cmp=Int32(0), val=lost, sem="relaxed", scope="gpu") == 0:
            state[LOST_CALL] = call + 1

    @cute.jit
    def send(self, words: cute.Tensor, homes, shot: Int32, rank: Int32, mine: Int32, each: cutlass.Constexpr[bool]):
        """To every peer: its own of `words` [WORDS, ranks] (`each`), or this rank's."""
        for peer in cutlass.range_constexpr(self.ranks):
            if peer != rank:
                if cutlass.const_expr(each):
                    self.put(self.slot(homes[peer], shot, rank, mine), words[None, peer])
                else:
                    self.put(self.slot(homes[peer], shot, rank, mine), words)

    @cute.jit
    def arm(self, home: Int64, shot: Int32, rank: Int32, mine: Int32):
        empty = cute.make_rmem_tensor(cute.make_layout(WORDS), Int32)
        empty.fill(SENTINEL)
        for source in cutlass.range_constexpr(self.ranks):
            if source != rank:
                self.put(self.slot(home, shot, Int32(source), mine), empty)

    @cute.jit
    def sum(self, came: cute.Tensor, summed: cute.Tensor):
        """In rank order in float32, rounded once."""
        words = cute.recast_tensor(came, BFloat16)
        total = words[None, 0].load().to(Float32)
        for source in cutlass.range_constexpr(1, self.ranks):
            total = total + words[None, source].load().to(Float32)
        cute.recast_tensor(summed, BFloat16).store(total.to(BFloat16))

    @cute.jit
    def exchange(self, came: cute.Tensor, homes, home: Int64, parity: Int32, rank: Int32, mine: Int32):
        """Parts in, sums of all parts out, in `came` [WORDS, ranks]. 0, or one more than a rank that is missed."""
        summed = cute.make_rmem_tensor(cute.make_layout(WORDS), Int32)
        own = cute.make_rmem_tensor(cute.make_layout(WORDS), Int32)
        own.fill(0)
        for r in cutlass.range_constexpr(self.ranks):
            if r == rank:
                for w in cutlass.range_constexpr(WORDS):
                    own[w] = came[w, r]
        lost = self.wait(came, home, 2 * parity, rank, mine)
        if lost == 0:
            self.arm(home, 2 * parity, rank, mine)
            for r in cutlass.range_constexpr(self.ranks):
                if r == rank:
                    for w in cutlass.range_constexpr(WORDS):
                        came[w, r] = own[w]
            self.sum(came, summed)
            self.send(summed, homes, 2 * parity + 1, rank, mine, False)
            lost = self.wait(came, home, 2 * parity + 1, rank, mine)
            if lost == 0:
                self.arm(home, 2 * parity + 1, rank, mine)
                for r in cutlass.range_constexpr(self.ranks):
                    if r == rank:
                        for w in cutlass.range_constexpr(WORDS):
                            came[w, r] = summed[w]
        return lost

    @cute.kernel
    def kernel(
        self, part: cute.Tensor, prefix: cute.Tensor, o: cute.Tensor, peers: cute.Tensor, rank: Int32,
        state: cute.Tensor,
    ):  # fmt: skip
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_launch_dependents()
            cute.arch.griddepcontrol_wait()
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        mine = cta * self.threads + thread
        call = state[OWN + cta]
        lost = cute.arch.load((state.iterator + LOST).llvm_ptr, Int32, sem="relaxed", scope="gpu")
        parity = call & (PARITIES - 1)
        homes = [peers[r] for r in range(self.ranks)]
        flat = cute.make_layout(self.pieces * 2 * WORDS)
        came = cute.make_rmem_tensor(cute.make_layout((WORDS, self.ranks)), Int32)
        own = cute.recast_tensor(cute.make_tensor(part.iterator, flat), Int32)
        for r in cutlass.range_constexpr(self.ranks):
            cute.autovec_copy(cute.local_tile(own, (WORDS,), (r * self.own + mine,)), came[None, r])
            for w in cutlass.range_constexpr(WORDS):
                came[w, r] = self.plus_zero(came[w, r])
        if lost == 0:
            self.send(came, homes, 2 * parity, rank, mine, True)
        cute.arch.sync_threads()
        if thread == 0:
            state[OWN + cta] = call + 1
        if lost == 0:
            lost = self.exchange(came, homes, peers[rank], parity, rank, mine)
            if lost != 0:
                self.report(state, lost, call)
        if lost != 0:
            came.fill(NOTHING)
        for r in cutlass.range_constexpr(self.ranks):
            kept = cute.local_tile(cute.make_tensor(prefix.iterator, flat), (2 * WORDS,), (r * self.own + mine,))
            written = cute.local_tile(cute.make_tensor(o.iterator, flat), (2 * WORDS,), (r * self.own + mine,))
            self.store(came[None, r], kept, written)
        cute.arch.fence_acq_rel_sys()

    @cute.jit
    def store(self, words: cute.Tensor, kept: cute.Tensor, written: cute.Tensor):
        """Eight columns of o, and of prefix with them."""
        rounded = cute.recast_tensor(words, BFloat16)
        before = cute.make_rmem_tensor(cute.make_layout(2 * WORDS), BFloat16)
        cute.autovec_copy(kept, before)
        cute.autovec_copy(rounded, written)
        before.store((before.load().to(Float32) + rounded.load().to(Float32)).to(BFloat16))
        cute.autovec_copy(before, kept)

    @cute.jit
    def __call__(
        self, part: cute.Tensor, prefix: cute.Tensor, o: cute.Tensor, box: cute.Tensor, peers: cute.Tensor,
        rank: Int32, state: cute.Tensor, stream: cuda.CUstream,
    ):  # fmt: skip
        self.kernel(part, prefix, o, peers, rank, state).launch(
            grid=[self.ctas, 1, 1], block=[self.threads, 1, 1], stream=stream, use_pdl=PDL
        )


def build(dims, tokens, arch):
    return Exchange(int(dims["ranks"]), tokens, dims["hidden"])


def symmetric(dims, tokens, arch):
    return [("box", "bf16", (2, tokens, dims["hidden"]), PARITIES, 0x8000_0000)]


def workspaces(dims, tokens, arch):
    return [("i32", (OWN + Exchange(int(dims["ranks"]), tokens, dims["hidden"]).ctas,))]
