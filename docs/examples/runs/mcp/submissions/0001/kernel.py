"""moe_shared for very few tokens with plain FMAs: 16 lanes share a weight row, float32 sums, shuffle reduction.

Stage 1 computes h = SiTU(gate, up) (gate row and up row of an output in the same lanes), stage 2 y = h w_down^T.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32

WARPS, ROWS, UNROLL, PDL = 8, 1, 4, True  # rows: of one half warp
BETA, LINEAR_BETA = 4.0, 25.0  # SiTU's constants
MOST_TOKENS = 8  # of one pass; more tokens take several


def divisor(n, most):
    """Largest divisor of n that is at most `most`."""
    return max(d for d in range(1, min(n, most) + 1) if n % d == 0)


@cute.jit
def tanh(x):
    a = cutlass.max(x, -x)
    e = cute.math.exp(-2.0 * a, fastmath=True)
    t = (1.0 - e) * cute.arch.rcp_approx(1.0 + e)
    if a < 0.015625:  # 1 - e cancels there; x - x^3/3 is exact enough
        t = a * (1.0 - a * a * (1.0 / 3.0))
    if x < 0.0:
        t = -t
    return t


@cute.jit
def situ(gate, up):
    """SiTU of float32 sums that are rounded to bf16 first, as the op is written."""
    g, u = gate.to(BFloat16).to(Float32), up.to(BFloat16).to(Float32)
    sigmoid = cute.arch.rcp_approx(1.0 + cute.math.exp(-g, fastmath=True))
    return BETA * tanh(g * (1.0 / BETA)) * sigmoid * (LINEAR_BETA * tanh(u * (1.0 / LINEAR_BETA)))


class Dot:
    """out[t, n] = x[t] . w[n] ("plain"), or SiTU(x[t] . w[n], x[t] . w[n + outputs]) ("situ")."""

    def __init__(self, outputs, k, tokens, kind):
        self.outputs, self.k, self.tokens, self.kind = outputs, k, tokens, kind
        self.warps = divisor(outputs // 2, WARPS)
        self.rows = divisor(outputs // 2 // self.warps, ROWS)
        self.parts = 2 if kind == "situ" else 1
        self.batch = divisor(tokens, MOST_TOKENS)

    @cute.jit
    def __call__(self, x: cute.Tensor, w: cute.Tensor, out: cute.Tensor, stream: cuda.CUstream):
        self.kernel(x, w, out).launch(
            grid=[self.outputs // (2 * self.warps * self.rows), self.tokens // self.batch, 1],
            block=[32 * self.warps, 1, 1], stream=stream, use_pdl=PDL, min_blocks_per_mp=1)  # fmt: skip

    @cute.kernel
    def kernel(self, x: cute.Tensor, w: cute.Tensor, out: cute.Tensor):
        tid, _, _ = cute.arch.thread_idx()
        bx, by, _ = cute.arch.block_idx()
        R, P, B = self.rows, self.parts, self.batch
        lane = tid % 16
        n0 = (bx * self.warps * 2 + tid // 16) * R
        if cutlass.const_expr(PDL):
            cute.arch.griddepcontrol_launch_dependents()
            cute.arch.griddepcontrol_wait()
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyG2ROp(), BFloat16, num_bits_per_copy=128,
            l1c_evict_priority=cute.nvgpu.CacheEvictionPriority.NO_ALLOCATE)  # fmt: skip
        rw = cute.make_rmem_tensor(cute.make_layout((8, R, P)), BFloat16)
        rx = cute.make_rmem_tensor(cute.make_layout((8,)), BFloat16)
        acc = cute.make_rmem_tensor(cute.make_layout((B, R, P)), Float32)
        acc.fill(0.0)
        for c in cutlass.range(self.k // 128, unroll=UNROLL):
            for r in cutlass.range_constexpr(R):
                for p in cutlass.range_constexpr(P):
                    row = w[n0 + r + p * self.outputs, None]
                    cute.copy(atom, cute.local_tile(row, (8,), (c * 16 + lane,)), rw[None, r, p])
            for b in cutlass.range_constexpr(B):
                cute.auto_vec_copy(cute.local_tile(x[by * B + b, None], (8,), (c * 16 + lane,)), rx)
                xf = rx.load().to(Float32)
                for r in cutlass.range_constexpr(R):
                    for p in cutlass.range_constexpr(P):
                        wf = rw[None, r, p].load().to(Float32)
                        for i in cutlass.range_constexpr(8):
                            acc[b, r, p] = acc[b, r, p] + xf[i] * wf[i]
        for b in cutlass.range_constexpr(B):
            for r in cutlass.range_constexpr(R):
                first = cute.arch.warp_reduction(acc[b, r, 0], lambda a, c: a + c, threads_in_group=16)
                if cutlass.const_expr(self.kind == "situ"):
                    second = cute.arch.warp_reduction(acc[b, r, 1], lambda a, c: a + c, threads_in_group=16)
                    first = situ(first, second)
                if lane == 0:
                    out[by * B + b, n0 + r] = first.to(BFloat16)


class TwoKernels:
    def __init__(self, dims, tokens):
        self.gate_up = Dot(dims["width"], dims["hidden"], tokens, "situ")
        self.down = Dot(dims["hidden"], dims["width"], tokens, "plain")

    @cute.jit
    def __call__(
        self, m: cute.Tensor, w_gate_up: cute.Tensor, w_down: cute.Tensor, y: cute.Tensor, h: cute.Tensor,
        stream: cuda.CUstream,
    ):  # fmt: skip
        self.gate_up(m, w_gate_up, h, stream)
        self.down(h, w_down, y, stream)


def workspaces(dims, tokens, arch):
    return [("bf16", (tokens, dims["width"]))]


def design(dims, tokens, arch):
    return f"fma, {WARPS} warps, {ROWS} rows of a half warp"


def build(dims, tokens, arch):
    return TwoKernels(dims, tokens)
