"""mla_decode: flash decoding over the paged latent cache: equal runs of rows for all CTAs, then a merge.

A request's q tokens and heads are the columns of one small matrix product over its cached rows. Rows come in tiles of
ROWS; the tiles of all requests, one after another, are dealt in equal runs to the CTAs. `attend`, by tile of a run:
1. fetch: four warps of their own keep a ring of tiles filled; rows past the end repeat the last one (they may be NaN);
2. scores: rows are the 16-row operand of mma.sync, columns the 8-wide one, the query stays in registers; warps share
   tiles of 16 rows and parts of the 576 elements; their sums meet in shared memory;
3. soften: lanes along the rows of a column, running maximum, softmax weights to shared memory;
4. blend: latents are the 16-row operand (the same rows, transposed by ldmatrix), a warp owns 512 / WARPS of them.
Where a run leaves a request, maximum, sum and mix go to slot CTA + request of the workspace, which no other pair has.
`merge` adds a request's slots in their order: the result is the same every time.
e4m3: rows are exact in f16 and widened between ldmatrix and mma; weights are scaled by 2^15, so that f16 holds them.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float8E4M3FN, Float16, Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync

ROWS, RING, WARPS = 32, 184 * 1024, 8  # of a tile; bytes of tiles at hand; warps that compute
FETCHERS, THREADS = 128, 32 * WARPS + 128  # threads that fetch, behind those that compute; all
COLUMNS, LEAST = 16, 2  # of a CTA: columns at most (other CTAs find the rows in L2); tiles at least
SMS = {"sm_90a": 132, "sm_103a": 148}
STEP, PAD = 16, 16  # rows, latents or k of one MMA; bytes between rows in shared memory, so that banks differ
LANES = min(32, ROWS)  # of a column in the softmax
EACH, TURN = ROWS // LANES, WARPS * (32 // LANES)  # rows of such a lane; columns at a time
PIECE, MERGERS = 128, 16  # latents of a warp in the merge, four a lane; warps of a CTA there
LOG2_E, EMPTY = 1.4426950408889634, -3e38  # EMPTY: log2 of an empty sum, by contract
NONE, LOW = float("-inf"), -1e30  # score of a row that is not seen; what exponents are taken from where none is


def ceil_div(a, b):
    return (a + b - 1) // b


def plan(dims, arch):
    """(columns of a CTA, CTAs that share rows, runs of tiles, warps of the merge that share a request's slots)."""
    wanted = int(dims["q"]) * dims["heads"]
    columns = 8 * ceil_div(ceil_div(wanted, ceil_div(wanted, COLUMNS)), 8)
    groups = ceil_div(wanted, columns)
    runs = max(1, SMS[arch] // groups)
    share = next(s for s in (1, 2, 4, 8, MERGERS) if s == MERGERS or runs <= 4 * s * dims["requests"])
    return columns, groups, runs, share


class Attention:
    def __init__(self, dims, arch):
        self.q, self.heads, self.requests, self.page = int(dims["q"]), dims["heads"], dims["requests"], dims["page"]
        self.row, self.latent, self.narrow = dims["row"], dims["latent"], dims["cache"] == "e4m3"
        self.kind, self.math = (Float8E4M3FN, Float16) if self.narrow else (BFloat16, BFloat16)
        self.bytes = self.row if self.narrow else 2 * self.row  # of a cached row
        self.stages = RING // (ROWS * (self.bytes + PAD))  # tiles of the ring
        self.lanes, self.rounds = FETCHERS // ROWS, 1  # of a row, of which one copies it; rows of a fetching thread
        self.shift = 15 if self.narrow else 0  # of weights, in f16: 2^-29 of the largest is still a normal number
        self.wanted = self.q * self.heads  # columns of a request
        self.columns, self.groups, self.runs, self.share = plan(dims, arch)
        self.row_groups, self.parts = ROWS // STEP, WARPS // (ROWS // STEP)  # parts of the 576 elements
        self.steps, self.tiles_m = self.row // STEP // self.parts, self.latent // STEP // WARPS
        self.tiles_n, self.turns, self.pieces = self.columns // 8, self.columns // TURN, self.latent // PIECE
        self.items = self.requests * self.wanted * self.pieces
        self.merges = ceil_div(self.items, MERGERS // self.share)

    @cute.jit
    def run(
        self, query, cache, table, lengths, lat, lse, sm_scale, out_scale, shard, shards, mix, stats, ends, stream,
        log: cutlass.Constexpr[bool]):  # fmt: skip
        scale, words = sm_scale * LOG2_E, cute.recast_tensor(query, Int32)
        self.attend(words, cache, table, lengths, scale, shard, shards, mix, stats, ends).launch(
            grid=[self.groups, self.runs, 1], block=[THREADS, 1, 1], stream=stream, use_pdl=True,
            min_blocks_per_mp=1)  # fmt: skip
        self.merge(mix, stats, ends, lat, lse, out_scale, log).launch(
            grid=[self.merges, 1, 1], block=[32 * MERGERS, 1, 1], stream=stream, use_pdl=True)  # fmt: skip

    @cute.kernel
    def attend(
        self, query: cute.Tensor, cache: cute.Tensor, table: cute.Tensor, lengths: cute.Tensor, scale: Float32,
        shard: Int32, shards: Int32, mix: cute.Tensor, stats: cute.Tensor, ends_out: cute.Tensor):  # fmt: skip
        cute.arch.griddepcontrol_launch_dependents()
        (tid, _, _), (group, number, _) = cute.arch.thread_idx(), cute.arch.block_idx()
        lane, warp = tid % 32, cute.arch.make_warp_uniform(tid // 32)
        pitch = cutlass.const_expr(self.row * (self.bytes + PAD) // self.bytes)
        ring = self.shared(self.kind, (self.row, ROWS, self.stages), (1, pitch, ROWS * pitch))
        sums = self.shared(Float32, (ROWS, self.columns, self.parts), (1, ROWS + 4, self.columns * (ROWS + 4)))
        weights = self.shared(self.math, (ROWS, self.columns), (1, ROWS + 8))  # 4 words, 8 elements: banks, as PAD
        fades = self.shared(Float32, (self.columns,), (1,))
        ends = self.shared(Int32, (self.requests + 1,), (1,))
        seen = self.shared(Int32, (self.requests,), (1,))
        full, free = (cutlass.memory.SmemAllocator().allocate_array(Int64, self.stages) for _ in range(2))
        if tid < self.stages:
            cute.arch.mbarrier_init(full + tid, ROWS)
            cute.arch.mbarrier_init(free + tid, 32 * WARPS)
            cute.arch.mbarrier_init_fence()
        cute.arch.griddepcontrol_wait()
        self.deal(lengths, shard, shards, ends, seen, tid)
        if group + number == 0 and tid <= self.requests:  # for the merge
            ends_out[tid] = ends[tid]
        per = self.run_length(ends[self.requests])
        first, count = number * per, cutlass.min(per, ends[self.requests] - number * per)
        if warp >= WARPS:
            self.fetch_all(cache, table, ring, full, free, ends, seen, first, count, tid - 32 * WARPS)
        else:
            fragments = cute.make_rmem_tensor((2, self.tiles_n, self.steps), Int32)
            acc = cute.make_rmem_tensor((4, self.tiles_n, self.tiles_m), Float32)
            top, total = (cute.make_rmem_tensor((self.turns,), Float32) for _ in range(2))
            limits = cute.make_rmem_tensor((self.turns,), Int32)
            for i in cutlass.range(count, unroll=1):
                request, stage = self.request_of(ends, first + i, lane), i % self.stages
                row0 = (first + i - ends[request]) * ROWS
                if i == 0 or row0 == 0:  # the run enters a request
                    self.load_query(query, request, group, fragments, warp, lane)
                    for j in cutlass.range_constexpr(self.turns):
                        column = cutlass.min(group * self.columns + self.column(j, warp, lane), self.wanted - 1)
                        limits[j] = self.rows_seen(lengths[request], column // self.heads, shard, shards)
                        top[j], total[j] = NONE, Float32(0.0)
                    acc.fill(0.0)
                cute.arch.mbarrier_wait(full + stage, i // self.stages % 2)
                self.scores(ring[None, None, stage], fragments, sums, warp, lane)
                cute.arch.barrier(barrier_id=1, number_of_threads=32 * WARPS)
                self.soften(sums, weights, fades, top, total, limits, row0, scale, warp, lane)
                cute.arch.barrier(barrier_id=2, number_of_threads=32 * WARPS)
                self.blend(ring[None, None, stage], weights, fades, acc, warp, lane)
                cute.arch.mbarrier_arrive(free + stage)  # every lane: it has read the tile
                if i == count - 1 or first + i + 1 == ends[request + 1]:
                    self.leave(mix, stats, number + request, group, acc, top, total, warp, lane)

    def shared(self, kind, shape, stride):
        layout = cute.make_layout(shape, stride=stride)
        return cutlass.memory.SmemAllocator().allocate_tensor(kind, layout, byte_alignment=128)

    def run_length(self, tiles):
        """Tiles of a CTA."""
        return cutlass.max(ceil_div(tiles, self.runs), LEAST)

    def rows_seen(self, length, token, shard, shards):
        """How many of this shard's rows a request's token sees."""
        return cutlass.max(length - (self.q - 1) + token - shard + shards - 1, 0) // shards

    @cute.jit
    def deal(self, lengths, shard, shards, ends: cute.Tensor, seen: cute.Tensor, tid):
        """Rows of each request, and where its tiles begin among all."""
        if tid < self.requests:
            seen[tid] = self.rows_seen(lengths[tid], self.q - 1, shard, shards)
        cute.arch.sync_threads()
        before = Int32(0)
        for r in cutlass.range_constexpr(self.requests):
            if r < tid:
                before += ceil_div(seen[r], ROWS)
        if tid <= self.requests:
            ends[tid] = before
        cute.arch.sync_threads()

    def request_of(self, ends, tile, lane):
        """The request of a tile: as many as have ended before it. For a whole warp."""
        found = Int32(0)
        for r in range(0, self.requests, 32):
            end = ends[cutlass.min(r + lane + 1, self.requests)]
            found += cute.arch.popc(cute.arch.vote_ballot_sync(end <= tile))
        return found

    @cute.jit
    def fetch_all(
        self, cache, table, ring: cute.Tensor, full: cute.Pointer, free: cute.Pointer, ends: cute.Tensor,
        seen: cute.Tensor, first, count, tid):  # fmt: skip
        """All tiles of a run; rows are located a tile ahead, as the block table is far away."""
        found = cute.make_rmem_tensor((2, self.rounds, self.stages), Int32)
        if count > 0:
            for s in cutlass.range_constexpr(self.stages):
                self.locate(first + cutlass.min(Int32(s), count - 1), table, ends, seen, found[None, None, s], tid)
            for s in cutlass.range_constexpr(self.stages - 1):
                if s < count:
                    self.fetch(cache, ring[None, None, s], full + s, found[None, None, s], tid)
        coming = found[None, None, self.stages - 1]
        for i in cutlass.range(count, unroll=1):
            slot, turn = (i + self.stages - 1) % self.stages, (i + self.stages - 1) // self.stages
            if i + self.stages - 1 < count:
                cute.arch.mbarrier_wait(free + slot, turn % 2 ^ 1)  # of its first turn a slot is free
                self.fetch(cache, ring[None, None, slot], full + slot, coming, tid)
            self.locate(first + cutlass.min(i + self.stages, count - 1), table, ends, seen, coming, tid)

    def locate(self, tile, table, ends, seen, found, tid):
        """(block, row in it) of each of the thread's rows of a tile."""
        request = self.request_of(ends, tile, tid % 32)
        for k in range(self.rounds):
            row = (k * FETCHERS + tid) // self.lanes
            at = cutlass.min((tile - ends[request]) * ROWS + row, seen[request] - 1)
            found[0, k], found[1, k] = table[request, at // self.page], at % self.page

    @cute.jit
    def fetch(self, cache, ring: cute.Tensor, full: cute.Pointer, found: cute.Tensor, tid):
        """Starts the copies of the thread's rows of a tile."""
        row, atom = tid // self.lanes, cute.make_copy_atom(cpasync.CopyBulkG2SOp(), self.kind)
        if tid % self.lanes == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(full, self.bytes)
            pair = cpasync.group_bulk_copy_modes(cache[Int64(found[0, 0]), found[1, 0], None], ring[None, row])
            cute.copy(atom, *pair, mbar_ptr=full)

    def load_query(self, query: cute.Tensor, request, group, fragments: cute.Tensor, warp, lane):
        """The warp's part of the query as B operand; spare columns repeat the last one."""
        start = warp // self.row_groups * self.steps
        for n in range(self.tiles_n):
            column = cutlass.min(group * self.columns + 8 * n + lane // 4, self.wanted - 1)
            row = query[request * self.q + column // self.heads, column % self.heads, None]
            for s in range(self.steps):
                k = (start + s) * (4 if self.narrow else 8) + lane % 4  # words
                pair = self.widen(row[k]) if self.narrow else (row[k], row[k + 4])  # any order of k, as in `scores`
                fragments[0, n, s], fragments[1, n, s] = pair

    def scores(self, rows: cute.Tensor, fragments: cute.Tensor, sums: cute.Tensor, warp, lane):
        """The warp's part of row . query, for 16 rows and all columns, to shared memory."""
        found = cute.make_rmem_tensor((4, self.tiles_n), Float32)
        found.fill(0.0)
        row0, part = warp % self.row_groups * STEP, warp // self.row_groups
        k, row = part * self.steps * STEP, row0 + lane % 16
        for s in range(self.steps):
            if self.narrow:  # four k of a lane are neighbours
                (a, c), (b, d) = (self.widen(word) for word in self.matrices("x2", rows, (k, row), s * STEP))
            else:
                a, b, c, d = self.matrices("x4", rows, (k + lane // 16 * 8, row), s * STEP * 2)
            for n in range(self.tiles_n):
                self.multiply((a, b, c, d), (fragments[0, n, s], fragments[1, n, s]), found[None, n])
        for n in range(self.tiles_n):
            for e in range(4):
                sums[row0 + lane // 4 + e // 2 * 8, 8 * n + lane % 4 * 2 + e % 2, part] = found[e, n]

    def widen(self, word):
        """Four e4m3 as two pairs of f16, exactly."""
        text = "{ .reg .b16 l, h; mov.b32 {l, h}, {$r0}; cvt.rn.f16x2.e4m3x2 {$w0}, l; cvt.rn.f16x2.e4m3x2 {$w1}, h; }"
        return cute.arch.inline_ptx(text, write_only_types=[Int32, Int32], read_only_args=[word])

    def matrices(self, form, there, at, offset):
        """ldmatrix of 2 or 4 matrices of 8 rows of 16 bytes, `offset` bytes past the lane's place `at`."""
        count, here = int(form[1]), there.iterator + cute.crd2idx(at, there.layout)
        text = "ldmatrix.sync.aligned.m8n8." + form + ".shared.b16 { "
        text += ", ".join("{$w" + str(i) + "}" for i in range(count)) + " }, [{$r0} + " + str(offset) + "];"
        return cute.arch.inline_ptx(text, write_only_types=[Int32] * count, read_only_args=[here.toint()])

    def multiply(self, a, b, acc):
        """acc += a b, one 16 x 8 x 16 MMA."""
        form = "f16.f16" if self.narrow else "bf16.bf16"
        text = "mma.sync.aligned.m16n8k16.row.col.f32." + form + ".f32 { {$w0}, {$w1}, {$w2}, {$w3} }, "
        text += "{ {$r0}, {$r1}, {$r2}, {$r3} }, { {$r4}, {$r5} }, { {$r6}, {$r7}, {$r8}, {$r9} };"
        read = [*a, *b, acc[0], acc[1], acc[2], acc[3]]
        acc[0], acc[1], acc[2], acc[3] = cute.arch.inline_ptx(text, write_only_types=[Float32] * 4, read_only_args=read)

    def column(self, j, warp, lane):
        return j * TURN + warp * (32 // LANES) + lane // LANES  # that the lane works on in its turn j of `soften`

    @cute.jit
    def soften(
        self, sums: cute.Tensor, weights: cute.Tensor, fades: cute.Tensor, top: cute.Tensor, total: cute.Tensor,
        limits: cute.Tensor, row0, scale, warp, lane):  # fmt: skip
        """Softmax weights of a tile, and `fades`: what the mix so far shrinks by."""
        x = cute.make_rmem_tensor((EACH,), Float32)
        for j in cutlass.range_constexpr(self.turns):
            column, best = self.column(j, warp, lane), Float32(NONE)
            for k in cutlass.range_constexpr(EACH):
                row = k * LANES + lane % LANES
                parts = sums[row, column, None].load()
                x[k] = scale * parts.reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)
                if row0 + row >= limits[j]:
                    x[k] = NONE
                best = cute.arch.fmax(best, x[k])
            best = cute.arch.fmax(top[j], cute.arch.warp_reduction_max(best, threads_in_group=LANES) - self.shift)
            base = cute.arch.fmax(best, LOW)
            fade = cute.math.exp2(top[j] - base, fastmath=True)
            top[j], total[j] = best, total[j] * fade
            for k in cutlass.range_constexpr(EACH):
                w = cute.math.exp2(x[k] - base, fastmath=True)
                total[j] = total[j] + w  # not rounded: the log-sum-exp would show it
                weights[k * LANES + lane % LANES, column] = w.to(self.math)
            if lane % LANES == 0:
                fades[column] = fade

    def blend(self, rows: cute.Tensor, weights: cute.Tensor, fades: cute.Tensor, acc: cute.Tensor, warp, lane):
        """acc = acc * fades + latents^T weights, for the warp's latents and all columns."""
        for n in range(self.tiles_n):
            fade = [fades[8 * n + lane % 4 * 2 + e] for e in range(2)]
            for m in range(self.tiles_m):
                for e in range(4):
                    acc[e, n, m] = acc[e, n, m] * fade[e % 2]
        at, pitch = (lane // 8 % 2 * 8, lane % 8), 2 * (ROWS + 8)
        for s in range(self.row_groups):
            b = [self.matrices("x2", weights, at, s * STEP * 2 + 8 * n * pitch) for n in range(self.tiles_n)]
            for m in range(0, self.tiles_m, 2):
                a = self.latents(rows, warp * self.tiles_m * STEP, s * STEP * (self.bytes + PAD), m * STEP, lane)
                for k in range(2):
                    for n in range(self.tiles_n):
                        self.multiply(a[k], b[n], acc[None, n, m + k])

    def latents(self, rows, first, offset, m, lane):
        """A operands of two tiles of 16 latents, from first + m on, over 16 rows."""
        if self.narrow:  # ldmatrix moves pairs: latents 2 g and 2 g + 1 become rows g and g + 8
            words = self.matrices("x4.trans", rows, (first + lane // 16 * STEP, lane % 16), offset + m)
            a = [self.widen(cute.arch.prmt(word, 0, 0x3120)) for word in words]
            return (*a[0], *a[1]), (*a[2], *a[3])
        at = (first + lane // 8 % 2 * 8, lane // 16 * 8 + lane % 8)
        return [self.matrices("x4.trans", rows, at, offset + 2 * (m + k * STEP)) for k in range(2)]

    @cute.jit
    def leave(
        self, mix: cute.Tensor, stats: cute.Tensor, slot, group, acc: cute.Tensor, top: cute.Tensor, total: cute.Tensor,
        warp, lane):  # fmt: skip
        """Maximum, sum and mix of the rows since the run has entered the request, to its slot."""
        for j in cutlass.range_constexpr(self.turns):
            column = group * self.columns + self.column(j, warp, lane)
            weight = cute.arch.warp_reduction_sum(total[j], threads_in_group=LANES)
            if lane % LANES == 0 and column < self.wanted:
                stats[slot, column, 0], stats[slot, column, 1] = top[j], weight
        near, far = (lane // 4 * 2, 1) if self.narrow else (lane // 4, 8)  # as `latents` has them
        for n in cutlass.range_constexpr(self.tiles_n):
            for e in cutlass.range_constexpr(2):
                column = group * self.columns + 8 * n + lane % 4 * 2 + e
                if column < self.wanted:
                    for m in cutlass.range_constexpr(self.tiles_m):
                        latent = (warp * self.tiles_m + m) * STEP + near
                        mix[slot, column, latent], mix[slot, column, latent + far] = acc[e, n, m], acc[2 + e, n, m]

    @cute.kernel
    def merge(
        self, mix: cute.Tensor, stats: cute.Tensor, ends: cute.Tensor, lat: cute.Tensor, lse: cute.Tensor,
        out_scale: Float32, log: cutlass.Constexpr[bool]):  # fmt: skip
        """PIECE latents of a column by `share` warps, each with every share-th slot of the request."""
        cute.arch.griddepcontrol_launch_dependents()
        (tid, _, _), (block, _, _) = cute.arch.thread_idx(), cute.arch.block_idx()
        lane, warp = tid % 32, tid // 32
        asked = block * (MERGERS // self.share) + warp // self.share
        item = cutlass.min(asked, self.items - 1)
        piece, column = item % self.pieces, item // self.pieces % self.wanted
        request, at = item // self.pieces // self.wanted, piece * (PIECE // 4) + lane
        sums = self.shared(Float32, (4, 32, MERGERS), (1, 4, 128))
        cute.arch.griddepcontrol_wait()
        start, end, per = ends[request], ends[request + 1], self.run_length(ends[self.requests])
        slot, count = start // per + request, cutlass.min(ceil_div(end, per) - start // per, end - start)
        tops, totals = (cute.make_rmem_tensor((ceil_div(self.runs, 32),), Float32) for _ in range(2))
        for j in cutlass.range_constexpr(ceil_div(self.runs, 32)):  # all at once: a load is far away
            k, tops[j], totals[j] = j * 32 + lane, NONE, 0.0
            if k < count:
                tops[j], totals[j] = stats[slot + k, column, 0], stats[slot + k, column, 1]
        best = tops.load().reduce(cute.ReductionOp.MAX, init_val=NONE, reduction_profile=0)
        base = cute.arch.fmax(cute.arch.warp_reduction_max(best), LOW)
        weight = totals.load() * cute.math.exp2(tops.load() - base, fastmath=True)
        weight = cute.arch.warp_reduction_sum(weight.reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0))
        found, one = (cute.make_rmem_tensor((4,), Float32) for _ in range(2))
        found.fill(0.0)
        for k in cutlass.range(warp % self.share, count, self.share, unroll=8):
            cute.autovec_copy(cute.local_tile(mix[slot + k, column, None], (4,), (at,)), one)
            found.store(found.load() + one.load() * cute.math.exp2(stats[slot + k, column, 0] - base, fastmath=True))
        cute.autovec_copy(found, sums[None, lane, warp])
        cute.arch.sync_threads()
        if warp % self.share == 0 and asked < self.items:
            for w in cutlass.range_constexpr(1, self.share):
                found.store(found.load() + sums[None, lane, warp + w].load())
            out, factor, logarithm = cute.make_rmem_tensor((4,), BFloat16), Float32(0.0), Float32(EMPTY)
            if weight > 0:
                factor, logarithm = out_scale / weight, base + cute.math.log2(weight, fastmath=True)
            out.store((found.load() * factor).to(BFloat16))
            token, head = request * self.q + column // self.heads, column % self.heads
            cute.autovec_copy(out, cute.local_tile(lat[token, head, None], (4,), (at,)))
            if cutlass.const_expr(log):
                if at == 0:
                    lse[token, head] = logarithm

    @cute.jit
    def __call__(
        self, query: cute.Tensor, cache: cute.Tensor, table: cute.Tensor, lengths: cute.Tensor, lat: cute.Tensor,
        sm: Float32, out: Float32, shard: Int32, shards: Int32, mix: cute.Tensor, stats: cute.Tensor, ends: cute.Tensor,
        stream: cuda.CUstream):  # fmt: skip
        self.run(query, cache, table, lengths, lat, stats, sm, out, shard, shards, mix, stats, ends, stream, False)


class Logged(Attention):
    @cute.jit
    def __call__(
        self, query: cute.Tensor, cache: cute.Tensor, table: cute.Tensor, lengths: cute.Tensor, lat: cute.Tensor,
        lse: cute.Tensor, sm: Float32, out: Float32, shard: Int32, shards: Int32, mix: cute.Tensor, stats: cute.Tensor,
        ends: cute.Tensor, stream: cuda.CUstream):  # fmt: skip
        self.run(query, cache, table, lengths, lat, lse, sm, out, shard, shards, mix, stats, ends, stream, True)


def workspaces(dims, tokens, arch):
    """By slot and column: mixes, then maxima and sums; then where the tiles of each request begin."""
    slots, columns = plan(dims, arch)[2] + dims["requests"], int(dims["q"]) * dims["heads"]
    return [("f32", (slots, columns, dims["latent"])), ("f32", (slots, columns, 2)), ("i32", (dims["requests"] + 1,))]


def design(dims, tokens, arch):
    columns, groups, runs, share = plan(dims, arch)
    return f"{runs} runs of {ROWS}-row tiles for {groups} x {columns} columns, merged by {share} warps"


def build(dims, tokens, arch):
    return (Logged if dims["lse"] == "yes" else Attention)(dims, arch)
