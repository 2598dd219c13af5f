"""Small edits of the candidates that exchange more than sums, each a mistake that such an exchange invites."""

from collections.abc import Mapping

from support.ranked_faults import CANDIDATES, FENCE, Mistake

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
