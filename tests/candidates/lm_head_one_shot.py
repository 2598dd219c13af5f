"""LM head over a vocabulary that is split over ranks, and the greedy token on all of them, in one kernel.

1. multiply: a warp takes tiles of 16 rows of w_head over all of K. Rows are the 16-row operand of mma.sync, tokens the
   8-wide one; 8 consecutive k of a lane feed two MMAs. Every row is summed in the same order, so equal rows tie. What a
   lane keeps of each token is its best so far: a key that orders float32 as integers (NaN on top), and the id.
2. gather: lanes, then warps meet; a CTA writes its best of each token to `found`. The last CTA to do so goes on alone,
   so CTAs wait for nobody and need not be resident together.
3. exchange: there a warp takes a token. Lane r sends the rank's best to rank r, an 8-byte store of the bits of the
   value and the id into this rank's slot, and waits for the pair of rank r until neither word is the sentinel: -0,
   which is sent as +0, and no id. It arms the pair again. The fence at the end acquires what came and puts the arming
   in order before all that this rank sends from the next call on.
4. choose: the best of all ranks' pairs, by the same order on every rank.

`state`: [0] one more than the rank that did not answer within WAIT_NS, zero while all do; [1] one more than the call in
which it was missed. Then val is NaN and id is -1, and later calls send nothing and wait for nobody. [2] the number of
the next call; [3] CTAs of this call that are done.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import warp as nvwarp

WAIT_NS = 4_000_000_000  # for a peer, of one call
LOOKS = 64  # between two looks at the time
SENTINEL = -(1 << 31)
INFINITY = 0x7F80_0000
TOP = 0x7FFF_FFFF  # key of NaN, and its bits
PARITIES = 2
LOST, LOST_CALL, CALL, DONE, WORDS = 0, 1, 2, 3, 4  # words of `state`
CTAS, WARPS = 264, 8  # at most: two CTAs an SM
DEPTH = 8  # K steps of weights that a lane holds
STEP, LANES = 32, 32  # of K in a 16-byte load of four lanes, two MMAs


def divisor(n, most):
    """Largest divisor of n that is at most `most`."""
    return max(d for d in range(1, min(n, most) + 1) if n % d == 0)


class Best:
    """The best logit so far: a key, and the id that it belongs to."""

    @cute.jit
    def key(self, bits: Int32):
        """Integers in the order of the float32 values that have these bits: NaN on top, -0 and +0 the same."""
        key = bits
        if bits == SENTINEL:
            key = Int32(0)
        elif bits & TOP > INFINITY:
            key = Int32(TOP)
        elif bits < 0:
            key = bits ^ TOP
        return key

    @cute.jit
    def bits(self, key: Int32):
        bits = key
        if key < 0:
            bits = key ^ TOP
        return bits

    @cute.jit
    def better(self, key: Int32, at: Int32, other: Int32, other_at: Int32):
        """The pair with the larger key; of equal ones that with the lower id."""
        if other > key or (other == key and other_at < at):
            key, at = other, other_at
        return key, at

    @cute.jit
    def over_lanes(self, key: Int32, at: Int32, first: cutlass.Constexpr[int]):
        """The best of the lanes that differ in the bits from `first` on."""
        for step in cutlass.range_constexpr(5):
            offset = cutlass.const_expr(1 << step)
            if cutlass.const_expr(offset >= first):
                other = cute.arch.shuffle_sync_bfly(key, offset=offset)
                key, at = self.better(key, at, other, cute.arch.shuffle_sync_bfly(at, offset=offset))
        return key, at


class Multiply:
    """Logits of a warp's tiles of 16 rows, of which a lane keeps the best of each of its tokens."""

    def __init__(self, dims, tokens):
        self.tokens, self.hidden, self.vocab = tokens, dims["hidden"], dims["vocab"]
        self.tiles = self.vocab // 16
        self.warps = divisor(self.tiles, WARPS)
        self.ctas = min(CTAS, self.tiles // self.warps)
        self.turns = (self.tiles + self.ctas * self.warps - 1) // (self.ctas * self.warps)
        self.nt = (tokens + 7) // 8  # token tiles
        self.depth = divisor(self.hidden // STEP, DEPTH)
        self.best = Best()

    @cute.jit
    def load_w(self, w_head: cute.Tensor, wf: cute.Tensor, tile: Int32, lane: Int32, step: Int32):
        for half in cutlass.range_constexpr(2):
            row = w_head[tile * 16 + 8 * half + lane // 4, None]
            cute.autovec_copy(cute.local_tile(row, (8,), (step * (STEP // 8) + lane % 4,)), wf[None, half])

    @cute.jit
    def tile(self, h: cute.Tensor, w_head: cute.Tensor, acc: cute.Tensor, tile: Int32, lane: Int32):
        """16 logits of every token, in `acc`."""
        mma = cute.make_tiled_mma(nvwarp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        wf = cute.make_rmem_tensor(cute.make_layout((8, 2, self.depth)), BFloat16)
        xf = cute.make_rmem_tensor(cute.make_layout((8, self.nt)), BFloat16)
        # fragments are views of those registers: (pair, row half, k half), tile, MMA, step
        shape_a = cute.make_layout(((2, 2, 2), 1, 2, self.depth), stride=((1, 8, 2), 16, 4, 16))
        fa = cute.make_tensor(wf.iterator, shape_a)
        fb = cute.make_tensor(xf.iterator, cute.make_layout(((2, 2), self.nt, 2), stride=((1, 2), 8, 4)))
        acc.fill(0.0)
        for at in cutlass.range_constexpr(self.depth):
            self.load_w(w_head, wf[None, None, at], tile, lane, Int32(at))
        for turn in cutlass.range(self.hidden // STEP // self.depth, unroll=1):
            for at in cutlass.range_constexpr(self.depth):
                step = turn * self.depth + at
                for n in cutlass.range_constexpr(self.nt):
                    row = h[cutlass.min(8 * n + lane // 4, self.tokens - 1), None]  # a spare column goes nowhere
                    cute.autovec_copy(cute.local_tile(row, (8,), (step * (STEP // 8) + lane % 4,)), xf[None, n])
                for k in cutlass.range_constexpr(2):
                    cute.gemm(mma, acc, fa[None, None, k, at], fb[None, None, k], acc)
                ahead = cutlass.min(step + self.depth, self.hidden // STEP - 1)
                self.load_w(w_head, wf[None, None, at], tile, lane, ahead)

    @cute.jit
    def run(self, h: cute.Tensor, w_head: cute.Tensor, found: cute.Tensor, rank: Int32, cta: Int32, tid: Int32):
        """The warp's best of each token, in `found` [token, word]."""
        lane, warp = tid % LANES, cute.arch.make_warp_uniform(tid // LANES)
        acc = cute.make_rmem_tensor(cute.make_layout(((2, 2), 1, self.nt)), Float32)
        bits = cute.recast_tensor(acc, Int32)
        keys = cute.make_rmem_tensor(cute.make_layout((2, self.nt)), Int32)
        ids = cute.make_rmem_tensor_like(keys)
        keys.fill(SENTINEL)  # below the key of -inf
        ids.fill(TOP)
        for turn in cutlass.range(self.turns, unroll=1):
            tile = (turn * self.ctas + cta) * self.warps + warp
            if tile < self.tiles:
                self.tile(h, w_head, acc, tile, lane)
                for n in cutlass.range_constexpr(self.nt):
                    for e in cutlass.range_constexpr(2):
                        for half in cutlass.range_constexpr(2):
                            key = self.best.key(bits[(e, half), 0, n])
                            at = rank * self.vocab + tile * 16 + 8 * half + lane // 4
                            keys[e, n], ids[e, n] = self.best.better(keys[e, n], ids[e, n], key, at)
        for n in cutlass.range_constexpr(self.nt):
            for e in cutlass.range_constexpr(2):
                key, at = self.best.over_lanes(keys[e, n], ids[e, n], 4)
                token = 8 * n + 2 * lane + e
                if lane < 4 and token < self.tokens:
                    found[token, 0], found[token, 1] = key, at


class Exchange:
    """Pairs of the bits of a logit and its id that ranks send each other, a pair a token and rank."""

    def __init__(self, ranks, tokens):
        self.ranks, self.tokens, self.best = ranks, tokens, Best()

    @cute.jit
    def slot(self, base: Int64, parity: Int32, source: Int32, token: Int32):
        """Address of a sender's pair in a mailbox."""
        return base + Int64((parity * self.ranks + source) * self.tokens + token) * 8

    @cute.jit
    def put(self, at: Int64, first: Int32, second: Int32):
        cute.arch.inline_ptx(
            "st.relaxed.sys.global.v2.b32 [{$r0}], {{$r1}, {$r2}};", read_only_args=[at, first, second]
        )

    @cute.jit
    def get(self, at: Int64):
        first, second = cute.arch.inline_ptx(
            "ld.relaxed.sys.global.v2.b32 {{$w0}, {$w1}}, [{$r0}];",
            write_only_types=[Int32, Int32],
            read_only_args=[at],
        )
        return first, second

    @cute.jit
    def wait(self, at: Int64):
        """The pair, and whether it did not come within WAIT_NS."""
        began, looks, late, waiting = cute.arch.globaltimer(), Int32(0), Int32(0), Boolean(True)
        first, second = Int32(SENTINEL), Int32(SENTINEL)
        while waiting:
            first, second = self.get(at)
            waiting = first == SENTINEL or second == SENTINEL
            looks += 1
            if looks % LOOKS == 0:  # noqa: SIM102 (the time is read only then)
                if waiting and cute.arch.globaltimer() - began > WAIT_NS:
                    late, waiting = Int32(1), Boolean(False)
        return first, second, late

    @cute.jit
    def send(self, peers: cute.Tensor, parity: Int32, rank: Int32, token: Int32, lane: Int32, key: Int32, at: Int32):
        """This rank's best of a token, by lane r to rank r."""
        if lane < self.ranks and lane != rank:
            self.put(self.slot(peers[lane], parity, rank, token), self.best.bits(key), at)

    @cute.jit
    def take(self, peers: cute.Tensor, parity: Int32, rank: Int32, token: Int32, lane: Int32, key: Int32, at: Int32):
        """The best of all ranks; one more than a rank that is missed, or 0. Lane r waits for rank r."""
        lost = Int32(0)
        if lane < self.ranks and lane != rank:
            here = self.slot(peers[rank], parity, lane, token)
            first, at, lost = self.wait(here)
            key = self.best.key(first)
            if lost != 0:
                lost = lane + 1
            else:
                self.put(here, Int32(SENTINEL), Int32(SENTINEL))
        key, at = self.best.over_lanes(key, at, 1)
        return key, at, cute.arch.warp_redux_sync(lost, "max")


class Head:
    def __init__(self, dims, tokens):
        self.multiply = Multiply(dims, tokens)
        self.exchange = Exchange(int(dims["ranks"]), tokens)
        self.tokens, self.warps, self.ctas, self.best = tokens, self.multiply.warps, self.multiply.ctas, Best()
        self.turns = (tokens + self.warps - 1) // self.warps  # tokens of a warp of the last CTA at most
        if self.exchange.ranks > LANES:
            raise ValueError(f"{self.exchange.ranks} ranks are more than the {LANES} lanes that wait for one each")

    @cute.jit
    def gather(self, inside: cute.Tensor, found: cute.Tensor, cta: Int32, tid: Int32):
        """The CTA's best of each token, from its warps'."""
        for turn in cutlass.range_constexpr((self.tokens + LANES * self.warps - 1) // (LANES * self.warps)):
            token = turn * LANES * self.warps + tid
            if token < self.tokens:
                key, at = inside[token, 0, 0], inside[token, 1, 0]
                for w in cutlass.range_constexpr(1, self.warps):
                    key, at = self.best.better(key, at, inside[token, 0, w], inside[token, 1, w])
                found[cta, token, 0], found[cta, token, 1] = key, at

    @cute.jit
    def count(self, state: cute.Tensor, told: cute.Tensor):
        """Says in `told` whether all other CTAs are done, and the number of the call; then counts for the next one."""
        done = cute.arch.atomic_add((state.iterator + DONE).llvm_ptr, Int32(1), sem="acq_rel", scope="gpu")
        told[0], told[1] = done, Int32(0)
        if done == self.ctas - 1:
            told[1] = state[CALL]
            state[CALL] = state[CALL] + 1
            state[DONE] = Int32(0)

    @cute.jit
    def of_rank(self, found: cute.Tensor, token: Int32, lane: Int32):
        """The rank's best of a token, from its CTAs'."""
        key, at = Int32(SENTINEL), Int32(TOP)
        for part in cutlass.range_constexpr((self.ctas + LANES - 1) // LANES):
            cta = cutlass.min(part * LANES + lane, self.ctas - 1)
            key, at = self.best.better(key, at, found[cta, token, 0], found[cta, token, 1])
        return self.best.over_lanes(key, at, 1)

    @cute.jit
    def finish(self, mine: cute.Tensor, found: cute.Tensor, val: cute.Tensor, id: cute.Tensor, peers: cute.Tensor,
               rank: Int32, state: cute.Tensor, call: Int32, tid: Int32):  # fmt: skip
        """By the last CTA: all tokens sent, then all taken."""
        lane, warp, parity = tid % LANES, cute.arch.make_warp_uniform(tid // LANES), call & (PARITIES - 1)
        lost = cute.arch.load((state.iterator + LOST).llvm_ptr, Int32, sem="relaxed", scope="gpu")
        for turn in cutlass.range(self.turns, unroll=1):
            token = turn * self.warps + warp
            if token < self.tokens:
                key, at = self.of_rank(found, token, lane)
                mine[token, 0], mine[token, 1] = key, at
                if lost == 0:
                    self.exchange.send(peers, parity, rank, token, lane, key, at)
        cute.arch.sync_threads()
        for turn in cutlass.range(self.turns, unroll=1):
            token = turn * self.warps + warp
            if token < self.tokens:
                key, at, missed = mine[token, 0], mine[token, 1], lost
                if lost == 0:
                    key, at, missed = self.exchange.take(peers, parity, rank, token, lane, key, at)
                if missed != 0:
                    key, at = Int32(TOP), Int32(-1)
                if lane == 0:
                    self.write(val, id, state, token, key, at, missed, call)
        cute.arch.fence_acq_rel_sys()

    @cute.jit
    def write(self, val: cute.Tensor, id: cute.Tensor, state: cute.Tensor, token: Int32, key: Int32, at: Int32,
              missed: Int32, call: Int32):  # fmt: skip
        cute.recast_tensor(val, Int32)[token] = self.best.bits(key)
        id[token] = at
        if missed != 0:
            lost_at = (state.iterator + LOST).llvm_ptr
            if cute.arch.atomic_cas(lost_at, cmp=Int32(0), val=missed, sem="relaxed", scope="gpu") == 0:
                state[LOST_CALL] = call + 1

    @cute.kernel
    def kernel(
        self, h: cute.Tensor, w_head: cute.Tensor, val: cute.Tensor, id: cute.Tensor, peers: cute.Tensor, rank: Int32,
        state: cute.Tensor, found: cute.Tensor,
    ):  # fmt: skip
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        smem = cutlass.memory.SmemAllocator()
        inside = smem.allocate_tensor(Int32, cute.make_layout((self.tokens, 2, self.warps)), byte_alignment=16)
        told = smem.allocate_tensor(Int32, cute.make_layout(2), byte_alignment=16)
        self.multiply.run(h, w_head, inside[None, None, tid // LANES], rank, cta, tid)
        cute.arch.sync_threads()
        self.gather(inside, found, cta, tid)
        cute.arch.sync_threads()
        if tid == 0:
            self.count(state, told)
        cute.arch.sync_threads()
        if told[0] == self.ctas - 1:
            self.finish(inside[None, None, 0], found, val, id, peers, rank, state, told[1], tid)

    @cute.jit
    def __call__(
        self, h: cute.Tensor, w_head: cute.Tensor, val: cute.Tensor, id: cute.Tensor, box: cute.Tensor,
        peers: cute.Tensor, rank: Int32, state: cute.Tensor, found: cute.Tensor, stream: cuda.CUstream,
    ):  # fmt: skip
        self.kernel(h, w_head, val, id, peers, rank, state, found).launch(
            grid=[self.ctas, 1, 1], block=[LANES * self.warps, 1, 1], stream=stream
        )


def build(dims, tokens, arch):
    return Head(dims, tokens)


def symmetric(dims, tokens, arch):
    return [("box", "i32", (int(dims["ranks"]), tokens, 2), PARITIES, 0x8000_0000)]


def workspaces(dims, tokens, arch):
    return [("i32", (WORDS,)), ("i32", (Head(dims, tokens).ctas, tokens, 2))]
