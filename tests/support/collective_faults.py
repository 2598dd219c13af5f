"""Small edits of the candidates that exchange more than sums, each a mistake that such an exchange invites."""

from collections.abc import Mapping

from support.ranked_faults import CANDIDATES, FENCE, GET, PUT, REST, Mistake

HEAD = (CANDIDATES / "lm_head_one_shot.py").read_text()
PUT_PAIR = '"st.relaxed.sys.global.v2.b32'
GET_PAIR = '"ld.relaxed.sys.global.v2.b32'
ARM_PAIR = "self.put(here, Int32(SENTINEL), Int32(SENTINEL))"
HERE = "here = self.slot(peers[rank], parity, lane, token)"
SEND_PAIR = """        if lane < self.ranks and lane != rank:
            self.put(self.slot(peers[lane]"""
TAKE_PAIR = """        if lane < self.ranks and lane != rank:
            here"""
COUNTED = "            state[CALL] = state[CALL] + 1\n"
LATER = ("differs from rank 0", "is not a maximum", "too far")


def _head(old: str, new: str, *found: str, family: str = "normal", ranks: int = 2) -> Mistake:
    return Mistake(((old, new),), found, family, ranks, HEAD)


MISTAKES_HEAD: Mapping[str, Mistake] = {
    "missing fence": _head(FENCE, "", "unordered"),
    "fence of one device": _head(FENCE, FENCE.replace("sys", "gpu"), "unordered"),
    "early arming: the parity of the next call": _head(
        ARM_PAIR, ARM_PAIR.replace("here", "self.slot(peers[rank], 1 - parity, lane, token)"), "unread", "unordered"
    ),
    "no arming": _head(ARM_PAIR, "pass", "overwritten"),
    "one parity for all calls": _head(
        "call & (PARITIES - 1)", "Int32(0)", "overwritten", "unread", "unordered", "deadlock"
    ),
    "reads the other parity": _head(HERE, HERE.replace("parity", "1 - parity"), "deadlock"),
    "looks once": _head("waiting = first == SENTINEL or second == SENTINEL", "waiting = Boolean(False)", *LATER),
    "a rank that nobody sends to": _head(SEND_PAIR, SEND_PAIR.replace("self.ranks", "self.ranks - 1"), "deadlock"),
    "a rank left out of the choice": _head(
        TAKE_PAIR, TAKE_PAIR.replace("self.ranks", "self.ranks - 1"), "differs from rank 0"
    ),
    "ids that count from the shard": _head("rank * self.vocab + tile", "tile", "is not a maximum"),
    "of equals the highest": _head("other_at < at", "other_at > at", "ties with a lower id", family="twins"),
    "NaN below all": _head("key = Int32(TOP)\n", "key = Int32(-TOP)\n", "too far", family="nan_logit"),
    "zeros sent as -0": _head(
        "if bits == SENTINEL:\n            key = Int32(0)",
        "if bits == 0:\n            key = Int32(-1)",
        "sentinel-sent",
        family="sentinel",
    ),
    "stores that reach one device": _head(PUT_PAIR, PUT_PAIR.replace("sys", "gpu"), "race"),
    "weak stores": _head(PUT_PAIR, PUT_PAIR.replace(".relaxed.sys", ""), "race"),
    "loads that reach one device": _head(GET_PAIR, GET_PAIR.replace("sys", "gpu"), "race"),
    "a call that is not counted": _head(COUNTED, "", "deadlock", "overwritten", "unread", "unordered"),
    "CTAs that are counted with no order": _head('sem="acq_rel"', 'sem="relaxed"', "race"),
}

MERGE = (CANDIDATES / "dcp_merge_one_shot.py").read_text()
ARM_ROW = "self.rows.put(here, empty)"
ARM_LSE = "self.lses.put_word(here, Int32(SENTINEL))"
ALL_READ = """        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
"""
TO_OWNERS = "            if peer != rank:\n"
LSE_HERE = "self.lses.slot(lses, parity, Int32(source), place)"
PUT_WORD = '"st.relaxed.sys.global.b32'
GET_WORD = '"ld.relaxed.sys.global.b32'


def _merge(old: str, new: str, *found: str, family: str = "normal", ranks: int = 2) -> Mistake:
    return Mistake(((old, new),), found, family, ranks, MERGE)


MISTAKES_MERGE: Mapping[str, Mistake] = {
    "missing fence": _merge(FENCE, "", "unordered"),
    "fence of one device": _merge(FENCE, FENCE.replace("sys", "gpu"), "unordered"),
    "early arming: the parity of the next call": _merge(
        ARM_ROW,
        ARM_ROW.replace("here", "self.rows.slot(rows, 1 - parity, Int32(source), place * self.eights + piece)"),
        "unread",
        "overwritten",
        "unordered",
    ),
    "rows that are not armed again": _merge(ARM_ROW, "pass", "overwritten"),
    "lses that are not armed again": _merge(ARM_LSE, "pass", "overwritten"),
    "lses armed before all threads have read them": _merge(
        ALL_READ, ALL_READ.split("\n")[0] + "\n", "deadlock", "race"
    ),
    "one parity for all calls": _merge(
        "call & (PARITIES - 1)", "Int32(0)", "overwritten", "unread", "unordered", "deadlock"
    ),
    "reads the other parity's lses": _merge(LSE_HERE, LSE_HERE.replace("parity", "1 - parity"), "deadlock"),
    "looks once": _merge("waiting = lost != 0", "waiting = Boolean(False)", "not finite"),
    "lses that nobody sends": _merge("self.lses.put_word(to, self.lse_bits(", "Int32(self.lse_bits(", "deadlock"),
    "takes the lse before the rows are there": _merge(
        "if came[w, source] == SENTINEL:", "if came[w, source] == 1:", "not-arrived", "relL2"
    ),
    "an owner that nobody sends to": _merge(
        TO_OWNERS, TO_OWNERS.replace("rank:", "rank and peer < self.ranks - 1:"), "deadlock"
    ),
    "a rank left out of the mean": _merge(
        "range_constexpr(1, self.ranks):\n            weight",
        "range_constexpr(1, self.ranks - 1):\n            weight",
        "relL2",
    ),
    "an lse of another rank's place": _merge(
        "weight = cute.math.exp2(lse[source] - top",
        "weight = cute.math.exp2(lse[self.ranks - 1 - source] - top",
        "relL2",
        family="spread",
    ),
    "rows of another owner's head": _merge(
        "self.row(lat, words, token, peer * self.heads + head", "self.row(lat, words, token, head", "relL2"
    ),
    "weights without the maximum": _merge(
        "top = cutlass.max(top, lse[source])", "top = Float32(0.0)", "not finite", family="spread"
    ),
    "the sentinel sent as rows": _merge(
        "words[w] = self.rows.plus_zero(words[w])", "pass", "sentinel-sent", family="sentinel"
    ),
    "the sentinel sent as an lse": _merge(
        "        if bits == SENTINEL:\n            bits = Int32(0)\n", "", "sentinel-sent", family="sentinel"
    ),
    "rows by stores that reach one device": _merge(PUT, PUT.replace("sys", "gpu"), "race"),
    "lses by weak stores": _merge(PUT_WORD, PUT_WORD.replace(".relaxed.sys", ""), "race"),
    "loads that reach one device": _merge(GET_WORD, GET_WORD.replace("sys", "gpu"), "race"),
    "a call that is not counted": _merge(
        "state[OWN + cta] = call + 1", "state[OWN + cta] = call", "deadlock", "overwritten", "unread", "unordered"
    ),
}

TAIL = (CANDIDATES / "moe_tail_one_shot.py").read_text()
ARM_PIECE = "self.put(self.slot(base, parity, Int32(source), piece), empty)"
LOOK_PIECE = "self.get(self.slot(base, parity, Int32(source), piece), came[None, source])"
SENDS_PIECE = """        for peer in cutlass.range_constexpr(self.ranks):
            if peer != rank:
"""
SENDS_SHARE = """                for peer in cutlass.range_constexpr(self.ranks):
                    if peer != rank:
"""
NORMED = 'Int32(1), sem="release", scope="gpu")'
HEARD_NORM = 'waiting = cute.arch.load(at, Int32, sem="acquire", scope="gpu") != target'


def _tail(old: str, new: str, *found: str, family: str = "normal", ranks: int = 2) -> Mistake:
    return Mistake(((old, new),), found, family, ranks, TAIL)


MISTAKES_TAIL: Mapping[str, Mistake] = {
    "missing fence": _tail(FENCE, "", "unordered"),
    "fence of one device": _tail(FENCE, FENCE.replace("sys", "gpu"), "unordered"),
    "early arming: the parity of the next call": _tail(
        ARM_PIECE, ARM_PIECE.replace("parity", "1 - parity"), "unread", "overwritten", "unordered"
    ),
    "no arming": _tail(ARM_PIECE, "pass", "overwritten"),
    "one parity for all calls": _tail(
        "call & (PARITIES - 1)", "Int32(0)", "overwritten", "unread", "unordered", "deadlock"
    ),
    "reads the other parity": _tail(LOOK_PIECE, LOOK_PIECE.replace("parity", "1 - parity"), "deadlock"),
    "looks once": _tail("waiting = missed != 0", "waiting = Boolean(False)", "relL2", "differs from rank 0"),
    "a peer that no latents go to": _tail(
        SENDS_PIECE, SENDS_PIECE.replace("rank:", "rank and peer < self.ranks - 1:"), "deadlock"
    ),
    "an owner that no shared partials go to": _tail(
        SENDS_SHARE, SENDS_SHARE.replace("rank:", "rank and peer < self.ranks - 1:"), "deadlock"
    ),
    "shared partials of this rank's columns": _tail(
        "self.of(shared, token, peer, c8)", "self.of(shared, token, rank, c8)", "relL2"
    ),
    "columns gathered into another rank's place": _tail(
        "self.of(delta, token, source, c8)", "self.of(delta, token, rank, c8)", "differs from rank 0", "relL2"
    ),
    "a rank left out of the sums": _tail(REST, "range_constexpr(1, self.ranks - 1)", "relL2", "differs from rank 0"),
    "another order of the sums": Mistake(
        (("words[None, 0]", "words[None, self.ranks - 1]"), (REST, "range_constexpr(self.ranks - 1)")),
        ("in rank order",),
        "zero_latents",
        4,
        TAIL,
    ),
    "rows that are taken before they are normed": _tail(HEARD_NORM, "waiting = Boolean(False)", "race"),
    "rows that are said to be normed with no order": _tail(NORMED, NORMED.replace("release", "relaxed"), "race"),
    "a wait for the rows that orders nothing": _tail(HEARD_NORM, HEARD_NORM.replace("acquire", "relaxed"), "race"),
    "the sentinel sent as data": _tail(
        "words[w] = low | high", "words[w] = words[w]", "sentinel-sent", family="sentinel"
    ),
    "stores that reach one device": _tail(PUT, PUT.replace("sys", "gpu"), "race"),
    "weak stores": _tail(PUT, PUT.replace(".relaxed.sys", ""), "race"),
    "loads that reach one device": _tail(GET, GET.replace("sys", "gpu"), "race"),
    "a call that is not counted": _tail(
        "state[OWN + cta] = call + 1", "state[OWN + cta] = call", "deadlock", "overwritten", "unread", "unordered"
    ),
}

FRONT = (CANDIDATES / "moe_front_one_shot.py").read_text()
ARM_LATENTS = "self.lats.put(self.lats.slot(base, parity, Int32(source), piece), empty)"
ARM_LOGIT = "self.logits.put_word(self.here(home, parity, token, i * LANES + lane), Int32(SENTINEL))"
SENDS_LATENTS = """            for peer in cutlass.range_constexpr(self.ranks):
                if peer != rank:
"""
SENDS_LOGITS = "for to in cutlass.range_constexpr(self.ranks):\n"
LOGIT_HERE = "self.logits.get_word(self.here(home, parity, token"


def _front(old: str, new: str, *found: str, family: str = "normal", ranks: int = 2) -> Mistake:
    return Mistake(((old, new),), found, family, ranks, FRONT)


MISTAKES_FRONT: Mapping[str, Mistake] = {
    "missing fence": _front(FENCE, "", "unordered"),
    "fence of one device": _front(FENCE, FENCE.replace("sys", "gpu"), "unordered"),
    "early arming: the parity of the next call": _front(
        ARM_LOGIT, ARM_LOGIT.replace("parity", "1 - parity"), "unread", "overwritten", "unordered"
    ),
    "latents that are not armed again": _front(ARM_LATENTS, "pass", "overwritten"),
    "logits that are not armed again": _front(ARM_LOGIT, "pass", "overwritten"),
    "one parity for all calls": _front(
        "call & (PARITIES - 1)", "Int32(0)", "overwritten", "unread", "unordered", "deadlock"
    ),
    "reads the other parity's logits": _front(LOGIT_HERE, LOGIT_HERE.replace("parity", "1 - parity"), "deadlock"),
    "takes logits that are not there": _front("if bits[i] == SENTINEL:", "if bits[i] == 1:", "not-arrived"),
    "a peer that no latents go to": _front(
        SENDS_LATENTS, SENDS_LATENTS.replace("rank:", "rank and peer < self.ranks - 1:"), "deadlock"
    ),
    "a rank that no logits go to": _front(SENDS_LOGITS, SENDS_LOGITS.replace("ranks)", "ranks - 1)"), "deadlock"),
    "latents gathered into another rank's place": _front(
        "self.of(lat, token, source, c8)", "self.of(lat, token, rank, c8)", "differs from rank 0"
    ),
    "a shard of experts left out": _front(
        "if i * LANES + lane >= self.experts:",
        "if i * LANES + lane >= self.experts - self.own:",
        "left out",
        "ids",
    ),
    "experts numbered from the shard": _front("mine, weight = at, score", "mine, weight = at % self.own, score", "ids"),
    "of equals the higher id": _front("other_at < at", "other_at > at", "tie", "ids", family="exact_ties"),
    "NaN above all": _front("key = Int32(LEAST)", "key = Int32(TOP)", "ids", "w", family="not_finite"),
    "zero latents sent as the pair (+0, -0)": _front(
        "words[w] = low | high", "words[w] = low | high | Int32(SENTINEL)", "sentinel-sent", family="sentinel"
    ),
    "zero logits sent as -0": _front(
        "if word == SENTINEL:\n                    word = Int32(0)",
        "if word == 0:\n                    word = Int32(SENTINEL)",
        "sentinel-sent",
        family="zero_rows",
    ),
    "latents by stores that reach one device": _front(PUT, PUT.replace("sys", "gpu"), "race"),
    "logits by weak stores": _front(PUT_WORD, PUT_WORD.replace(".relaxed.sys", ""), "race"),
    "loads that reach one device": _front(GET_WORD, GET_WORD.replace("sys", "gpu"), "race"),
    "a call that is not counted": _front(
        "state[OWN + cta] = call + 1", "state[OWN + cta] = call", "deadlock", "overwritten", "unread", "unordered"
    ),
}
