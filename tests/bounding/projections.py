"""Variants of the kernels that multiply tokens by one matrix: by wgmma (stream), by mma (skinny), with a maximum."""

from bounding.variants import FEWER, HOLLOW, NEVER, Edit, Variant, guarded, nothing_of

# wgmma reads shared memory, which TMA fills whether or not it is read
_WGMMA = Edit(
    """            warpgroup.fence()
            for k in cutlass.range_constexpr(TILE_K // 16):
                cute.gemm(mma, acc, rx[None, None, k, s], rw[None, None, k, s], acc)
            warpgroup.commit_group()
            warpgroup.wait_group(1)
""",
    "",
)
_WGMMA_END = nothing_of("        warpgroup.wait_group(0)\n")
_EXPECT = Edit("(bar, (self.rows + self.few) * TILE_K * 2)", "(bar, self.rows * TILE_K * 2)")
_NO_MMA = "the multiplications; both operands still arrive in shared memory"
_NO_X = "the activations' copies to shared memory: weights alone arrive, and are multiplied by what lies there"

STREAM = (
    Variant("no multiply", _NO_MMA, (_WGMMA, _WGMMA_END)),
    Variant(
        "no activations",
        _NO_X,
        (
            _EXPECT,
            Edit(
                "                self.fetch_x(atom_x, x, sx_to[None, None, s], first + s, full + s, part, group)\n",
                "                pass\n",
            ),
            nothing_of(
                "                self.fetch_x(atom_x, x, sx_to[None, None, s], first + i, full + s, part, group)\n"
            ),
        ),
        FEWER,
    ),
    Variant(
        "no sum over K",
        "adding the parts of K and writing the outputs",
        (guarded("self.add(sums, out, part, group, tid)"),),
    ),
    HOLLOW,
)

HEAD_STREAM = (
    Variant("no multiply", _NO_MMA, (_WGMMA, _WGMMA_END)),
    Variant(
        "no activations",
        _NO_X,
        (
            _EXPECT,
            Edit(
                "                self.fetch_x(atom_x, x, sx_to[None, None, s], s, full + s, cta)\n",
                "                pass\n",
            ),
            nothing_of("                self.fetch_x(atom_x, x, sx_to[None, None, s], i, full + s, cta)\n"),
        ),
        FEWER,
    ),
    Variant(
        "no maximum",
        "the logits' way out and both steps of the maximum",
        (
            Edit(
                "self.choose(sums, val, ids, logits, base, part, count, cta, tid, ticket)\n\n"
                "    @cute.jit\n    def clear",
                f"if {NEVER}:\n"
                "            self.choose(sums, val, ids, logits, base, part, count, cta, tid, ticket)\n\n"
                "    @cute.jit\n    def clear",
            ),
        ),
    ),
    HOLLOW,
)

SKINNY = (
    Variant(
        "no multiply",
        "the multiplications; the operands' bits are xored instead",
        (
            Edit(
                """            for i in cutlass.range_constexpr(2 * self.unroll):
                cute.gemm(mma, rc, ra[it % 2][None, None, i], rb[None, None, i], rc)
""",
                """            bits = cute.recast_tensor(rc, Int32)
            words, more = cute.recast_tensor(rw[it % 2], Int32), cute.recast_tensor(rx, Int32)
            for i in cutlass.range_constexpr(cute.size(words)):
                bits[0] = bits[0] ^ words[i]
            for i in cutlass.range_constexpr(cute.size(more)):
                bits[0] = bits[0] ^ more[i]
""",
            ),
        ),
    ),
    Variant(
        "no activations",
        "the activations' loads: the weights are multiplied by zeros",
        (
            Edit(
                "cute.autovec_copy(cute.local_tile(x[rows[m], None], (8,), (at,)), rx[None, m, u])\n",
                "rx.fill(0.0)\n",
            ),
        ),
        FEWER,
    ),
    Variant(
        "no sum over K",
        "adding the warps' parts of K and writing the outputs",
        (Edit("if token < self.tokens:", f"if {NEVER}:"),),
    ),
    HOLLOW,
)

HEAD_QUEUE = (
    Variant(
        "no multiply",
        "the multiplications; both operands are read from shared memory and their bits are xored",
        (
            Edit(
                """            for k in cutlass.range_constexpr(2):
                cute.gemm(mma, acc, fa[None, None, k], fb[None, None, k], acc)
""",
                """            bits = cute.recast_tensor(acc, Int32)
            words, more = cute.recast_tensor(rw, Int32), cute.recast_tensor(rx, Int32)
            for i in cutlass.range_constexpr(cute.size(words)):
                bits[0] = bits[0] ^ words[i]
            for i in cutlass.range_constexpr(cute.size(more)):
                bits[0] = bits[0] ^ more[i]
""",
            ),
        ),
    ),
    Variant(
        "no activations",
        _NO_X,
        (
            nothing_of("                self.load_x(h, rows[None, None, None, later % DEPTH], later, lane, wk, wr)\n"),
            Edit(
                "                self.load_x(h, rows[None, None, None, s], s, lane, wk, wr)\n", "                pass\n"
            ),
        ),
        FEWER,
    ),
    Variant(
        "no maximum",
        "the logits' way out and both steps of the maximum",
        (
            guarded("self.best_of_block(sums, logits, part, cta, tid)"),
            guarded("self.best_of_all(part, val, ids, base, tid)", 12),
        ),
    ),
    HOLLOW,
)
