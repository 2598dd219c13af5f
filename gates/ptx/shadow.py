"""Who touched a granule of memory last, and whether that came before: races and what was never written.

A granule is the narrowest access that the kernel makes to a space. Per granule: the last write, the last read and
one read by another agent; three readers without order between them are remembered as two.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx.clocks import AGENT, CLOCK_MASK, SCOPE, SCOPE_MASK, Clocks

Array = npt.NDArray[Any]
BULK = 2  # bulk stores among the agents of a warp


@dataclass
class Conflict:
    """Accesses of a vector that have no order with an earlier one. `at`: positions in the vector."""

    at: Array
    stamp: Array  # of the earlier access
    instruction: Array  # index of the earlier access's instruction
    wrote: bool  # the earlier access was a write


class Region:
    """Shadow of `size` bytes (a multiple of 32) at `granule` bytes each."""

    def __init__(self, size: int, granule: int) -> None:
        self.granule = granule
        count = size // granule
        self.writes = np.zeros(count, np.uint64)
        self.reads = np.zeros(count, np.uint64)
        self.others = np.zeros(count, np.uint64)  # a read by another agent than that of `reads`
        self.write_at = np.zeros(count, np.int32)
        self.read_at = np.zeros(count, np.int32)
        self.written = False
        self.read_any = False

    def _rows(self, array: Array, offsets: Array, width: int) -> tuple[Array, Array]:
        """Granules of each access along a second axis: a view to index, and the row numbers."""
        per = max(width // self.granule, 1)
        return array.reshape(-1, per), offsets // max(width, self.granule)

    def unwritten(self, offsets: Array, width: int) -> Array:
        """Whether any byte of each access was not written here."""
        rows, at = self._rows(self.writes, offsets, width)
        found: Array = np.any(np.take(rows, at, axis=0) == 0, axis=1)
        return found

    def hidden(self, clocks: Clocks, space: str, offsets: Array, width: int, index: Array) -> Array:
        """Whether each asynchronous read meets writes that are not visible to it."""
        rows, at = self._rows(self.writes, offsets, width)
        found: Array = np.any(clocks.hidden(space, np.take(rows, at, axis=0), index), axis=1)
        return found

    def read(
        self,
        clocks: Clocks,
        offsets: Array,
        width: int,
        index: Array,
        stamps: Array,
        instruction: int,
        note: bool = True,
    ) -> Conflict | None:
        """Also notes it, but for `note`."""
        rows, at = self._rows(self.writes, offsets, width)
        conflict = None
        if self.written:
            found = np.take(rows, at, axis=0)
            conflict = self._judge(clocks, found, self.write_at, offsets, width, index, stamps, True)
        if note:
            self._note_read(offsets, width, stamps, instruction)
        return conflict

    def _note_read(self, offsets: Array, width: int, stamps: Array, instruction: int) -> None:
        rows, at = self._rows(self.reads, offsets, width)
        others, _ = self._rows(self.others, offsets, width)
        mine = stamps[:, None] >> AGENT
        before = np.take(rows, at, axis=0) if self.read_any else None
        rows[at] = stamps[:, None]
        now = np.take(rows, at, axis=0)
        if before is not None:
            moved = ((before >> AGENT) != (now >> AGENT)) & (before != 0)
            if moved.any():
                which, column = np.nonzero(moved)
                others[at[which], column] = before[which, column]
        lost = (now >> AGENT) != mine
        if lost.any():
            which, column = np.nonzero(lost)
            others[at[which], column] = stamps[which]
        self._rows(self.read_at, offsets, width)[0][at] = instruction
        self.read_any = True

    def write(
        self, clocks: Clocks, offsets: Array, width: int, index: Array, stamps: Array, instruction: int
    ) -> list[Conflict]:
        """Also notes it. Two lanes of this very vector on one granule: see `lost`."""
        rows, at = self._rows(self.writes, offsets, width)
        found: list[Conflict | None] = []
        if self.read_any:
            for source in (self.reads, self.others):
                seen = np.take(self._rows(source, offsets, width)[0], at, axis=0)
                found.append(self._judge(clocks, seen, self.read_at, offsets, width, index, stamps, False))
        if self.written:
            seen = np.take(rows, at, axis=0)
            found.append(self._judge(clocks, seen, self.write_at, offsets, width, index, stamps, True))
        rows[at] = stamps[:, None]
        self._rows(self.write_at, offsets, width)[0][at] = instruction
        self.written = True
        return [c for c in found if c is not None]

    def lost(self, offsets: Array, width: int, stamps: Array) -> Array:
        """Positions of writes of one vector whose granule another one of it wrote over."""
        rows, at = self._rows(self.writes, offsets, width)
        found: Array = np.flatnonzero((np.take(rows, at, axis=0) != stamps[:, None]).any(axis=1))
        return found

    def foreign(self, clocks: Clocks, cta: int, stride: int, lane: int) -> Array:
        """Granules of a CTA's shared memory that another CTA used without order before what `lane` does now."""
        part = slice(cta * stride // self.granule, (cta + 1) * stride // self.granule)
        place = clocks.place[clocks.ctas[cta]]
        found = np.zeros(part.stop - part.start, np.bool_)
        for array in (self.writes, self.reads, self.others):
            stamps = array[part]
            other = (stamps != 0) & ((stamps >> AGENT).astype(np.int64) // clocks.agents != place)
            at = np.flatnonzero(other)
            found[at] |= ~clocks.ordered(stamps[at][:, None], np.full(len(at), lane))[:, 0]
        return found

    def unread(self, clocks: Clocks, cta: int, stride: int) -> Array:
        """Warps (rows) whose bulk stores read a CTA's shared memory without their having waited for it."""
        part = slice(cta * stride // self.granule, (cta + 1) * stride // self.granule)
        stamps = np.concatenate((self.reads[part], self.others[part]))
        warp = (stamps >> AGENT).astype(np.int64) % clocks.agents - BULK * clocks.warps
        at = np.flatnonzero((stamps != 0) & (warp >= 0) & (warp < clocks.warps))
        rows = cta * clocks.warps + warp[at]
        late = (stamps[at] & CLOCK_MASK) > clocks.vc[rows, clocks.local(rows, BULK)]
        found: Array = np.unique(rows[late])
        return found

    def _judge(
        self,
        clocks: Clocks,
        found: Array,
        sources: Array,
        offsets: Array,
        width: int,
        index: Array,
        stamps: Array,
        wrote: bool,
    ) -> Conflict | None:
        if not found.any():
            return None
        if found.shape[1] > 1 and (found == found[:, :1]).all():  # written by one access: judged once
            found = found[:, :1]
        bad = ~clocks.ordered(found, index)
        if not bad.any():
            return None
        mine = (stamps >> SCOPE) & SCOPE_MASK
        if mine.any():
            weakest = np.minimum((found >> SCOPE) & SCOPE_MASK, mine[:, None])
            bad &= weakest < self._needed(clocks, found, stamps)
        which, column = np.nonzero(bad)
        if not len(which):
            return None
        which, first = np.unique(which, return_index=True)
        column = column[first]
        rows, at = self._rows(sources, offsets, width)
        return Conflict(which, found[which, column], rows[at[which], column], wrote)

    @staticmethod
    def _needed(clocks: Clocks, found: Array, stamps: Array) -> Array:
        """Scope at which two strong accesses do not race: CTA, cluster or device."""
        a = (found >> AGENT).astype(np.int64) // clocks.agents
        b = ((stamps >> AGENT).astype(np.int64) // clocks.agents)[:, None]
        return np.where(a == b, 1, np.where(a // clocks.cluster == b // clocks.cluster, 2, 3))
