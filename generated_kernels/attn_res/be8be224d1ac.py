"""attn_res: a row over the CTAs of a cluster, every source in registers, two sums over the row in all.

1. p = bf16(prefix + delta) goes back to prefix, to the block slot and to aux where asked; each thread keeps the same
   columns of p and of every finished block. Blocks are all on their way at once.
2. The dot products with w_norm w_query and the square sums of all sources are reduced together, then softmax.
3. The mix is made from the registers, its square sum reduced, the result normed.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32

CTAS = 64  # a row is split over 8, 4 or 2 CTAs, so that there are at most so many, if that can be
VECTORS = 1  # of 8 columns, of a thread
EARLY, PDL = True, True  # whether the next kernel may start at once; programmatic dependent launch
BELOW_ALL = -3.0e38  # score of a slot that is not mixed


class AttnRes:
    def __init__(self, dims, tokens):
        self.hidden, self.tokens, self.slots = dims["hidden"], tokens, dims["slots"]
        self.with_delta, self.with_aux = dims["variant"] != "prefix_only", dims["aux"] == "yes"
        self.final = dims["variant"] == "final"
        self.split = max(s for s in (2, 4, 8) if s == 2 or tokens * s <= CTAS)
        self.vectors = self.hidden // 8 // self.split  # of 8 columns, of a CTA
        self.warps = (self.vectors + 32 * VECTORS - 1) // (32 * VECTORS)
        self.threads = 32 * self.warps
        self.per = (self.vectors + self.threads - 1) // self.threads
        self.sums = 2 * (self.slots + 1)

    @cute.jit
    def move(self, row: cute.Tensor, reg: cute.Tensor, rank, tid, out: cutlass.Constexpr[bool]):
        """The thread's columns of a row: into registers or `out` of them."""
        for i in cutlass.range_constexpr(self.per):
            at = i * self.threads + tid
            there, here = cute.local_tile(row, (8,), (rank * self.vectors + at,)), reg[None, i]
            if cutlass.const_expr((i + 1) * self.threads <= self.vectors):
                self.copy(there, here, out)
            else:
                if at < self.vectors:
                    self.copy(there, here, out)

    @cute.jit
    def copy(self, there: cute.Tensor, here: cute.Tensor, out: cutlass.Constexpr[bool]):
        if cutlass.const_expr(out):
            cute.autovec_copy(here, there)
        else:
            cute.autovec_copy(there, here)

    @cute.jit
    def reduce(self, values: cute.Tensor, part: cute.Tensor, totals: cute.Tensor, rank, tid):
        """Each of `values` summed over the threads of the cluster, in place. part [warps, n], totals [n, split]."""
        n = cutlass.const_expr(cute.size(values))
        mine = self.sum_of_lane(values, n, tid % 32)
        if tid % 32 < n:
            part[tid // 32, tid % 32] = mine
        cute.arch.sync_threads()
        for i in cutlass.range_constexpr((n * self.split + self.threads - 1) // self.threads):
            at = i * self.threads + tid
            if at < n * self.split:
                j, peer = at % n, at // n
                total = part[0, j]
                for w in cutlass.range_constexpr(1, self.warps):
                    total += part[w, j]
                here = totals.iterator + cute.crd2idx((j, rank), totals.layout)
                there = cute.arch.map_dsmem_ptr(here, Int32(peer)).toint()
                cute.arch.inline_ptx("st.shared::cluster.f32 [{$r0}], {$r1};", read_only_args=[there, total])
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        for j in cutlass.range_constexpr(n):
            values[j] = totals[j, 0]
            for r in cutlass.range_constexpr(1, self.split):
                values[j] = values[j] + totals[j, r]

    @cute.jit
    def sum_of_lane(self, values: cute.Tensor, n: cutlass.Constexpr[int], lane):
        """Lane j gets the warp's sum of value j, n <= 32: 31 shuffles, as each step gives half of the values away."""
        held = [values[j] if j < n else Float32(0.0) for j in range(32)]
        for step in cutlass.range_constexpr(5):
            offset = cutlass.const_expr(16 >> step)
            high = lane & offset != 0
            for j in cutlass.range_constexpr(offset):
                kept = held[j + offset] if high else held[j]
                given = held[j] if high else held[j + offset]
                held[j] = kept + cute.arch.shuffle_sync_bfly(given, offset=offset)
        return held[0]

    @cute.jit
    def dot(self, a, b):
        return (a * b).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)

    @cute.jit
    def run(self, prefix, delta, blocks, w_norm, w_query, w_out, out, aux, nb, write_idx, eps, eps_out, stream):
        self.kernel(prefix, delta, blocks, w_norm, w_query, w_out, out, aux, nb, write_idx, eps, eps_out).launch(
            grid=[self.split, self.tokens, 1], block=[self.threads, 1, 1], cluster=[self.split, 1, 1], stream=stream,
            use_pdl=PDL, min_blocks_per_mp=1)  # fmt: skip

    @cute.kernel
    def kernel(
        self, prefix: cute.Tensor, delta: cute.Tensor, blocks: cute.Tensor, w_norm: cute.Tensor, w_query: cute.Tensor,
        w_out: cute.Tensor, out: cute.Tensor, aux: cute.Tensor, nb: Int32, write_idx: Int32, eps: Float32,
        eps_out: Float32,
    ):  # fmt: skip
        if cutlass.const_expr(PDL and EARLY):
            cute.arch.griddepcontrol_launch_dependents()
        tid, _, _ = cute.arch.thread_idx()
        rank, token, _ = cute.arch.block_idx()
        cute.arch.cluster_arrive()
        smem = cutlass.memory.SmemAllocator()
        part = smem.allocate_tensor(Float32, cute.make_layout((self.warps, self.sums)), byte_alignment=16)
        totals = smem.allocate_tensor(Float32, cute.make_layout((self.sums, self.split)), byte_alignment=16)
        part_mix = smem.allocate_tensor(Float32, cute.make_layout((self.warps, 1)), byte_alignment=16)
        totals_mix = smem.allocate_tensor(Float32, cute.make_layout((1, self.split)), byte_alignment=16)
        columns = cute.make_layout((8, self.per))
        p, w, added = (cute.make_rmem_tensor(columns, BFloat16) for _ in range(3))
        v = cute.make_rmem_tensor(cute.make_layout((8, self.per, self.slots)), BFloat16)
        for reg in (p, w, added, v):  # spare threads and slots that are not mixed add zeros
            reg.fill(0.0)
        self.move(w_norm, added, rank, tid, False)  # weights depend on no earlier kernel
        self.move(w_query, w, rank, tid, False)
        wq = added.load().to(Float32) * w.load().to(Float32)
        self.move(w_out, w, rank, tid, False)
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_wait()
        # 1. all sources
        self.move(prefix[token, None], p, rank, tid, False)
        if cutlass.const_expr(self.with_delta):
            self.move(delta[token, None], added, rank, tid, False)
        for s in cutlass.range_constexpr(self.slots):
            if s < nb:
                self.move(blocks[token, s, None], v[None, None, s], rank, tid, False)
        if cutlass.const_expr(self.with_delta):
            p.store((p.load().to(Float32) + added.load().to(Float32)).to(BFloat16))
            self.move(prefix[token, None], p, rank, tid, True)
        if cutlass.const_expr(self.with_aux):
            self.move(aux[token, None], p, rank, tid, True)
        if write_idx >= 0:
            self.move(blocks[token, write_idx, None], p, rank, tid, True)
        # 2. scores and softmax; p is the last source
        values = cute.make_rmem_tensor(cute.make_layout(self.sums), Float32)
        for s in cutlass.range_constexpr(self.slots + 1):
            source = (p if s == self.slots else v[None, None, s]).load().to(Float32)
            values[2 * s], values[2 * s + 1] = self.dot(source, wq), self.dot(source, source)
        cute.arch.cluster_wait()  # all have started: their shared memory may be written
        self.reduce(values, part, totals, rank, tid)
        weights = cute.make_rmem_tensor(cute.make_layout(self.slots + 1), Float32)
        top = Float32(BELOW_ALL)
        for s in cutlass.range_constexpr(self.slots + 1):
            weights[s] = values[2 * s] * cute.math.rsqrt(values[2 * s + 1] * (1.0 / self.hidden) + eps)
            if cutlass.const_expr(s < self.slots):
                if s >= nb:
                    weights[s] = Float32(BELOW_ALL)
            top = cutlass.max(top, weights[s])
        total = Float32(0.0)
        for s in cutlass.range_constexpr(self.slots + 1):
            weights[s] = cute.math.exp(weights[s] - top, fastmath=True)
            total += weights[s]
        # 3. mix and norm
        mix = p.load().to(Float32) * weights[self.slots]
        for s in cutlass.range_constexpr(self.slots):
            mix = mix + v[None, None, s].load().to(Float32) * weights[s]
        mix = mix * (1.0 / total)
        if cutlass.const_expr(self.final):
            mix = mix.to(BFloat16).to(Float32)
        square = cute.make_rmem_tensor(cute.make_layout(1), Float32)
        square[0] = self.dot(mix, mix)
        self.reduce(square, part_mix, totals_mix, rank, tid)
        scale = cute.math.rsqrt(square[0] * (1.0 / self.hidden) + eps_out)
        added.store((mix * scale * w.load().to(Float32)).to(BFloat16))
        self.move(out[token, None], added, rank, tid, True)
        if cutlass.const_expr(PDL and not EARLY):
            cute.arch.griddepcontrol_launch_dependents()


class DeltaAux(AttnRes):
    @cute.jit
    def __call__(
        self, prefix: cute.Tensor, delta: cute.Tensor, blocks: cute.Tensor, w_norm: cute.Tensor,
        w_query: cute.Tensor, w_out: cute.Tensor, out: cute.Tensor, aux: cute.Tensor, nb: Int32,
        write_idx: Int32, eps: Float32, eps_out: Float32, stream: cuda.CUstream,
    ):  # fmt: skip
        added, copied = delta, aux
        self.run(prefix, added, blocks, w_norm, w_query, w_out, out, copied, nb, write_idx, eps, eps_out, stream)


class Delta(AttnRes):
    @cute.jit
    def __call__(
        self, prefix: cute.Tensor, delta: cute.Tensor, blocks: cute.Tensor, w_norm: cute.Tensor,
        w_query: cute.Tensor, w_out: cute.Tensor, out: cute.Tensor, nb: Int32,
        write_idx: Int32, eps: Float32, eps_out: Float32, stream: cuda.CUstream,
    ):  # fmt: skip
        added, copied = delta, out
        self.run(prefix, added, blocks, w_norm, w_query, w_out, out, copied, nb, write_idx, eps, eps_out, stream)


class PrefixAux(AttnRes):
    @cute.jit
    def __call__(
        self, prefix: cute.Tensor, blocks: cute.Tensor, w_norm: cute.Tensor,
        w_query: cute.Tensor, w_out: cute.Tensor, out: cute.Tensor, aux: cute.Tensor, nb: Int32,
        write_idx: Int32, eps: Float32, eps_out: Float32, stream: cuda.CUstream,
    ):  # fmt: skip
        added, copied = prefix, aux
        self.run(prefix, added, blocks, w_norm, w_query, w_out, out, copied, nb, write_idx, eps, eps_out, stream)


class Prefix(AttnRes):
    @cute.jit
    def __call__(
        self, prefix: cute.Tensor, blocks: cute.Tensor, w_norm: cute.Tensor,
        w_query: cute.Tensor, w_out: cute.Tensor, out: cute.Tensor, nb: Int32,
        write_idx: Int32, eps: Float32, eps_out: Float32, stream: cuda.CUstream,
    ):  # fmt: skip
        added, copied = prefix, out
        self.run(prefix, added, blocks, w_norm, w_query, w_out, out, copied, nb, write_idx, eps, eps_out, stream)


def design(dims, tokens, arch):
    made = AttnRes(dims, tokens)
    return f"cluster of {made.split} a row, {made.threads} threads, all sources in registers"


def build(dims, tokens, arch):
    of = {(True, True): DeltaAux, (True, False): Delta, (False, True): PrefixAux, (False, False): Prefix}
    return of[dims["variant"] != "prefix_only", dims["aux"] == "yes"](dims, tokens)
