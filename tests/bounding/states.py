"""Variants of kda_core, and of mla_q: kernels whose inputs wait in registers."""

from bounding.variants import FEWER, HOLLOW, SAME, Edit, Variant, nothing_of

_PREPARE = """            self.decays(wf, fa, bias, shared, slope, low, rank, tid)
            self.convolve(conv, slot, start, raw, wc, shared, v, rank, first, tid)
"""
_ADVANCE = """                strength = sigmoid(p[request * self.q + t, 4 * self.width + HEAD + head].to(Float32))
                self.advance(state, shared, v, o, sums, t, strength, scale, eps_qk, rank, tid)
"""
_WRITE = "                self.move_state(s, slots[request * self.q + t], head, rank, state, tid, True)\n"
_NORM = """            for i in cutlass.range_constexpr(self.outputs):
                at = i * self.threads + tid
                if at < self.q * self.own:
                    t, c = at // self.own, at % self.own
"""
# what the state holds becomes a word, which is stored where it is one of 2^32 values
_SINK = """                words, word = cute.recast_tensor(state, Int32), Int32(0)
                for i in cutlass.range_constexpr(cute.size(words)):
                    word = word ^ words[i]
                if word == 0x5EED1234:
                    y[request * self.q + t, first] = BFloat16(0.0)
"""
_WEIGHTS = """            spare = Int32(0)
            words, more = cute.recast_tensor(wf, Int32), cute.recast_tensor(fa, Int32)
            for i in cutlass.range_constexpr(cute.size(words)):
                spare = spare ^ words[i]
            for i in cutlass.range_constexpr(cute.size(more)):
                spare = spare ^ more[i]
            words = cute.recast_tensor(wc, Int32)
            for i in cutlass.range_constexpr(cute.size(words)):
                spare = spare ^ words[i]
            if spare == 0x5EED1234:
                y[request * self.q, first] = BFloat16(0.0)
"""
_NO_NORM = Edit(_NORM, _NORM.replace("at < self.q * self.own", "cute.arch.block_idx()[0] == 1073741824"))
# a state that is written as it was read is not written at all
_TURN = Edit(_ADVANCE, "                state.store(-state.load())\n")
_MEET = Edit("            self.meet()\n", "", 2)

KDA_CORE = (
    Variant(
        "no prepare",
        "decay and convolution; the loads for them stay, but for the window's",
        (Edit(_PREPARE, _WEIGHTS),),
    ),
    Variant("no advance", "the delta rule: the state is written as it was read, with its sign turned", (_TURN,)),
    Variant("no norm", "the norm, the gate and the outputs", (_NO_NORM,)),
    Variant("no state written", "the way back of the state", (Edit(_WRITE, _SINK),)),
    Variant(
        "state in and out",
        "all but reading the state and writing it",
        (nothing_of(_PREPARE), _TURN, _NO_NORM, _MEET),
        FEWER,
        alone=True,
    ),
    Variant(
        "state in",
        "all but reading the state",
        (nothing_of(_PREPARE), nothing_of(_ADVANCE), Edit(_WRITE, _SINK), _NO_NORM, _MEET),
        FEWER,
        alone=True,
    ),
    HOLLOW,
)

_QB = """            for s in cutlass.range_constexpr(self.steps):
                for k in cutlass.range_constexpr(2):
                    cute.gemm(mma, acc, fa[None, None, k, s], fb[None, None, k, s], acc)
"""
_QB_XOR = """            bits, words = cute.recast_tensor(acc, Int32), cute.recast_tensor(wb, Int32)
            for i in cutlass.range_constexpr(cute.size(words)):
                bits[0] = bits[0] ^ words[i]
            words = cute.recast_tensor(rx, Int32)
            for i in cutlass.range_constexpr(cute.size(words)):
                bits[0] = bits[0] ^ words[i]
"""
_UK = """            for s in cutlass.range_constexpr(self.own_steps):
                cute.gemm(mma, acc, fa[None, None, s], fb[None, None, s], acc)
"""
_UK_XOR = """            bits, words = cute.recast_tensor(acc, Int32), cute.recast_tensor(fa, Int32)
            for i in cutlass.range_constexpr(cute.size(words)):
                bits[0] = bits[0] ^ words[i]
            words = cute.recast_tensor(rq, Int32)
            for i in cutlass.range_constexpr(cute.size(words)):
                bits[0] = bits[0] ^ words[i]
"""

MLA_Q = (
    Variant(
        "no multiply",
        "the multiplications of both stages; the operands' bits are xored",
        (Edit(_QB, _QB_XOR), Edit(_UK, _UK_XOR)),
        SAME,
    ),
    Variant(
        "no norm",
        "the norm and the loads of its input",
        (nothing_of("        self.norm(p, wn, x, rank, eps, tid)\n"),),
        FEWER,
    ),
    Variant(
        "no sums of warps",
        "adding the warps' sums of q_b",
        (nothing_of("        self.add_warps(sums, mine, tid)\n"),),
    ),
    Variant(
        "no exchange",
        "handing Q round the cluster",
        (nothing_of("        self.gather(mine, q, query, rank, head, scale, tid)\n"),),
    ),
    Variant(
        "no outputs",
        "adding the warps' sums of W_UK and writing the latent part of the outputs",
        (
            Edit(
                "        self.store(sums, query, rank, head, scale, tid)\n",
                "        if cute.arch.block_idx()[0] == 1073741824:\n"
                "            self.store(sums, query, rank, head, scale, tid)\n",
            ),
        ),
    ),
    HOLLOW,
)
