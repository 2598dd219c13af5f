"""Touches every argument of attn_res (state, optional tensor, scalars); its numbers mean nothing."""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32


class WithDelta:
    def __init__(self, tokens: int):
        self.tokens = tokens

    @cute.kernel
    def kernel(
        self,
        mP: cute.Tensor,
        mD: cute.Tensor,
        mB: cute.Tensor,
        mW: cute.Tensor,
        mY: cute.Tensor,
        nb: Int32,
        eps: Float32,
    ):
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        total = mP[row, thread].to(Float32) + mD[row, thread].to(Float32)
        for slot in cutlass.range(nb):
            total += mB[row, slot, thread].to(Float32) * mW[thread].to(Float32)
        mP[row, thread] = total.to(BFloat16)
        mY[row, thread] = (total + eps).to(BFloat16)

    @cute.jit
    def __call__(
        self,
        prefix: cute.Tensor,
        delta: cute.Tensor,
        blocks: cute.Tensor,
        w_norm: cute.Tensor,
        w_query: cute.Tensor,
        w_out: cute.Tensor,
        out: cute.Tensor,
        nb: Int32,
        write_idx: Int32,
        eps: Float32,
        eps_out: Float32,
        stream: cuda.CUstream,
    ):
        self.kernel(prefix, delta, blocks, w_norm, out, nb, eps).launch(
            grid=[self.tokens, 1, 1], block=[256, 1, 1], stream=stream
        )


class WithoutDelta(WithDelta):
    @cute.jit
    def __call__(
        self,
        prefix: cute.Tensor,
        blocks: cute.Tensor,
        w_norm: cute.Tensor,
        w_query: cute.Tensor,
        w_out: cute.Tensor,
        out: cute.Tensor,
        nb: Int32,
        write_idx: Int32,
        eps: Float32,
        eps_out: Float32,
        stream: cuda.CUstream,
    ):
        self.kernel(prefix, prefix, blocks, w_norm, out, nb, eps).launch(
            grid=[self.tokens, 1, 1], block=[256, 1, 1], stream=stream
        )


def design(dims, tokens, arch):
    return dims["variant"]


def build(dims, tokens, arch):
    return WithoutDelta(tokens) if dims["variant"] == "prefix_only" else WithDelta(tokens)
