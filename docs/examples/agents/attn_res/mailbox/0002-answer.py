import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32


@cute.jit
def _fma(a: Float32, b: Float32, c: Float32) -> Float32:
    """a * b + c in one instruction, whatever the compiler thinks of contraction; keeps denormals."""
    return cute.arch.inline_ptx(
        "fma.rn.f32 {$w0}, {$r0}, {$r1}, {$r2};", write_only_types=[Float32], read_only_args=[a, b, c]
    )


@cute.jit
def _load_weight(
    atom: cute.CopyAtom, mRow: cute.Tensor, rRow: cute.Tensor, t: Int32, threads: cutlass.Constexpr[int],
    steps: cutlass.Constexpr[int],
):
    for i in cutlass.range_constexpr(steps):
        cute.copy(atom, cute.local_tile(mRow, (8,), (i * threads + t,)), rRow[None, i])


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
    atom = cute.make_copy_atom(
        cute.nvgpu.CopyG2ROp(),
        BFloat16,
        num_bits_per_copy=128,
        l1c_evict_priority=cute.nvgpu.CacheEvictionPriority.NO_ALLOCATE,
    )
    _load_weight(atom, mNorm, rNorm, t, threads, steps)
    _load_weight(atom, mQuery, rQuery, t, threads, steps)
    _load_weight(atom, mScale, rScale, t, threads, steps)

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

    # two sums a source: V.(w_norm w_query) and V.V; source number `slots` is p. All chains are independent.
    rSum = cute.make_rmem_tensor((sums,), Float32)
    rSum.fill(0.0)
    for i in cutlass.range_constexpr(steps):
        w = rNorm[None, i].load().to(Float32) * rQuery[None, i].load().to(Float32)
        for s in cutlass.range_constexpr(slots):
            v = rV[None, i, s].load().to(Float32)
            for e in cutlass.range_constexpr(8):
                rSum[2 * s] = _fma(v[e], w[e], rSum[2 * s])
                rSum[2 * s + 1] = _fma(v[e], v[e], rSum[2 * s + 1])
        p = rP[None, i].load().to(Float32)
        for e in cutlass.range_constexpr(8):
            rSum[2 * slots] = _fma(p[e], w[e], rSum[2 * slots])
            rSum[2 * slots + 1] = _fma(p[e], p[e], rSum[2 * slots + 1])
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

    # softmax over the used slots and p, in every thread, left unnormalised: with T = sum e_s and U = sum e_s V_s,
    # mix rsqrt(mean(mix^2) + eps_out) = U rsqrt(mean(U^2) + eps_out T^2), since mix = U / T and 1 <= T <= slots + 1
    share = 1.0 / hidden
    rA = cute.make_rmem_tensor((slots + 1,), Float32)
    top = rSum[2 * slots] * cute.math.rsqrt(rSum[2 * slots + 1] * share + eps)
    rA[slots] = top
    for s in cutlass.range_constexpr(slots):
        logit = rSum[2 * s] * cute.math.rsqrt(rSum[2 * s + 1] * share + eps)
        if s >= nb:
            logit = Float32(-3.0e38)  # its exponential is exactly zero
        rA[s] = logit
        if logit > top:
            top = logit
    total = Float32(0.0)
    for s in cutlass.range_constexpr(slots + 1):
        e = cute.math.exp(rA[s] - top, fastmath=True)
        rA[s] = e
        total += e

    rU = cute.make_rmem_tensor(cute.make_layout((8, steps)), Float32)
    for i in cutlass.range_constexpr(steps):
        rU[None, i].store(rP[None, i].load().to(Float32) * rA[slots])
        for s in cutlass.range_constexpr(slots):
            v = rV[None, i, s].load().to(Float32)
            for e in cutlass.range_constexpr(8):
                rU[e, i] = _fma(v[e], rA[s], rU[e, i])
    floor = eps_out
    if cutlass.const_expr(round_mix):
        rU.store((rU.load() * (Float32(1.0) / total)).to(BFloat16).to(Float32))
    else:
        floor = eps_out * total * total

    even, odd = Float32(0.0), Float32(0.0)
    for i in cutlass.range_constexpr(steps):
        for e in cutlass.range_constexpr(4):
            even = _fma(rU[2 * e, i], rU[2 * e, i], even)
            odd = _fma(rU[2 * e + 1, i], rU[2 * e + 1, i], odd)
    square = cute.arch.warp_reduction_sum(even + odd)
    rU.store(rU.load() * rScale.load().to(Float32))  # beside the shuffles, not behind them
    if cutlass.const_expr(warps > 1):
        if lane == 0:
            sMix[warp] = square
        cute.arch.sync_threads()
        part = Float32(0.0)
        if lane < warps:
            part = sMix[lane]
        square = cute.arch.warp_reduction_sum(part)
    scale = cute.math.rsqrt(square * share + floor)
    rScale.store((rU.load() * scale).to(BFloat16))
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
    return f"one CTA a row, {_threads(dims['hidden'])} threads, sources in registers, no division"
