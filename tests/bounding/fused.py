"""Variants of moe_shared and dense_mlp, moe_experts, moe_router, oproj_allreduce_residual."""

from bounding.variants import FEWER, HOLLOW, Edit, Variant, guarded, nothing_of

_XOR = """        bits = cute.recast_tensor(acc, Int32)
        words, more = cute.recast_tensor({0}, Int32), cute.recast_tensor({1}, Int32)
        for i in cutlass.range_constexpr(cute.size(words)):
            bits[0] = bits[0] ^ words[i]
        for i in cutlass.range_constexpr(cute.size(more)):
            bits[0] = bits[0] ^ more[i]
"""
_GEMM = """        for k in cutlass.range_constexpr(2):
            cute.gemm(mma, acc, fa[None, None, k], fb[None, None, k], acc)
"""
_NO_MULTIPLY = "the multiplications; the operands are read and their bits are xored"

TWO_STAGES = (
    Variant("no multiply", _NO_MULTIPLY, (Edit(_GEMM, _XOR.format("wreg", "xreg")),)),
    Variant(
        "no activations",
        "the activations' copies to the ring in shared memory",
        (Edit('if cutlass.const_expr(self.x == "ring" and step < self.steps):', "if cutlass.const_expr(False):"),),
        FEWER,
        least=8,
    ),
    Variant(
        "gate and up alone",
        "the second kernel",
        (nothing_of("        self.down(h, w_down, y, stream)\n"),),
        FEWER,
        alone=True,
    ),
    Variant(
        "down alone",
        "the first kernel",
        (nothing_of("        self.gate_up(m, w_gate_up, h, stream)\n"),),
        FEWER,
        alone=True,
    ),
    HOLLOW,
)

_UNITS = "for n in (self.tiles, self.down_units) for i in (0, 1))"
_WAIT = """                    while done < self.tiles:
                        done = cute.arch.load(ready.iterator + segment, Int32, sem="acquire", scope="gpu")
"""
_COMBINE = "self.combine(ids, w, rows, part, cta, tid)"
_MULTIPLY = "            acc = self.multiply(x, {0}, ring, slot * self.slot, {1}, {2})\n"
_DRAIN = """            acc = cute.make_rmem_tensor(cute.make_layout(((2, 2), 1, 1, 2)), Float32)
            acc.fill(0.0)
            bits = cute.recast_tensor(acc, Uint32)
            for i in cutlass.range_constexpr(cute.size(x)):
                bits[0] = bits[0] ^ x[i]
"""
_EXPERT_GEMM = """            for j in cutlass.range_constexpr(self.vector // 2):
                own = acc[None, None, None, j % 2]
                cute.gemm(mma, own, fa[None, None, j], fb[None, None, j], own)
"""
_EXPERT_XOR = """            sink = cute.recast_tensor(acc, Uint32)
            for n in cutlass.range_constexpr(2 * self.vector):
                sink[0] = sink[0] ^ bits[n]
            for n in cutlass.range_constexpr(self.vector):
                sink[0] = sink[0] ^ x[self.vector * s + n]
"""

EXPERTS = (
    Variant(
        "loads alone",
        "decoding and multiplying: the weights arrive in shared memory and their slots are freed at once",
        (
            Edit(_MULTIPLY.format("self.steps", "g, 16", "self.latent, k"), _DRAIN),
            Edit(_MULTIPLY.format("self.down_steps", "row, n", "self.width, q"), _DRAIN),
        ),
    ),
    Variant(
        "no decoding",
        "making bf16 of the codes: they are multiplied as they are",
        (
            Edit(
                "                self.decode(words[None, half], scale[half, s], bits[None, half], wide)\n",
                "                for n in cutlass.range_constexpr(self.vector):\n"
                "                    bits[n, half] = words[n // 4, half]\n",
            ),
        ),
    ),
    Variant("no multiply", "the multiplications; decoded weights are xored", (Edit(_EXPERT_GEMM, _EXPERT_XOR),)),
    Variant("no wait", "the wait of the second stage for the first", (nothing_of(_WAIT),)),
    Variant("no combining", "weighting and summing the experts' rows", (guarded(_COMBINE),), FEWER),
    Variant(
        "gate and up alone",
        "the second stage",
        (Edit(_UNITS, _UNITS.replace("self.down_units", "0")),),
        FEWER,
        alone=True,
    ),
    Variant(
        "no weights",
        "both stages: the list of segments, the meeting of all CTAs and combining are left",
        (Edit(_UNITS, _UNITS.replace("(self.tiles, self.down_units)", "(0, 0)")),),
        FEWER,
        alone=True,
    ),
    HOLLOW,
)

_ROUTER_GEMM = """            for half in cutlass.range_constexpr(2):
                a, b = fa[None, None, half, s % self.depth], fb[None, None, half, s % self.x_depth]
                cute.gemm(mma, acc, a, b, acc)
"""
_ROUTER_XOR = """            bits = cute.recast_tensor(acc, Int32)
            words = cute.recast_tensor(wf[None, None, s % self.depth], Int32)
            more = cute.recast_tensor(xf[None, None, s % self.x_depth], Int32)
            for i in cutlass.range_constexpr(cute.size(words)):
                bits[0] = bits[0] ^ words[i]
            for i in cutlass.range_constexpr(cute.size(more)):
                bits[0] = bits[0] ^ more[i]
"""
_ROUTER_X = """            tile = cute.local_tile(m[token, None], (8,), (k8 + 4 * step,))
            cute.autovec_copy(tile, xf[None, n, step % self.x_depth])
"""

ROUTER = (
    Variant("no multiply", "the multiplications; the operands' bits are xored", (Edit(_ROUTER_GEMM, _ROUTER_XOR),)),
    Variant(
        "no activations",
        "the activations' loads: the weights are multiplied by zeros",
        (Edit(_ROUTER_X, "            xf.fill(0.0)\n"),),
        FEWER,
    ),
    Variant(
        "no choosing",
        "scores, ranks and weights: the logits' parts are written, and that is all",
        (
            Edit(
                "self.choose(smem, bias, ids, w, logits, part, scale, 0, self.tokens, tid, self.threads)\n",
                "pass\n",
            ),
            Edit("        if cutlass.const_expr(not self.last):\n", "        if cutlass.const_expr(False):\n"),
        ),
        FEWER,
    ),
    HOLLOW,
)

_PEERS = """            for r in cutlass.range_constexpr(self.ranks):
                if r != rank:
                    cute.autovec_copy(cute.local_tile(peers[r, token, None], (4,), (c4,)), got[None, r, i])
"""

RESIDUAL = (
    Variant("no multiply", _NO_MULTIPLY, (Edit(_GEMM, _XOR.format("wf", "fb")),)),
    Variant(
        "no activations",
        "the activations' loads: the weights are multiplied by zeros",
        (
            Edit(
                "            cute.autovec_copy(cute.local_tile(row, (8,), (k8,)), xf[None, n])\n",
                "            xf.fill(0.0)\n",
            ),
        ),
        FEWER,
    ),
    Variant(
        "no peers",
        "reading what the other ranks have sent",
        (Edit(_PEERS + "            if cutlass", "            if cutlass"),),
        FEWER,
    ),
    Variant(
        "no blocks ahead",
        "fetching the finished blocks into L2",
        (nothing_of("        self.fetch_blocks(blocks, nb, cta, tid)\n"),),
    ),
    Variant(
        "projection alone",
        "the second kernel, which mixes",
        (nothing_of("        self.mix.run(prefix, blocks, w_norm, w_query, w_out, out, nb, eps, eps_out, stream)\n"),),
        FEWER,
        alone=True,
    ),
    Variant(
        "mix alone",
        "the first kernel",
        (nothing_of("        self.project.run(y, w_o, peers, prefix, blocks, rank, nb, stream)\n"),),
        FEWER,
        alone=True,
    ),
    HOLLOW,
)
