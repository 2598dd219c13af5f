"""Sum over ranks in rank order, added to the residual: one-shot, 16 bytes a thread, and no wait without an end.

A thread owns eight columns of a row: it stores them into its rank's slot of every peer's mailbox (16-byte stores of
system scope), and looks at all slots of its own mailbox together until no word there is the bf16 pair (+0, -0), which
no sender sends. So CTAs wait for nobody but the same CTA of the peers, and all of them are resident together. What was
read is armed again for the call after the next; the fence at the end acquires what came and puts the arming in order
before all that this rank sends from the next call on.

`state`: [0] one more than the rank that did not answer within WAIT_NS, zero while all do; [1] one more than the call in
which it was missed. What did not come makes o and prefix NaN; later calls send nothing and wait for nobody, so that the
peers miss this rank in turn and every call ends. From word OWN on, a word a CTA: the number of its next call, which a
graph that replays the launch moves on without any CTA waiting for another.

Not here: a wait between kernels that overlap. With PDL the next call's CTAs stand ready, and touch nothing until this
one is over; the interpreter of several ranks knows no dependent launches, so False is what it checks.
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
LANES = 32
PDL = False  # programmatic dependent launch
LOST, LOST_CALL, OWN = 0, 1, 4  # words of `state`


def divisor(n, most):
    """Largest divisor of n that is at most `most`."""
    return max(d for d in range(1, min(n, most) + 1) if n % d == 0)


class Exchange:
    def __init__(self, ranks, tokens, hidden):
        self.ranks = ranks
        self.pieces = tokens * hidden // (2 * WORDS)
        self.threads = LANES * divisor(self.pieces // LANES, THREADS // LANES)
        self.ctas = self.pieces // self.threads

    @cute.jit
    def slot(self, base: Int64, parity: Int32, source: Int32, piece: Int32):
        """Address of a sender's piece in a mailbox."""
        at = (parity * self.ranks + source) * self.pieces + piece
        return base + Int64(at) * (4 * WORDS)

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
    def missing(self, came: cute.Tensor, base: Int64, parity: Int32, rank: Int32, piece: Int32):
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
    def wait(self, came: cute.Tensor, base: Int64, parity: Int32, rank: Int32, piece: Int32):
        """Until everything came: 0. After WAIT_NS: one more than a rank that is missed."""
        began = cute.arch.globaltimer()
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
    def report(self, state: cute.Tensor, lost: Int32, call: Int32):
        """The first thread that misses a rank says which, and when."""
        at = (state.iterator + LOST).llvm_ptr
        if cute.arch.atomic_cas(at, cmp=Int32(0), val=lost, sem="relaxed", scope="gpu") == 0:
            state[LOST_CALL] = call + 1

    @cute.jit
    def sum(self, came: cute.Tensor, before: cute.Tensor, rounded: cute.Tensor):
        """In rank order in float32: o into `rounded`, the new prefix into `before`."""
        words = cute.recast_tensor(came, BFloat16)
        total = words[None, 0].load().to(Float32)
        for source in cutlass.range_constexpr(1, self.ranks):
            total = total + words[None, source].load().to(Float32)
        rounded.store(total.to(BFloat16))
        before.store((before.load().to(Float32) + rounded.load().to(Float32)).to(BFloat16))

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
        piece = cta * self.threads + thread
        call = state[OWN + cta]
        lost = cute.arch.load((state.iterator + LOST).llvm_ptr, Int32, sem="relaxed", scope="gpu")
        parity = call & (PARITIES - 1)
        homes = [peers[r] for r in range(self.ranks)]
        flat = cute.make_layout(self.pieces * 2 * WORDS)
        came = cute.make_rmem_tensor(cute.make_layout((WORDS, self.ranks)), Int32)
        came.fill(0)
        before = cute.make_rmem_tensor(cute.make_layout(2 * WORDS), BFloat16)
        rounded = cute.make_rmem_tensor_like(before)
        mine = cute.make_rmem_tensor(cute.make_layout(WORDS), Int32)
        own = cute.recast_tensor(cute.make_tensor(part.iterator, flat), Int32)
        cute.autovec_copy(cute.local_tile(own, (WORDS,), (piece,)), mine)
        kept = cute.local_tile(cute.make_tensor(prefix.iterator, flat), (2 * WORDS,), (piece,))
        for w in cutlass.range_constexpr(WORDS):
            mine[w] = self.plus_zero(mine[w])
        home = Int64(0)
        for peer in cutlass.range_constexpr(self.ranks):
            if peer == rank:
                home = homes[peer]
                for w in cutlass.range_constexpr(WORDS):
                    came[w, peer] = mine[w]
            elif lost == 0:
                self.put(self.slot(homes[peer], parity, rank, piece), mine)
        cute.autovec_copy(kept, before)
        cute.arch.sync_threads()
        if thread == 0:
            state[OWN + cta] = call + 1

        if lost == 0:
            lost = self.wait(came, home, parity, rank, piece)
            if lost != 0:
                self.report(state, lost, call)
        self.sum(came, before, rounded)
        if lost == 0:
            mine.fill(SENTINEL)
            for source in cutlass.range_constexpr(self.ranks):
                if source != rank:
                    self.put(self.slot(home, parity, Int32(source), piece), mine)
        else:
            cute.recast_tensor(rounded, Int32).fill(NOTHING)
            cute.recast_tensor(before, Int32).fill(NOTHING)
        cute.autovec_copy(rounded, cute.local_tile(cute.make_tensor(o.iterator, flat), (2 * WORDS,), (piece,)))
        cute.autovec_copy(before, kept)
        cute.arch.fence_acq_rel_sys()

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
    return [("box", "bf16", (int(dims["ranks"]), tokens, dims["hidden"]), PARITIES, 0x8000_0000)]


def workspaces(dims, tokens, arch):
    return [("i32", (OWN + Exchange(int(dims["ranks"]), tokens, dims["hidden"]).ctas,))]
