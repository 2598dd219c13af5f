"""Small edits of candidates/sum_over_ranks.py, each a mistake that an exchange between ranks invites."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = (Path(__file__).parent.parent / "candidates" / "sum_over_ranks.py").read_text()
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

    @property
    def source(self) -> str:
        text = SOURCE
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
