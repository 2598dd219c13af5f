"""moe_experts in one persistent kernel: MXFP4 weights stream through shared memory, each routed expert's once.

A segment is an expert with up to 8 of its tokens. Every CTA makes the same list of segments, sorted by expert, and
takes an even, consecutive share of the units of each stage, whatever the routing:
1. gate, up: a unit is 8 gate rows and the 8 up rows of the same hidden units. K is split over `split` warps.
2. down: a unit is 16 rows for each of `rows` warps, all of K. It waits until its segment's hidden units are written.
3. combine: when all CTAs are done, the rows of each token are weighted and summed in slot order.
A producer warp fills a ring by bulk copies, a finisher warp adds partial sums and applies SiTU. Rows of weights are the
16-row operand of mma.sync, tokens the 8-wide one; K is permuted so that a lane's vector of codes is in one scale block.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64, Uint8, Uint32
from cutlass.cute.nvgpu import cpasync

CTAS, WARPS = 132, 14  # at most: one CTA an SM, warps that multiply
K_WARPS, ROW_WARPS = 7, 7  # that share a unit of gate and up (K), of down (16 rows each)
STAGES = 6  # slots of the ring, where shared memory has room
EARLY, PDL = True, True  # whether the next kernel may start at once; programmatic dependent launch
BETA, LINEAR_BETA = 4.0, 25.0  # SiTU's constants
BLOCK, COLUMNS = 32, 8  # codes to a scale, tokens of a segment
SHARED = 232448 - 1024  # bytes of a CTA; a little stays free for alignment
SIGNS, MAGNITUDES = 0x80008000, 0x01C001C0  # where e2m1's bits go in a pair of bf16: then its value is 2^-126 too small
MIDDLE, PAIR = 128, 0x00800080  # the largest scale byte s for which 2^(s - 1) is bf16; 1 in the exponents of a pair


def divisor(n, most):
    """Largest divisor of n that is at most `most`: parameters bend to dims that they do not divide."""
    return max(d for d in range(1, min(n, most) + 1) if n % d == 0)


def plan(dims, tokens):
    """Bytes of codes in a lane's vector, warps of a unit of each stage, warps, bytes of a slot, slots."""
    latent, width, pairs = dims["latent"], dims["width"], tokens * dims["top_k"]
    vector = 16 if latent % 128 == 0 and width % 128 == 0 else 8
    split = divisor(latent // (8 * vector), K_WARPS)
    tiles = latent // 16
    rows = max(r for r in range(1, ROW_WARPS + 1) if tiles % r == 0 and (r % split == 0 or split % r == 0))
    warps = max(WARPS // max(split, rows), 1) * max(split, rows)
    slot = (16 * max(latent // 2 + latent // BLOCK, rows * (width // 2 + width // BLOCK)) + 127) // 128 * 128
    tables = 4 * (3 * dims["experts"] + 3 * pairs + 64) + 2 * warps * 512
    return vector, split, rows, warps, slot, min(STAGES, (SHARED - tables) // slot)


@cute.jit
def situ(gate, up):
    """SiTU of float32 sums that are rounded to bf16 first, as the op is written."""
    g, u = gate.to(BFloat16).to(Float32), up.to(BFloat16).to(Float32)
    sigmoid = cute.arch.rcp_approx(1.0 + cute.math.exp(-g, fastmath=True))
    linear = LINEAR_BETA * cute.math.tanh(u * (1.0 / LINEAR_BETA))
    return BETA * cute.math.tanh(g * (1.0 / BETA)) * sigmoid * linear


class Experts:
    def __init__(self, dims, tokens):
        self.latent, self.width, self.experts, self.top_k = (dims[n] for n in ("latent", "width", "experts", "top_k"))
        self.tokens, self.pairs = tokens, tokens * self.top_k
        self.vector, self.split, self.rows, self.warps, self.slot, self.stages = plan(dims, tokens)
        self.eights = self.vector // 4  # vectors of 8 activations that belong to a lane's vector of codes
        self.steps, self.down_steps = (k // (8 * self.vector) for k in (self.latent // self.split, self.width))
        self.tiles, self.down_units = self.width // 8, self.latent // (16 * self.rows)  # units of a segment
        self.groups, self.down_groups = self.warps // self.split, self.warps // self.rows  # of warps that share a unit
        self.sums, self.arrivals = 2 * self.groups, max(self.split, self.rows)  # waiting sums; what frees a slot
        self.threads, self.ctas = 32 * (self.warps + 2), min(CTAS, self.pairs * self.tiles)

    @cute.jit
    def __call__(
        self, lat: cute.Tensor, ids: cute.Tensor, w: cute.Tensor, w13: cute.Tensor, s13: cute.Tensor, w2: cute.Tensor,
        s2: cute.Tensor, part: cute.Tensor, h: cute.Tensor, rows: cute.Tensor, flags: cute.Tensor,
        stream: cuda.CUstream,
    ):  # fmt: skip
        self.kernel(lat, ids, w, w13, s13, w2, s2, part, h, rows, flags).launch(
            grid=[self.ctas, 1, 1], block=[self.threads, 1, 1], stream=stream, use_pdl=PDL, min_blocks_per_mp=1,
            cooperative=True)  # fmt: skip

    @cute.kernel
    def kernel(
        self, lat: cute.Tensor, ids: cute.Tensor, w: cute.Tensor, w13: cute.Tensor, s13: cute.Tensor, w2: cute.Tensor,
        s2: cute.Tensor, part: cute.Tensor, h: cute.Tensor, rows: cute.Tensor, flags: cute.Tensor,
    ):  # fmt: skip
        if cutlass.const_expr(PDL and EARLY):
            cute.arch.griddepcontrol_launch_dependents()
        tid, cta = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        warp, lane = cute.arch.make_warp_uniform(tid // 32), tid % 32
        smem = cutlass.memory.SmemAllocator()
        ring = smem.allocate_tensor(Uint8, cute.make_layout(self.slot * self.stages), byte_alignment=128)
        layout = cute.make_layout((4, 32, self.split, self.sums))
        sums = smem.allocate_tensor(Float32, layout, byte_alignment=16)
        full, empty = smem.allocate_array(Int64, self.stages), smem.allocate_array(Int64, self.stages)
        summed, free = smem.allocate_array(Int64, self.sums), smem.allocate_array(Int64, self.sums)
        # the list: of a segment its expert and where its pairs start; pairs are token x top_k + slot; how many segments
        sizes = (self.pairs, self.pairs + 1, self.pairs, 1)
        lists = tuple(smem.allocate_tensor(Int32, cute.make_layout(n), byte_alignment=16) for n in sizes)
        if tid == 0:
            for i in cutlass.range_constexpr(self.stages):
                cute.arch.mbarrier_init(full + i, 1)
                cute.arch.mbarrier_init(empty + i, 32 * self.arrivals)
            for i in cutlass.range_constexpr(self.sums):
                cute.arch.mbarrier_init(summed + i, 32 * self.split)
                cute.arch.mbarrier_init(free + i, 32)
            cute.arch.mbarrier_init_fence()
        cute.arch.griddepcontrol_wait()
        self.route(smem, ids, lists, tid)
        segments = lists[3][0]
        ready = cute.make_tensor(flags.iterator + 2, cute.make_layout(self.pairs))  # units of gate and up, by segment
        own = tuple(segments * n * (cta + i) // self.ctas for n in (self.tiles, self.down_units) for i in (0, 1))
        if warp < self.warps:
            self.gate_up(lat, ring, full, empty, sums, summed, free, lists, own, warp, lane)
            self.down(h, rows, ready, ring, full, empty, lists, own, warp, lane)
        if warp == self.warps:
            self.finish(h, ready, sums, summed, free, lists, own, lane)
        if tid == 32 * (self.warps + 1):
            self.produce(w13, s13, w2, s2, ring, full, empty, lists, own)
        self.meet(flags, tid)
        self.combine(ids, w, rows, part, cta, tid)
        if cta == 0:
            for i in cutlass.range(tid, segments, self.threads, unroll=1):
                ready[i] = 0  # as the next call needs it

    @cute.jit
    def route(self, smem, ids, lists, tid):
        """The list of segments. Bits say which tokens an expert serves: set in any order, they are the same."""
        (expert, first, pair, count), per = lists, (self.experts + self.threads - 1) // self.threads
        mask = smem.allocate_tensor(Int64, cute.make_layout(self.experts), byte_alignment=16)
        start = smem.allocate_tensor(Int32, cute.make_layout(self.experts), byte_alignment=16)  # of an expert in `pair`
        totals = smem.allocate_tensor(Int32, cute.make_layout(self.threads // 32), byte_alignment=16)
        flat = cute.make_tensor(ids.iterator, cute.make_layout(self.pairs))
        for e in cutlass.range(tid, self.experts, self.threads, unroll=1):
            mask[e] = 0
        cute.arch.sync_threads()
        for p in cutlass.range(tid, self.pairs, self.threads, unroll=1):
            if flat[p] >= 0:
                bit = Int64(1) << Int64(p // self.top_k)
                cute.arch.atomic_or((mask.iterator + flat[p]).llvm_ptr, bit, sem="relaxed", scope="cta")
        cute.arch.sync_threads()
        mine = Int32(0)  # pairs, and from bit 16 on segments, of this thread's experts
        for j in cutlass.range_constexpr(per):
            mine += self.counted(mask, tid * per + j)
        before = mine
        for j in cutlass.range_constexpr(5):
            other = cute.arch.shuffle_sync_up(before, 1 << j)
            if tid % 32 >= 1 << j:
                before += other
        if tid % 32 == 31:
            totals[tid // 32] = before
        cute.arch.sync_threads()
        for j in cutlass.range_constexpr(self.threads // 32):
            if j < tid // 32:
                before += totals[j]
        if tid == self.threads - 1:
            count[0], first[before >> 16] = before >> 16, before & 0xFFFF
        before -= mine
        for j in cutlass.range_constexpr(per):
            e = tid * per + j
            both = self.counted(mask, e)
            if e < self.experts:
                start[e] = before & 0xFFFF
                for s in cutlass.range(both >> 16, unroll=1):
                    expert[(before >> 16) + s], first[(before >> 16) + s] = e, (before & 0xFFFF) + COLUMNS * s
            before += both
        cute.arch.sync_threads()
        for p in cutlass.range(tid, self.pairs, self.threads, unroll=1):
            if flat[p] >= 0:  # as many further as lower tokens have the expert
                lower = mask[flat[p]] & ((Int64(1) << Int64(p // self.top_k)) - 1)
                pair[start[flat[p]] + Int32(cute.arch.popc(lower))] = p
        cute.arch.sync_threads()

    @cute.jit
    def counted(self, mask, e):
        n = Int32(0)
        if e < self.experts:
            n = Int32(cute.arch.popc(mask[e]))
        return n + ((n + COLUMNS - 1) // COLUMNS << 16)

    def fetch(self, src, offset, size, ring, at, bar):
        gs, ss = cpasync.group_bulk_copy_modes(
            cute.make_tensor((src.iterator + offset).align(16), cute.make_layout(size)),
            cute.make_tensor((ring.iterator + at).align(16), cute.make_layout(size)),
        )
        cute.copy(cute.make_copy_atom(cpasync.CopyBulkG2SOp(), Uint8), gs, ss, mbar_ptr=bar)

    @cute.jit
    def produce(self, w13, s13, w2, s2, ring, full, empty, lists, own):
        """One thread: a unit after another into the next slot of the ring, as soon as that is free."""
        expert, (low, high, down_low, down_high) = lists[0], own
        codes, scales = self.latent // 2, self.latent // BLOCK  # bytes of a row
        for unit in cutlass.range(low, high, unroll=1):
            bar, at = self.next_slot(full, empty, unit - low, 16 * (codes + scales))
            for half in cutlass.range_constexpr(2):  # gate, up
                row = (Int64(expert[unit // self.tiles]) * 2 + half) * self.width + 8 * (unit % self.tiles)
                self.fetch(w13, row * codes, 8 * codes, ring, at + half * 8 * codes, bar)
                self.fetch(s13, row * scales, 8 * scales, ring, at + 16 * codes + half * 8 * scales, bar)
        codes, scales, n = self.width // 2, self.width // BLOCK, 16 * self.rows
        for unit in cutlass.range(down_low, down_high, unroll=1):
            bar, at = self.next_slot(full, empty, high - low + unit - down_low, n * (codes + scales))
            row = Int64(expert[unit // self.down_units]) * self.latent + n * (unit % self.down_units)
            self.fetch(w2, row * codes, n * codes, ring, at, bar)
            self.fetch(s2, row * scales, n * scales, ring, at + n * codes, bar)

    def next_slot(self, full, empty, turn, size):
        slot = turn % self.stages
        cute.arch.mbarrier_wait(empty + slot, (turn // self.stages & 1) ^ 1)
        cute.arch.mbarrier_arrive_and_expect_tx(full + slot, size)
        return full + slot, slot * self.slot

    @cute.jit
    def release(self, bar, arrivals: cutlass.Constexpr[int]):
        """Every lane for itself: the compiler drops a warp's barrier before one lane's arrival where it sees none of use."""
        cute.arch.mbarrier_arrive(bar, arrive_count=arrivals)

    @cute.jit
    def decode(self, codes: cute.Tensor, scale, out: cute.Tensor, wide: cutlass.Constexpr[bool]):
        """u32 words of e2m1 codes times 2^(scale - 127) to pairs of bf16, exactly; `wide`: scale may exceed MIDDLE."""
        low, high = Uint32(cutlass.min(scale, MIDDLE)), Uint32(cutlass.max(scale, MIDDLE))
        factors = ((low + Uint32(126)) * Uint32(PAIR), (high - Uint32(1)) * Uint32(PAIR))  # 2^(low - 1), 2^(high - 128)
        for n in cutlass.range_constexpr(self.vector):
            word, i = codes[n // 4], n % 4  # codes i and i + 4 of a word are a pair
            magnitudes = (word << 6, word << 2, word >> 2, word >> 6)[i] & Uint32(MAGNITUDES)
            out[n] = magnitudes | (word << (12 - 4 * i) & Uint32(SIGNS))
            for k in cutlass.range_constexpr(2 if wide else 1):
                both = [out[n], factors[k]]  # such products keep subnormals
                out[n] = cute.arch.inline_ptx(
                    "mul.rn.bf16x2 {$w0}, {$r0}, {$r1};", write_only_types=[Uint32], read_only_args=both)  # fmt: skip

    @cute.jit
    def multiply(self, x, steps: cutlass.Constexpr[int], ring, at, row, n, length: cutlass.Constexpr[int], k):
        """float32 sums of rows `row` and row + 8 times x, in a slot of n rows of `length` codes, from vector k on."""
        acc = cute.make_rmem_tensor(cute.make_layout(((2, 2), 1, 1, 2)), Float32)  # two chains of sums
        acc.fill(0.0)
        scale, top = cute.make_rmem_tensor(cute.make_layout((2, steps)), Int32), Int32(0)
        for i in cutlass.range_constexpr(2 * steps):
            block = (row + 8 * (i % 2)) * (length // BLOCK) + (k + 4 * (i // 2)) * self.vector * 2 // BLOCK
            scale[i] = Int32(ring[at + n * (length // 2) + block])
            top = cutlass.max(top, scale[i])
        first, pitch = (at + row * (length // 2)) // self.vector + k, length // 2 // self.vector
        if cute.arch.vote_any_sync(top > MIDDLE):
            self.add(acc, x, ring, first, pitch, scale, True)
        else:
            self.add(acc, x, ring, first, pitch, scale, False)
        for i in cutlass.range_constexpr(4):
            acc[i] += acc[i + 4]
        return acc

    @cute.jit
    def add(self, acc, x, ring, first, pitch: cutlass.Constexpr[int], scale, wide: cutlass.Constexpr[bool]):
        """acc += two rows, 8 pitches apart, from vector `first` of the ring on, times x."""
        raw = cute.make_rmem_tensor(cute.make_layout((self.vector, 2)), Uint8)
        wf = cute.make_rmem_tensor(cute.make_layout((2 * self.vector, 2)), BFloat16)
        words, bits = cute.recast_tensor(raw, Uint32), cute.recast_tensor(wf, Uint32)
        # fragments are views of registers: (pair, row half, k half), k step
        mma = cute.make_tiled_mma(cute.nvgpu.warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        a = cute.make_layout(((2, 2, 2), 1, self.vector // 2), stride=((1, 2 * self.vector, 2), 0, 4))
        fa, b = cute.make_tensor(wf.iterator, a), cute.make_layout(((2, 2), 1, self.vector // 2), stride=((1, 2), 0, 4))
        for s in cutlass.range_constexpr(cute.size(scale) // 2):
            for half in cutlass.range_constexpr(2):
                src = cute.local_tile(ring, (self.vector,), (first + 8 * half * pitch + 4 * s,))
                cute.autovec_copy(src, raw[None, half])
                self.decode(words[None, half], scale[half, s], bits[None, half], wide)
            fb = cute.make_tensor(cute.recast_tensor(x, BFloat16).iterator + 2 * self.vector * s, b)
            for j in cutlass.range_constexpr(self.vector // 2):
                own = acc[None, None, None, j % 2]
                cute.gemm(mma, own, fa[None, None, j], fb[None, None, j], own)

    def column(self, lists, segment, at):
        """The pair in column `at` of a segment; spare columns repeat the last one and go nowhere."""
        return lists[2][cutlass.min(lists[1][segment] + at, lists[1][segment + 1] - 1)]

    @cute.jit
    def hold(self, x, row, k):
        """A lane's activations of a row, from its vector k of each step on, to registers, in the order of the codes."""
        got = cute.make_rmem_tensor(x.layout, Uint32)
        for i in cutlass.range_constexpr(cute.size(x) // 4):
            at = (k + 4 * (i // self.eights)) * self.eights + i % self.eights
            cute.autovec_copy(cute.recast_tensor(cute.local_tile(row, (8,), (at,)), Uint32), got[None, i])
        for i in cutlass.range_constexpr(cute.size(x)):  # activations i and i + 4; in PTX, so that it is not put off
            those = [got[i % 4 // 2, i // 4], got[i % 4 // 2 + 2, i // 4], Uint32(0x7632 if i % 2 else 0x5410)]
            x[i] = cute.arch.inline_ptx(
                "prmt.b32 {$w0}, {$r0}, {$r1}, {$r2};", write_only_types=[Uint32], read_only_args=those)  # fmt: skip

    @cute.jit
    def gate_up(self, lat, ring, full, empty, sums, summed, free, lists, own, warp, lane):
        """Partial sums over this warp's part of K, of every unit of its group, to shared memory."""
        g, piece, (low, high, _, _) = lane // 4, warp % self.split, own
        k = piece * self.steps * 4 + lane % 4
        x = cute.make_rmem_tensor(cute.make_layout((4, self.eights * self.steps)), Uint32)
        x.fill(0)
        have = Int32(-1)  # segment whose latents these are
        for turn in cutlass.range(warp // self.split, high - low, self.groups, unroll=1):
            segment = (low + turn) // self.tiles
            if segment != have:
                have = segment
                self.hold(x, lat[self.column(lists, segment, g) // self.top_k, None], k)
            slot, place = turn % self.stages, turn % self.sums
            cute.arch.mbarrier_wait(full + slot, turn // self.stages & 1)
            acc = self.multiply(x, self.steps, ring, slot * self.slot, g, 16, self.latent, k)
            self.release(empty + slot, self.arrivals // self.split)
            cute.arch.mbarrier_wait(free + place, (turn // self.sums & 1) ^ 1)
            cute.autovec_copy(cute.make_tensor(acc.iterator, cute.make_layout(4)), sums[None, lane, piece, place])
            self.release(summed + place, 1)

    @cute.jit
    def finish(self, h, ready, sums, summed, free, lists, own, lane):
        """Hidden units of each unit of gate and up, a lane's columns as in the fragments."""
        g, q, (low, high, _, _) = lane // 4, lane % 4, own
        for turn in cutlass.range(high - low, unroll=1):
            segment, tile, place = (low + turn) // self.tiles, (low + turn) % self.tiles, turn % self.sums
            cute.arch.mbarrier_wait(summed + place, turn // self.sums & 1)
            got = cute.make_rmem_tensor(cute.make_layout((4, self.split)), Float32)
            for k in cutlass.range_constexpr(self.split):
                cute.autovec_copy(sums[None, lane, k, place], got[None, k])
            self.release(free + place, 1)
            for i in cutlass.range_constexpr(4, 4 * self.split):
                got[i % 4, 0] += got[i % 4, i // 4]
            for e in cutlass.range_constexpr(2):
                p = lists[1][segment] + 2 * q + e
                if p < lists[1][segment + 1]:
                    h[lists[2][p], 8 * tile + g] = situ(got[e, 0], got[2 + e, 0]).to(BFloat16)
            cute.arch.sync_warp()
            if lane == 0:
                cute.arch.atomic_add(ready.iterator + segment, Int32(1), sem="release", scope="gpu")

    @cute.jit
    def down(self, h, rows, ready, ring, full, empty, lists, own, warp, lane):
        """A row tile of every unit of this warp's group, of all its pairs, rounded to bf16."""
        g, q, tile, (_, _, low, high) = lane // 4, lane % 4, warp % self.rows, own
        x = cute.make_rmem_tensor(cute.make_layout((4, self.eights * self.down_steps)), Uint32)
        x.fill(0)
        have = Int32(-1)
        for turn in cutlass.range(warp // self.rows, high - low, self.down_groups, unroll=1):
            segment, unit = (low + turn) // self.down_units, (low + turn) % self.down_units
            if segment != have:
                have = segment
                if lane == 0:
                    done = Int32(0)
                    while done < self.tiles:
                        done = cute.arch.load(ready.iterator + segment, Int32, sem="acquire", scope="gpu")
                cute.arch.sync_warp()
                self.hold(x, h[self.column(lists, segment, g), None], q)
            used, slot = own[1] - own[0] + turn, (own[1] - own[0] + turn) % self.stages
            cute.arch.mbarrier_wait(full + slot, used // self.stages & 1)
            row, n = 16 * tile + g, 16 * self.rows
            acc = self.multiply(x, self.down_steps, ring, slot * self.slot, row, n, self.width, q)
            self.release(empty + slot, self.arrivals // self.rows)
            for i in cutlass.range_constexpr(4):
                p = lists[1][segment] + 2 * q + i % 2
                if p < lists[1][segment + 1]:
                    rows[lists[2][p], (unit * self.rows + tile) * 16 + g + i // 2 * 8] = acc[i].to(BFloat16)

    @cute.jit
    def meet(self, flags, tid):
        """flags = (arrived, generation, ...); the last to arrive re-arms the count and opens the next generation."""
        cute.arch.sync_threads()
        if tid == 0:
            count, generation = flags.iterator, flags.iterator + 1
            before = cute.arch.load(generation, Int32, sem="acquire", scope="gpu")
            arrived = cute.arch.atomic_add(count, Int32(1), sem="acq_rel", scope="gpu")
            if arrived == self.ctas - 1:
                cute.arch.store(count, Int32(0), sem="relaxed", scope="gpu")
                cute.arch.store(generation, before + 1, sem="release", scope="gpu")
            now = before
            while now == before:
                now = cute.arch.load(generation, Int32, sem="acquire", scope="gpu")
        cute.arch.sync_threads()

    @cute.jit
    def combine(self, ids, w, rows, part, cta, tid):
        """part = bf16(sum of w row over the slots that name an expert): 8 outputs of a token a thread."""
        vectors = self.latent // 8
        for i in cutlass.range(tid * self.ctas + cta, self.tokens * vectors, self.threads * self.ctas, unroll=1):
            token, v = i // vectors, i % vectors
            got = cute.make_rmem_tensor(cute.make_layout((8, self.top_k)), BFloat16)
            got.fill(0.0)
            weight = cute.make_rmem_tensor(cute.make_layout(self.top_k), Float32)
            for j in cutlass.range_constexpr(self.top_k):
                weight[j] = Float32(0.0)
                if ids[token, j] >= 0:
                    weight[j] = w[token, j].to(Float32)
                    cute.autovec_copy(cute.local_tile(rows[token * self.top_k + j, None], (8,), (v,)), got[None, j])
            total = got[None, 0].load().to(Float32) * weight[0]
            for j in cutlass.range_constexpr(1, self.top_k):
                total += got[None, j].load().to(Float32) * weight[j]
            got[None, 0].store(total.to(BFloat16))
            cute.autovec_copy(got[None, 0], cute.local_tile(part[token, None], (8,), (v,)))


def workspaces(dims, tokens, arch):
    pairs, (h, rows) = tokens * dims["top_k"], (dims["width"], dims["latent"])
    return [("bf16", (pairs, h)), ("bf16", (pairs, rows)), ("i32", (pairs + 2,))]


def design(dims, tokens, arch):
    _, split, rows, warps, slot, stages = plan(dims, tokens)
    return f"mma, {warps} warps, K over {split}, {rows} row tiles, ring of {stages} x {slot // 1024} KiB"


def build(dims, tokens, arch):
    return Experts(dims, tokens)
