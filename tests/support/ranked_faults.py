"""Small edits of the ranked candidates, each a mistake that an exchange between ranks invites."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CANDIDATES = Path(__file__).parent.parent / "candidates"
SOURCE = (CANDIDATES / "sum_over_ranks.py").read_text()
FENCE = "        cute.arch.fence_acq_rel_sys()\n"
SEND_TO = "        for peer in cutlass.range_constexpr(self.ranks):\n"
STORE = 'cute.arch.store(to.llvm_ptr, mine[w], sem="relaxed", scope="sys")'
ARM = """                    here = self.place(peers[rank], parity, Int32(source), token, first + w)
                    cute.arch.store(here"""
READ = """                    here = self.place(peers[rank], parity, Int32(source), token, first + w)
                    word ="""
PARITY = "parity = call % PARITIES"
SUM = "range_constexpr(1, self.ranks)"


@dataclass(frozen=True)
class Mistake:
    """`found`: words that a complaint about it holds; `family`: the inputs that show it, among `ranks`."""

    edits: tuple[tuple[str, str], ...]
    found: tuple[str, ...]
    family: str = "normal"
    ranks: int = 2
    base: str = SOURCE

    @property
    def source(self) -> str:
        text = self.base
        for old, new in self.edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return text


MISTAKES: Mapping[str, Mistake] = {
    "missing fence": Mistake(((FENCE, ""),), ("unordered",)),
    "fence of one device": Mistake(((FENCE, FENCE.replace("sys", "gpu")),), ("unordered",)),
    "early arming: the parity of the next call": Mistake(
        ((ARM, ARM.replace("parity,", "1 - parity,")),), ("unread", "overwritten", "unordered")
    ),
    "no arming": Mistake(((ARM, ARM.replace("Int32(source)", "rank")),), ("overwritten",)),
    "one parity for all calls": Mistake(
        ((PARITY, "parity = call % 1"),), ("overwritten", "unread", "unordered", "deadlock")
    ),
    "reads the other parity": Mistake(
        ((READ, READ.replace("parity,", "1 - parity,")),),
        ("deadlock",),
    ),
    "reads before the data are there": Mistake(
        (("while word == SENTINEL:", "if word == SENTINEL:"),), ("not-arrived",)
    ),
    "a rank left out of the sum": Mistake(((SUM, "range_constexpr(1, self.ranks - 1)"),), ("is not the sum",)),
    "a rank that nobody sends to": Mistake(
        ((SEND_TO, SEND_TO.replace("self.ranks", "self.ranks - 1")),), ("deadlock",)
    ),
    "another order of the sum": Mistake(
        (("came[0], BFloat16", "came[self.ranks - 1], BFloat16"), (SUM, "range_constexpr(self.ranks - 1)")),
        ("is not the sum",),
        "rank_order",
        4,
    ),
    "the sentinel sent as data": Mistake(
        (("mine[w] = self.plus_zero(own[token, first + w])", "mine[w] = own[token, first + w]"),),
        ("sentinel-sent",),
        "sentinel",
    ),
    "stores that reach one device": Mistake(((STORE, STORE.replace("sys", "gpu")),), ("race",)),
    "weak stores": Mistake(((STORE, "cute.arch.store(to.llvm_ptr, mine[w])"),), ("race",)),
}

ONE_SHOT = (CANDIDATES / "allreduce_one_shot.py").read_text()
PUT = '"st.relaxed.sys.global.v4.b32'
GET = '"ld.relaxed.sys.global.v4.b32'
REARM = "self.put(self.slot(home, parity, Int32(source), piece), mine)"
LOOK = "self.get(self.slot(base, parity, Int32(source), piece), came[None, source])"
TO_PEERS = "            elif lost == 0:\n"
PLUS_ZERO = "            mine[w] = self.plus_zero(mine[w])\n"
REST = "range_constexpr(1, self.ranks)"


def _one_shot(old: str, new: str, *found: str, family: str = "normal", ranks: int = 2) -> Mistake:
    return Mistake(((old, new),), found, family, ranks, ONE_SHOT)


MISTAKES_ONE_SHOT: Mapping[str, Mistake] = {
    "missing fence": _one_shot(FENCE, "", "unordered"),
    "fence of one device": _one_shot(FENCE, FENCE.replace("sys", "gpu"), "unordered"),
    "early arming: the parity of the next call": _one_shot(
        REARM, REARM.replace("parity,", "1 - parity,"), "unread", "overwritten", "unordered"
    ),
    "no arming": _one_shot(REARM, REARM.replace("Int32(source)", "rank"), "overwritten"),
    "one parity for all calls": _one_shot(
        "parity = call & (PARITIES - 1)", "parity = Int32(0)", "overwritten", "unread", "unordered", "deadlock"
    ),
    "reads the other parity": _one_shot(LOOK, LOOK.replace("parity,", "1 - parity,"), "deadlock"),
    "looks once": _one_shot("waiting = lost != 0", "waiting = Boolean(False)", "is not the sum"),
    "a rank left out of the sum": _one_shot(REST, "range_constexpr(1, self.ranks - 1)", "is not the sum"),
    "a rank that nobody sends to": _one_shot(
        TO_PEERS, "            elif lost == 0 and peer < self.ranks - 1:\n", "deadlock"
    ),
    "another order of the sum": Mistake(
        (("words[None, 0]", "words[None, self.ranks - 1]"), (REST, "range_constexpr(self.ranks - 1)")),
        ("is not the sum",),
        "rank_order",
        4,
        ONE_SHOT,
    ),
    "the sentinel sent as data": _one_shot(PLUS_ZERO, "            pass\n", "sentinel-sent", family="sentinel"),
    "stores that reach one device": _one_shot(PUT, PUT.replace("sys", "gpu"), "race"),
    "weak stores": _one_shot(PUT, PUT.replace(".relaxed.sys", ""), "race"),
    "loads that reach one device": _one_shot(GET, GET.replace("sys", "gpu"), "race"),
    "a call that is not counted": _one_shot(
        "state[OWN + cta] = call + 1", "state[OWN + cta] = call", "deadlock", "overwritten", "unread", "unordered"
    ),
}

FUSED = (CANDIDATES / "oproj_one_shot.py").read_text()
SENDS = "            if peer != rank:\n"
ARMED = "self.put(self.slot(base, parity, Int32(source), piece), empty)"
SAID = 'cute.arch.atomic_add(at, Int32(1), sem="release", scope="gpu")'
HEARD = 'waiting = cute.arch.load(at, Int32, sem="acquire", scope="gpu") != target'


def _fused(old: str, new: str, *found: str, family: str = "normal", ranks: int = 2) -> Mistake:
    return Mistake(((old, new),), found, family, ranks, FUSED)


MISTAKES_FUSED: Mapping[str, Mistake] = {
    "missing fence": _fused("            cute.arch.fence_acq_rel_sys()\n", "", "unordered"),
    "no arming": _fused(ARMED, ARMED.replace("Int32(source)", "rank"), "overwritten"),
    "one parity for all calls": _fused(
        "piece, parity = token * (self.hidden // 8) + c8, call & (PARITIES - 1)",
        "piece, parity = token * (self.hidden // 8) + c8, Int32(0)",
        "deadlock",
    ),
    "a rank that nobody sends to": _fused(
        SENDS, "            if peer != rank and peer < self.ranks - 1:\n", "deadlock"
    ),
    "the peers' sum without this rank": _fused("came[w, r] = mine[w]", "came[w, r] = Int32(0)", "differs from rank 0"),
    "a mix that does not wait for the row": _fused(HEARD, "waiting = Boolean(False)", "race"),
    "a row that is said to be there with no order": _fused(SAID, SAID.replace("release", "relaxed"), "race"),
    "a wait for the row that orders nothing": _fused(HEARD, HEARD.replace("acquire", "relaxed"), "race"),
    "blocks that are not mixed": _fused(
        "            if s < nb:\n                cute.autovec_copy(held",
        "            if s < nb - 1:\n                cute.autovec_copy(held",
        "relL2",
        family="all_blocks",
    ),
    "stores that reach one device": _fused(PUT, PUT.replace("sys", "gpu"), "race"),
}

TWO_SHOT = (CANDIDATES / "allreduce_two_shot.py").read_text()
ARM_PARTS = "self.arm(home, 2 * parity, rank, mine)"
ARM_SUMS = "self.arm(home, 2 * parity + 1, rank, mine)"
SEND_SUMS = "            self.send(summed, homes, 2 * parity + 1, rank, mine, False)\n"
SEND_PARTS = "            self.send(came, homes, 2 * parity, rank, mine, True)\n"


def _two_shot(old: str, new: str, *found: str, family: str = "normal", ranks: int = 2) -> Mistake:
    return Mistake(((old, new),), found, family, ranks, TWO_SHOT)


MISTAKES_TWO_SHOT: Mapping[str, Mistake] = {
    "missing fence": _two_shot(FENCE, "", "unordered"),
    "parts that are not armed again": _two_shot(ARM_PARTS, "pass", "overwritten"),
    "sums that are not armed again": _two_shot(ARM_SUMS, "pass", "overwritten"),
    "sums that nobody sends": _two_shot(SEND_SUMS, "", "deadlock"),
    "sums sent into the place of parts": _two_shot(SEND_SUMS, SEND_SUMS.replace(" + 1", ""), "deadlock", "overwritten"),
    "this rank's part left out": _two_shot("came[w, r] = own[w]", "came[w, r] = Int32(0)", "is not the sum"),
    "another order of the sum": Mistake(
        (("words[None, 0]", "words[None, self.ranks - 1]"), (REST, "range_constexpr(self.ranks - 1)")),
        ("is not the sum",),
        "rank_order",
        4,
        TWO_SHOT,
    ),
    "the sentinel sent as data": _two_shot(
        "came[w, r] = self.plus_zero(came[w, r])", "pass", "sentinel-sent", family="sentinel"
    ),
    "stores that reach one device": _two_shot(PUT, PUT.replace("sys", "gpu"), "race"),
}
