"""attn_res, one CTA a token: the row stays in registers, sources are mixed with an online softmax.

p = bf16(prefix + delta) goes back to prefix (and to a block slot when asked), then the finished blocks and p are mixed
with weights softmax(score), score = sum(V w_norm w_query) rsqrt(mean(V^2) + eps), and the mix is normed.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32

THREADS, PDL = 448, True


class AttnRes:
    def __init__(self, dims, tokens):
        self.hidden, self.tokens, self.slots = dims["hidden"], tokens, dims["slots"]
        self.with_delta = dims["variant"] != "prefix_only"
        self.final = dims["variant"] == "final"
        vectors = self.hidden // 8
        self.threads = max(t for t in range(32, THREADS + 1, 32) if vectors % t == 0)
        self.per = vectors // self.threads

    @cute.jit
    def load(self, row: cute.Tensor, reg: cute.Tensor, tid):
        for i in cutlass.range_constexpr(self.per):
            cute.autovec_copy(cute.local_tile(row, (8,), (i * self.threads + tid,)), reg[None, i])

    @cute.jit
    def store(self, reg: cute.Tensor, row: cute.Tensor, tid):
        for i in cutlass.range_constexpr(self.per):
            cute.autovec_copy(reg[None, i], cute.local_tile(row, (8,), (i * self.threads + tid,)))

    @cute.jit
    def total(self, value, part: cute.Tensor, tid):
        """Sum of a value over the CTA, known to every thread."""
        warps = cutlass.const_expr(self.threads // 32)
        v = cute.arch.warp_reduction_sum(value)
        cute.arch.sync_threads()  # an earlier sum has been read
        if tid % 32 == 0:
            part[tid // 32] = v
        cute.arch.sync_threads()
        s = Float32(0.0)
        for w in cutlass.range_constexpr(warps):
            s += part[w]
        return s

    @cute.jit
    def score(self, v, wq, part: cute.Tensor, tid, eps):
        dot = self.total((v * wq).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0), part, tid)
        square = self.total((v * v).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0), part, tid)
        return dot * cute.math.rsqrt(square * (1.0 / self.hidden) + eps)

    @cute.jit
    def run(self, prefix, delta, blocks, w_norm, w_query, w_out, out, nb, write_idx, eps, eps_out, stream):
        self.kernel(prefix, delta, blocks, w_norm, w_query, w_out, out, nb, write_idx, eps, eps_out).launch(
            grid=[self.tokens, 1, 1], block=[self.threads, 1, 1], stream=stream, use_pdl=PDL)  # fmt: skip

    @cute.kernel
    def kernel(
        self, prefix: cute.Tensor, delta: cute.Tensor, blocks: cute.Tensor, w_norm: cute.Tensor, w_query: cute.Tensor,
        w_out: cute.Tensor, out: cute.Tensor, nb: Int32, write_idx: Int32, eps: Float32, eps_out: Float32,
    ):  # fmt: skip
        tid, _, _ = cute.arch.thread_idx()
        token, _, _ = cute.arch.block_idx()
        smem = cutlass.memory.SmemAllocator()
        part = smem.allocate_tensor(Float32, cute.make_layout((self.threads // 32,)), byte_alignment=16)
        layout = cute.make_layout((8, self.per))
        p, v, w = (cute.make_rmem_tensor(layout, BFloat16) for _ in range(3))
        mix = cute.make_rmem_tensor(layout, Float32)
        self.load(w_norm, v, tid)  # weights depend on no earlier kernel
        self.load(w_query, w, tid)
        wq = v.load().to(Float32) * w.load().to(Float32)
        self.load(w_out, w, tid)
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_wait()
        self.load(prefix[token, None], p, tid)
        if cutlass.const_expr(self.with_delta):
            self.load(delta[token, None], v, tid)
            p.store((p.load().to(Float32) + v.load().to(Float32)).to(BFloat16))
            self.store(p, prefix[token, None], tid)
        pf = p.load().to(Float32)
        top = self.score(pf, wq, part, tid, eps)  # softmax over sources, online, p first
        weight = Float32(1.0)
        mix.store(pf)
        for s in cutlass.range(nb, unroll=1):
            self.load(blocks[token, s, None], v, tid)
            vf = v.load().to(Float32)
            score = self.score(vf, wq, part, tid, eps)
            new_top = cutlass.max(top, score)
            old, new = cute.math.exp(top - new_top, fastmath=True), cute.math.exp(score - new_top, fastmath=True)
            mix.store(mix.load() * old + vf * new)
            weight = weight * old + new
            top = new_top
        if write_idx >= 0:
            self.store(p, blocks[token, write_idx, None], tid)
        mf = mix.load() * (1.0 / weight)
        if cutlass.const_expr(self.final):
            mf = mf.to(BFloat16).to(Float32)
        square = self.total((mf * mf).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0), part, tid)
        scale = cute.math.rsqrt(square * (1.0 / self.hidden) + eps_out)
        v.store((mf * scale * w.load().to(Float32)).to(BFloat16))
        self.store(v, out[token, None], tid)
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_launch_dependents()


class WithDelta(AttnRes):
    @cute.jit
    def __call__(
        self, prefix: cute.Tensor, delta: cute.Tensor, blocks: cute.Tensor, w_norm: cute.Tensor, w_query: cute.Tensor,
        w_out: cute.Tensor, out: cute.Tensor, nb: Int32, write_idx: Int32, eps: Float32, eps_out: Float32,
        stream: cuda.CUstream,
    ):  # fmt: skip
        self.run(prefix, delta, blocks, w_norm, w_query, w_out, out, nb, write_idx, eps, eps_out, stream)


class PrefixOnly(AttnRes):
    @cute.jit
    def __call__(
        self, prefix: cute.Tensor, blocks: cute.Tensor, w_norm: cute.Tensor, w_query: cute.Tensor, w_out: cute.Tensor,
        out: cute.Tensor, nb: Int32, write_idx: Int32, eps: Float32, eps_out: Float32, stream: cuda.CUstream,
    ):  # fmt: skip
        self.run(prefix, prefix, blocks, w_norm, w_query, w_out, out, nb, write_idx, eps, eps_out, stream)


def design(dims, tokens, arch):
    return "one CTA a token, online softmax"


def build(dims, tokens, arch):
    return (PrefixOnly if dims["variant"] == "prefix_only" else WithDelta)(dims, tokens)
