import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32


@cute.jit
def _load_row(mRow: cute.Tensor, rRow: cute.Tensor, t: Int32, threads: cutlass.Constexpr[int], steps: cutlass.Constexpr[int]):
    for i in cutlass.range_constexpr(steps):
        cute.autovec_copy(cute.local_tile(mRow, (8,), (i * threads + t,)), rRow[None, i])


@cute.jit
def _store_row(rRow: cute.Tensor, mRow: cute.Tensor, t: Int32, threads: cutlass.Constexpr[int], steps: cutlass.Constexpr[int]):
    for i in cutlass.range_constexpr(steps):
        cute.autovec_copy(rRow[None, i], cute.local_tile(mRow, (8,), (i * threads + t,)))


@cute.kernel
def _mix(
    mPrefix: cute.Tensor,
    mDelta: cute.Tensor,
    mBlocks: cute.Tensor,
    mNorm: cute.Tensor,
    mQuery: cute.Tensor,
    mScale: cute.Tensor,
    mOut: cute.Tensor,
    mAux: cute.Tensor,
    nb: Int32,
    write_idx: Int32,
    eps: Float32,
    eps_out: Float32,
    hidden: cutlass.Constexpr[int],
    slots: cutlass.Constexpr[int],
    threads: cutlass.Constexpr[int],
    has_delta: cutlass.Constexpr[int],
    has_aux: cutlass.Constexpr[int],
    round_mix: cutlass.Constexpr[int],
):
    t, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    lane, warp = t % 32, t // 32
    warps = threads // 32
    steps = hidden // (8 * threads)
    sums = 2 * (slots + 1)

    # weights depend on no earlier kernel: before the PDL wait
    rNorm = cute.make_rmem_tensor(cute.make_layout((8, steps)), BFloat16)
    rQuery = cute.make_rmem_tensor(cute.make_layout((8, steps)), BFloat16)
    rScale = cute.make_rmem_tensor(cute.make_layout((8, steps)), BFloat16)
    _load_row(mNorm, rNorm, t, threads, steps)
    _load_row(mQuery, rQuery, t, threads, steps)
    _load_row(mScale, rScale, t, threads, steps)

    rP = cute.make_rmem_tensor(cute.make_layout((8, steps)), BFloat16)
    rD = cute.make_rmem_tensor(cute.make_layout((8, steps)), BFloat16)
    rV = cute.make_rmem_tensor(cute.make_layout((8, steps, slots)), BFloat16)
    rV.fill(0.0)

    cute.arch.griddepcontrol_wait()
    _load_row(mPrefix[row, None], rP, t, threads, steps)
    if cutlass.const_expr(has_delta):
        _load_row(mDelta[row, None], rD, t, threads, steps)
    for s in cutlass.range_constexpr(slots):
        if s < nb:  # an unused slot is never read: its registers stay zero
            for i in cutlass.range_constexpr(steps):
                cute.autovec_copy(
                    cute.local_tile(mBlocks[row, s, None], (8,), (i * threads + t,)), rV[None, i, s]
                )
    cute.arch.griddepcontrol_launch_dependents()

    # p = bf16(prefix + delta): one float32 addition, one rounding; the stores need nobody's answer
    if cutlass.const_expr(has_delta):
        rP.store((rP.load().to(Float32) + rD.load().to(Float32)).to(BFloat16))
        _store_row(rP, mPrefix[row, None], t, threads, steps)
    if cutlass.const_expr(has_aux):
        _store_row(rP, mAux[row, None], t, threads, steps)
    if write_idx >= 0:
        for i in cutlass.range_constexpr(steps):
            cute.autovec_copy(
                rP[None, i], cute.local_tile(mBlocks[row, write_idx, None], (8,), (i * threads + t,))
            )

    # two sums a source: V.(w_norm w_query) and V.V; source number `slots` is p
    rSum = cute.make_rmem_tensor((sums,), Float32)
    w = rNorm.load().to(Float32) * rQuery.load().to(Float32)
    for s in cutlass.range_constexpr(slots):
        v = rV[None, None, s].load().to(Float32)
        rSum[2 * s] = (v * w).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)
        rSum[2 * s + 1] = (v * v).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)
    p = rP.load().to(Float32)
    rSum[2 * slots] = (p * w).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)
    rSum[2 * slots + 1] = (p * p).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)
    for j in cutlass.range_constexpr(sums):
        rSum[j] = cute.arch.warp_reduction_sum(rSum[j])
    if cutlass.const_expr(warps > 1):
        shared = cutlass.memory.SmemAllocator()
        sPart = shared.allocate_tensor(Float32, cute.make_layout((warps, sums)), byte_alignment=16)
        sMix = shared.allocate_tensor(Float32, cute.make_layout((warps,)), byte_alignment=16)
        if lane == 0:
            for j in cutlass.range_constexpr(sums):
                sPart[warp, j] = rSum[j]
        cute.arch.sync_threads()
        for j in cutlass.range_constexpr(sums):
            part = Float32(0.0)
            if lane < warps:
                part = sPart[lane, j]
            rSum[j] = cute.arch.warp_reduction_sum(part)

    # softmax over the used slots and p, in every thread
    rA = cute.make_rmem_tensor((slots + 1,), Float32)
    top = rSum[2 * slots] * cute.math.rsqrt(rSum[2 * slots + 1] / hidden + eps)
    rA[slots] = top
    for s in cutlass.range_constexpr(slots):
        logit = Float32(-3.0e38)  # its exponential is exactly zero
        if s < nb:
            logit = rSum[2 * s] * cute.math.rsqrt(rSum[2 * s + 1] / hidden + eps)
        rA[s] = logit
        if logit > top:
            top = logit
    total = Float32(0.0)
    for s in cutlass.range_constexpr(slots + 1):
        e = cute.math.exp(rA[s] - top, fastmath=True)
        rA[s] = e
        total += e
    inverse = Float32(1.0) / total

    mix = p * (rA[slots] * inverse)
    for s in cutlass.range_constexpr(slots):
        mix = mix + rV[None, None, s].load().to(Float32) * (rA[s] * inverse)
    if cutlass.const_expr(round_mix):
        mix = mix.to(BFloat16).to(Float32)

    square = (mix * mix).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)
    square = cute.arch.warp_reduction_sum(square)
    if cutlass.const_expr(warps > 1):
        if lane == 0:
            sMix[warp] = square
        cute.arch.sync_threads()
        share = Float32(0.0)
        if lane < warps:
            share = sMix[lane]
        square = cute.arch.warp_reduction_sum(share)
    scale = cute.math.rsqrt(square / hidden + eps_out)
    rScale.store((mix * scale * rScale.load().to(Float32)).to(BFloat16))
    _store_row(rScale, mOut[row, None], t, threads, steps)


def _threads(hidden):
    return next(n for n in range(1024, 0, -32) if hidden % (8 * n) == 0)


def build(dims, tokens, arch):
    hidden, slots = dims["hidden"], dims["slots"]
    variant, aux = dims["variant"], dims["aux"]
    threads = _threads(hidden)
    has_delta = 0 if variant == "prefix_only" else 1
    has_aux = 1 if aux == "yes" else 0
    round_mix = 1 if variant == "final" else 0

    @cute.jit
    def delta_plain(
        mPrefix: cute.Tensor, mDelta: cute.Tensor, mBlocks: cute.Tensor, mNorm: cute.Tensor, mQuery: cute.Tensor,
        mScale: cute.Tensor, mOut: cute.Tensor, nb: Int32, write_idx: Int32, eps: Float32, eps_out: Float32,
        stream: cuda.CUstream,
    ):
        _mix(
            mPrefix, mDelta, mBlocks, mNorm, mQuery, mScale, mOut, mOut, nb, write_idx, eps, eps_out,
            hidden, slots, threads, has_delta, has_aux, round_mix,
        ).launch(grid=[tokens, 1, 1], block=[threads, 1, 1], stream=stream, use_pdl=True)

    @cute.jit
    def delta_aux(
        mPrefix: cute.Tensor, mDelta: cute.Tensor, mBlocks: cute.Tensor, mNorm: cute.Tensor, mQuery: cute.Tensor,
        mScale: cute.Tensor, mOut: cute.Tensor, mAux: cute.Tensor, nb: Int32, write_idx: Int32, eps: Float32,
        eps_out: Float32, stream: cuda.CUstream,
    ):
        _mix(
            mPrefix, mDelta, mBlocks, mNorm, mQuery, mScale, mOut, mAux, nb, write_idx, eps, eps_out,
            hidden, slots, threads, has_delta, has_aux, round_mix,
        ).launch(grid=[tokens, 1, 1], block=[threads, 1, 1], stream=stream, use_pdl=True)

    @cute.jit
    def prefix_plain(
        mPrefix: cute.Tensor, mBlocks: cute.Tensor, mNorm: cute.Tensor, mQuery: cute.Tensor, mScale: cute.Tensor,
        mOut: cute.Tensor, nb: Int32, write_idx: Int32, eps: Float32, eps_out: Float32, stream: cuda.CUstream,
    ):
        _mix(
            mPrefix, mPrefix, mBlocks, mNorm, mQuery, mScale, mOut, mOut, nb, write_idx, eps, eps_out,
            hidden, slots, threads, has_delta, has_aux, round_mix,
        ).launch(grid=[tokens, 1, 1], block=[threads, 1, 1], stream=stream, use_pdl=True)

    @cute.jit
    def prefix_aux(
        mPrefix: cute.Tensor, mBlocks: cute.Tensor, mNorm: cute.Tensor, mQuery: cute.Tensor, mScale: cute.Tensor,
        mOut: cute.Tensor, mAux: cute.Tensor, nb: Int32, write_idx: Int32, eps: Float32, eps_out: Float32,
        stream: cuda.CUstream,
    ):
        _mix(
            mPrefix, mPrefix, mBlocks, mNorm, mQuery, mScale, mOut, mAux, nb, write_idx, eps, eps_out,
            hidden, slots, threads, has_delta, has_aux, round_mix,
        ).launch(grid=[tokens, 1, 1], block=[threads, 1, 1], stream=stream, use_pdl=True)

    if has_delta:
        return delta_aux if has_aux else delta_plain
    return prefix_aux if has_aux else prefix_plain


def design(dims, tokens, arch):
    return f"one CTA a row, {_threads(dims['hidden'])} threads, sources in registers"
