"""A small, plain candidate for moe_shared: one warp computes one output row, first of gate_up, then of down."""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32

WARPS = 4  # a block; each warp owns one output row
VECTOR = 8  # bf16 values in one 16-byte load
BETA, LAMBDA = 4.0, 25.0  # of SiTU, from the op's notes


class SharedExpert:
    """Two kernels in a row. m [tokens, hidden] -> h [tokens, width] (a workspace) -> y [tokens, hidden]."""

    def __init__(self, hidden: int, width: int, tokens: int):
        self.hidden, self.width, self.tokens = hidden, width, tokens

    @cute.jit
    def __call__(
        self,
        m: cute.Tensor,
        w_gate_up: cute.Tensor,
        w_down: cute.Tensor,
        y: cute.Tensor,
        h: cute.Tensor,
        stream: cuda.CUstream,
    ):
        block = [32 * WARPS, 1, 1]
        self.gate_up(m, w_gate_up, h).launch(grid=[self.width // WARPS, 1, 1], block=block, stream=stream)
        self.down(h, w_down, y).launch(grid=[self.hidden // WARPS, 1, 1], block=block, stream=stream)

    @cute.kernel
    def gate_up(self, mX: cute.Tensor, mW: cute.Tensor, mH: cute.Tensor):
        row, lane = self.place()
        for token in cutlass.range(self.tokens):
            gate = self.dot(mX[token, None], mW[row, None], self.hidden, lane)
            up = self.dot(mX[token, None], mW[self.width + row, None], self.hidden, lane)
            if lane == 0:
                mH[token, row] = self.situ(gate, up).to(BFloat16)

    @cute.kernel
    def down(self, mH: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor):
        row, lane = self.place()
        for token in cutlass.range(self.tokens):
            value = self.dot(mH[token, None], mW[row, None], self.width, lane)
            if lane == 0:
                mY[token, row] = value.to(BFloat16)

    @cute.jit
    def place(self):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        return block * WARPS + thread // 32, thread % 32

    @cute.jit
    def dot(self, gX: cute.Tensor, gW: cute.Tensor, length: cutlass.Constexpr[int], lane):
        """The dot product of two rows, in every lane of the warp."""
        rX = cute.make_rmem_tensor((VECTOR,), BFloat16)
        rW = cute.make_rmem_tensor((VECTOR,), BFloat16)
        total = Float32(0.0)
        vectors = length // VECTOR
        for step in cutlass.range((vectors + 31) // 32, unroll=4):
            i = step * 32 + lane
            if i < vectors:  # a row need not fill all lanes
                cute.autovec_copy(cute.local_tile(gX, (VECTOR,), (i,)), rX)
                cute.autovec_copy(cute.local_tile(gW, (VECTOR,), (i,)), rW)
                products = rX.load().to(Float32) * rW.load().to(Float32)
                total += products.reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)
        return cute.arch.warp_reduction_sum(total)

    @cute.jit
    def situ(self, gate, up):
        """beta tanh(g / beta) sigmoid(g) * lambda tanh(u / lambda), of values rounded to bf16 as the op says."""
        g, u = gate.to(BFloat16).to(Float32), up.to(BFloat16).to(Float32)
        soft = BETA * cute.math.tanh(g / BETA) / (1.0 + cute.math.exp(-g))
        return soft * (LAMBDA * cute.math.tanh(u / LAMBDA))


def workspaces(dims, tokens, arch):
    return [("bf16", (tokens, dims["width"]))]


def design(dims, tokens, arch):
    return "warp-per-row"


def build(dims, tokens, arch):
    return SharedExpert(dims["hidden"], dims["width"], tokens)
