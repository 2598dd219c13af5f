"""Sum over ranks in rank order, added to the residual: one-shot, through mailboxes that say by themselves what came.

A CTA per token. Every rank stores its words into its slot of every peer's mailbox, and waits until no word of its own
mailbox holds the sentinel: the bf16 pair (+0, -0), which no sender sends. Then it arms the words again for the call
after the next one; two parities keep a peer that is one call ahead out of the way. Which parity: `calls[0]`, which the
last CTA to finish moves on, so that a graph may replay the launch.

The fence at the end belongs to both sides of the exchange: it acquires what came, and it puts the arming in order
before all that this rank sends from the next call on, also when the next launch overlaps this one.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64

SENTINEL = -(1 << 31)
WORDS = 4  # of a thread
PARITIES = 2


class Exchange:
    def __init__(self, ranks: int, tokens: int, hidden: int):
        self.ranks, self.tokens, self.row = ranks, tokens, hidden // 2  # words of a row
        self.threads = self.row // WORDS

    @cute.jit
    def place(self, base: Int64, parity: Int32, source: Int32, token: Int32, word: Int32):
        """A word of a mailbox: parity, sender, token, word."""
        at = ((parity * self.ranks + source) * self.tokens + token) * self.row + word
        return cute.make_ptr(Int32, base + Int64(at) * 4, cute.AddressSpace.gmem, assumed_align=4)

    @cute.jit
    def plus_zero(self, word: Int32):
        """Both halves with -0 turned into +0."""
        low, high = word & 0xFFFF, word & Int32(-65536)
        if low == 0x8000:
            low = Int32(0)
        if high == SENTINEL:
            high = Int32(0)
        return low | high

    @cute.kernel
    def kernel(
        self, part: cute.Tensor, prefix: cute.Tensor, o: cute.Tensor, box: cute.Tensor, peers: cute.Tensor,
        rank: Int32, calls: cute.Tensor,
    ):  # fmt: skip
        thread, _, _ = cute.arch.thread_idx()
        token, _, _ = cute.arch.block_idx()
        call = calls[0]
        parity = call % PARITIES
        own = cute.recast_tensor(part, Int32)
        first = thread * WORDS
        came = [cute.make_rmem_tensor((WORDS,), Int32) for _ in range(self.ranks)]

        mine = cute.make_rmem_tensor((WORDS,), Int32)
        for w in cutlass.range_constexpr(WORDS):
            mine[w] = self.plus_zero(own[token, first + w])
        for peer in cutlass.range_constexpr(self.ranks):
            if peer != rank:
                for w in cutlass.range_constexpr(WORDS):
                    to = self.place(peers[peer], parity, rank, token, first + w)
                    cute.arch.store(to.llvm_ptr, mine[w], sem="relaxed", scope="sys")

        for source in cutlass.range_constexpr(self.ranks):
            for w in cutlass.range_constexpr(WORDS):
                came[source][w] = mine[w]
            if source != rank:
                for w in cutlass.range_constexpr(WORDS):
                    here = self.place(peers[rank], parity, Int32(source), token, first + w)
                    word = cute.arch.load(here.llvm_ptr, Int32, sem="relaxed", scope="sys")
                    while word == SENTINEL:
                        word = cute.arch.load(here.llvm_ptr, Int32, sem="relaxed", scope="sys")
                    came[source][w] = word

        for source in cutlass.range_constexpr(self.ranks):
            if source != rank:
                for w in cutlass.range_constexpr(WORDS):
                    here = self.place(peers[rank], parity, Int32(source), token, first + w)
                    cute.arch.store(here.llvm_ptr, Int32(SENTINEL), sem="relaxed", scope="sys")
        cute.arch.fence_acq_rel_sys()

        total = cute.recast_tensor(came[0], BFloat16).load().to(Float32)
        for source in cutlass.range_constexpr(1, self.ranks):
            total = total + cute.recast_tensor(came[source], BFloat16).load().to(Float32)
        rounded = cute.make_rmem_tensor((2 * WORDS,), BFloat16)
        rounded.store(total.to(BFloat16))
        cute.autovec_copy(rounded, cute.local_tile(o[token, None], (2 * WORDS,), (thread,)))
        before = cute.make_rmem_tensor((2 * WORDS,), BFloat16)
        kept = cute.local_tile(prefix[token, None], (2 * WORDS,), (thread,))
        cute.autovec_copy(kept, before)
        before.store((before.load().to(Float32) + rounded.load().to(Float32)).to(BFloat16))
        cute.autovec_copy(before, kept)

        cute.arch.sync_threads()
        if thread == 0:
            done = cute.arch.atomic_add((calls.iterator + 1).llvm_ptr, Int32(1), sem="acq_rel", scope="gpu")
            if done == self.tokens - 1:
                calls[1] = Int32(0)
                calls[0] = call + 1

    @cute.jit
    def __call__(
        self, part: cute.Tensor, prefix: cute.Tensor, o: cute.Tensor, box: cute.Tensor, peers: cute.Tensor,
        rank: Int32, calls: cute.Tensor, stream: cuda.CUstream,
    ):  # fmt: skip
        self.kernel(part, prefix, o, box, peers, rank, calls).launch(
            grid=[self.tokens, 1, 1], block=[self.threads, 1, 1], stream=stream
        )


def build(dims, tokens, arch):
    return Exchange(int(dims["ranks"]), tokens, dims["hidden"])


def symmetric(dims, tokens, arch):
    return [("box", "bf16", (int(dims["ranks"]), tokens, dims["hidden"]), PARITIES, 0x8000_0000)]


def workspaces(dims, tokens, arch):
    return [("i32", (4,))]
