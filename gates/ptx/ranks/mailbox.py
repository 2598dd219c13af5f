"""Rules of mailboxes: symmetric memory whose words are data or, until data arrive, a sentinel that no data equal.

A word goes round: armed, written by a sender, read by its owner, armed again by its owner. What breaks that is a fault
even where the numbers come out right under the order of this run:

    overwritten    data over data: the owner has not armed the word again (wrong parity, or a call too early)
    unordered      data over an arming that is not ordered before them: on other days the arming comes last and wipes
                   the data out (missing fence, early arming)
    unread         armed again although its owner has not read the data that came
    not-arrived    armed again although its owner read the sentinel only: it did not wait
    sentinel-sent  a sender writes the sentinel as data: its owner waits for ever

Not covered: whether what was read is used rightly; the outputs show that. Words that their owner writes itself are its
own affair, but for the first two rules.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx.geometry import WARP
from kgen.gates.ptx.memory import Tensor
from kgen.gates.ptx.state import Machine
from kgen.gates.ptx.target import Target

Array = npt.NDArray[Any]
WORD = 4
UNSEEN, EMPTY, TAKEN = 0, 1, 2  # what the owner's reads found since the word was armed or written
MAX_FAULTS = 50


class Rule(enum.StrEnum):
    OVERWRITTEN = "overwritten"
    UNORDERED = "unordered"
    UNREAD = "unread"
    NOT_ARRIVED = "not-arrived"
    SENTINEL_SENT = "sentinel-sent"


TEXTS = {
    Rule.OVERWRITTEN: "writes data over data that nobody has armed again",
    Rule.UNORDERED: "writes data with no order after the arming of the word, which may land later and wipe them out",
    Rule.UNREAD: "arms a word again whose data its owner has not read",
    Rule.NOT_ARRIVED: "arms a word again whose owner read nothing but the sentinel: it did not wait for the data",
    Rule.SENTINEL_SENT: "sends the sentinel as data: the owner of the word waits for ever",
}


@dataclass(frozen=True)
class Fault:
    """A broken rule of a mailbox. `rank`: whose thread did it; `call`: its number, from 0; `times`: words."""

    rule: Rule
    rank: int
    call: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    tensor: str
    index: tuple[int, ...]
    instruction: str
    line: int
    times: int = 1

    def __str__(self) -> str:
        where = f"{self.tensor}{list(self.index)}"
        who = f"rank {self.rank}, call {self.call}, block {self.block}, thread {self.thread}"
        return f"{self.rule}: {TEXTS[self.rule]}: {where}; {who}, line {self.line}: `{self.instruction}`"


@dataclass
class Box:
    """One rank's mailbox."""

    tensor: Tensor
    owner: int
    sentinel: int
    seen: Array  # UNSEEN, EMPTY or TAKEN of each word

    @classmethod
    def of(cls, tensor: Tensor, owner: int, sentinel: int) -> "Box":
        return cls(tensor, owner, sentinel, np.zeros(len(tensor.data) // WORD, np.uint8))


@dataclass
class _Write:
    box: Box
    words: Array  # numbers of the words
    index: Array  # lane that writes each
    before: Array
    ordered: Array  # whether the last write there is ordered before this one


class Mailboxes:
    """The mailboxes of all ranks, and what was done wrong with them."""

    def __init__(self, boxes: Sequence[Box], ranks: int, lanes_of_rank: int) -> None:
        self._boxes = {box.tensor.name: box for box in boxes}
        self._per = lanes_of_rank
        self._pending: list[_Write] = []
        self.calls = np.zeros(ranks, np.int64)
        self._found: dict[tuple[str, int], Fault] = {}

    @property
    def sentinels(self) -> Mapping[str, int]:
        """Tensor -> the word that marks an empty place in it."""
        return {name: box.sentinel for name, box in self._boxes.items()}

    @property
    def faults(self) -> tuple[Fault, ...]:
        return tuple(self._found.values())

    def touch(self, m: Machine, tensor: Tensor, target: Target, width: int, writes: bool) -> None:
        """Before an access: notes what reads find, and what writes are about to change."""
        box = self._boxes.get(tensor.name)
        if box is None:
            return
        count = max(width // WORD, 1)
        words = (target.offsets[:, None] // WORD + np.arange(count)).reshape(-1)
        index = np.repeat(target.index, count)
        now = tensor.data.view(np.uint32)[words]
        if writes:
            self._pending.append(_Write(box, words, index, now, self._ordered(m, target, words, index)))
            return
        mine = index // self._per == box.owner
        found = np.where(now[mine] == box.sentinel, EMPTY, TAKEN)
        np.maximum.at(box.seen, words[mine], found.astype(np.uint8))

    @staticmethod
    def _ordered(m: Machine, target: Target, words: Array, index: Array) -> Array:
        region = target.region
        if region is None or not region.written:
            return np.ones(len(words), np.bool_)
        per = max(WORD // region.granule, 1)
        first = words * WORD // region.granule
        stamps = region.writes[first[:, None] + np.arange(per)]
        found: Array = np.asarray(m.clocks.ordered(stamps, index).all(axis=1))
        return found

    def settle(self, m: Machine) -> None:
        """After the writes were done: judges them."""
        for write in self._pending:
            self._judge(m, write)
        self._pending.clear()

    def _judge(self, m: Machine, w: _Write) -> None:
        box = w.box
        after = box.tensor.data.view(np.uint32)[w.words]
        was, is_ = w.before == box.sentinel, after == box.sentinel
        foreign = w.index // self._per != box.owner
        arms = is_ & ~foreign
        seen = box.seen[w.words]
        for rule, bad in (
            (Rule.SENTINEL_SENT, is_ & foreign),
            (Rule.OVERWRITTEN, ~is_ & ~was),
            (Rule.UNORDERED, ~is_ & was & ~w.ordered),
            (Rule.UNREAD, arms & ~was & (seen != TAKEN)),
            (Rule.NOT_ARRIVED, arms & was & (seen == EMPTY)),
        ):
            if bad.any():
                self._add(m, rule, w, bad)
        box.seen[w.words] = UNSEEN

    def _add(self, m: Machine, rule: Rule, w: _Write, bad: Array) -> None:
        key = (rule.value, m.pc)
        if key in self._found or len(self._found) >= MAX_FAULTS:
            return
        at = int(np.flatnonzero(bad)[0])
        lane = int(w.index[at])
        rank = lane // self._per
        block = m.geometry.block_of(int(m.ctas[m.lanes.cta[lane]]))
        thread = m.geometry.thread_of(lane % (m.lanes.warps * WARP))
        instruction = m.plan.instructions[m.pc]
        index = w.box.tensor.index(int(w.words[at]) * WORD)
        self._found[key] = Fault(
            rule, rank, int(self.calls[rank]), block, thread, w.box.tensor.name, index, instruction.text,
            instruction.line, int(bad.sum()),
        )  # fmt: skip
