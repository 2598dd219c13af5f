"""Barriers of CTAs and of clusters: who waits, who is missing, and what the waiting warps learn.

Barriers count warps: one whose lanes have parted waits until all of its live lanes have come.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx.findings import Kind
from kgen.gates.ptx.geometry import WARP
from kgen.gates.ptx.state import Machine
from kgen.gates.ptx.wave import Group

Array = npt.NDArray[Any]
BARRIERS = 16


def whole_rows(m: "Machine", group: Group) -> tuple[Array, bool]:
    """Warps all of whose live lanes are in the group; the lanes of the others stall at this instruction."""
    if group.covers:
        return group.rows, True
    mask = group.dense
    present = mask.reshape(-1, WARP)
    complete = (present == m.lanes.live.reshape(-1, WARP)).all(axis=1)
    rows = group.rows
    apart = rows[~complete[rows]]
    if not len(apart):
        return rows, True
    left = np.zeros(m.lanes.rows, np.bool_)
    left[apart] = True
    m.ready.stall(m.pc, mask & np.repeat(left, WARP))
    return rows[complete[rows]], False


class CtaBarriers:
    def __init__(self, m: "Machine") -> None:
        self._m = m
        shape = (m.lanes.ctas, BARRIERS)
        self._arrived = np.zeros(shape, np.int64)  # warps
        self._needed = np.zeros(shape, np.int64)  # warps; 0: all of the CTA
        self._at = np.full(m.lanes.rows, -1, np.int64)  # instruction that a warp waits at
        self._id = np.zeros(m.lanes.rows, np.int64)
        self._known: dict[int, Array] = {}  # barrier -> what arrivals that do not wait knew
        self._says: dict[int, Array] = {}  # barrier -> what each lane of the wave brings to it (bar.red)
        self._asks: dict[int, tuple[int, str]] = {}  # instruction -> its result's register, and how it joins

    @property
    def waiting(self) -> bool:
        return bool((self._at >= 0).any())

    def sync(self, group: Group, number: int, threads: int) -> bool:
        """True when all of the group goes on at once, False when it is parked (and whoever can go on is ready)."""
        m = self._m
        if group.covers and not threads and not self.waiting and not self._arrived.any() and m.everyone:
            m.clocks.join(m.lanes.warps)
            m.mutations += 1
            return True
        rows, _ = whole_rows(m, group)
        self._come(rows, number, threads)
        self._at[rows] = m.pc
        self._id[rows] = number
        self.check()
        return False

    def reduce(self, group: Group, number: int, threads: int, yes: Array, result: int, op: str) -> None:
        """As `sync`, always parked; `yes` of all lanes that came are counted or joined into a register of each."""
        m = self._m
        rows, _ = whole_rows(m, group)
        mine = m.mask_of_rows(rows)
        self._says[number] = np.where(mine, yes, self._says.get(number, False))
        self._asks[m.pc] = result, op
        self._come(rows, number, threads)
        self._at[rows], self._id[rows] = m.pc, number
        self.check()

    def _answer(self, number: int, rows: Array) -> None:
        """The results of bar.red for warps of one CTA that a barrier lets go."""
        m = self._m
        for pc in np.unique(self._at[rows]).tolist():
            if pc not in self._asks:
                continue
            result, op = self._asks[pc]
            mask = m.mask_of_rows(rows)
            said = self._says[number][mask]
            answer = said.sum() if op == "popc" else said.all() if op == "and" else said.any()
            if result >= 0:
                new = m.registers[result].copy()
                new[m.mask_of_rows(rows[self._at[rows] == pc])] = answer
                m.registers[result] = new

    def arrive(self, group: Group, number: int, threads: int) -> Group | None:
        """The warps that have arrived and go on."""
        m = self._m
        rows, _ = whole_rows(m, group)
        self._come(rows, number, threads)
        known = self._known.setdefault(number, np.zeros((m.lanes.ctas, m.clocks.columns), np.uint32))
        np.maximum.at(known, m.cta_of_row[rows], m.clocks.told(rows))
        m.clocks.tick(rows)
        self.check()
        return m.group_of_rows(rows)

    def _come(self, rows: Array, number: int, threads: int) -> None:
        m = self._m
        cta = m.cta_of_row[rows]
        needed = threads // WARP
        open_ = self._arrived[cta, number] > 0
        if (self._needed[cta, number][open_] != needed).any():
            m.report_rows(Kind.BARRIER, f"barrier {number} is used with other thread counts at the same time", rows)
        self._needed[cta, number] = needed
        np.add.at(self._arrived, (cta, np.full(len(cta), number)), 1)

    def check(self) -> None:
        """Lets go every barrier at which all have come."""
        m = self._m
        alive = m.alive_rows.reshape(m.lanes.ctas, -1).sum(axis=1)
        needed = np.where(self._needed > 0, self._needed, alive[:, None])
        done = (self._arrived > 0) & (self._arrived >= needed)
        if not done.any():
            return
        waits = self._at >= 0
        released = waits & done[m.cta_of_row, self._id]
        self._participation(done, released)
        for cta, number in np.argwhere(done).tolist():
            rows = np.flatnonzero(released & (m.cta_of_row == cta) & (self._id == number))
            known = m.clocks.told(rows).max(axis=0) if len(rows) else None
            if self._asks:
                self._answer(number, rows)
            if number in self._known:
                before = self._known[number][cta]
                known = before.copy() if known is None else np.maximum(known, before)
                self._known[number][cta] = 0
            if known is not None:
                m.clocks.learn(rows, known)
        rows = np.flatnonzero(released)
        m.clocks.tick(rows)
        m.mutations += 1
        self._arrived[done] = 0
        for pc in np.unique(self._at[rows]).tolist():
            m.ready.add(pc + 1, m.mask_of_rows(rows[self._at[rows] == pc]))
        self._at[rows] = -1

    def _participation(self, done: Array, released: Array) -> None:
        m = self._m
        whole = (done & (self._needed == 0)).any(axis=1)
        left = (m.lanes.exists & ~m.lanes.live).reshape(m.lanes.ctas, -1).any(axis=1)
        if not (whole & left).any():
            return
        rows = np.flatnonzero(released & (whole & left)[m.cta_of_row] & (self._needed[m.cta_of_row, self._id] == 0))
        if len(rows):
            message = "threads of the CTA have exited and do not come to the barrier that the others wait at"
            m.report_rows(Kind.BARRIER, message, rows, int(self._at[rows[0]]))

    def stuck(self) -> None:
        """Reports what still waits when nothing can go on."""
        m = self._m
        rows = np.flatnonzero(self._at >= 0)
        for pc in np.unique(self._at[rows]).tolist():
            some = rows[self._at[rows] == pc]
            cta, number = int(m.cta_of_row[some[0]]), int(self._id[some[0]])
            needed = int(self._needed[cta, number]) or int(m.alive_rows.reshape(m.lanes.ctas, -1).sum(axis=1)[cta])
            text = f"barrier {number} never completes: {int(self._arrived[cta, number])} of {needed} warps have come"
            m.report_rows(Kind.BARRIER, text, some, pc)


class ClusterBarrier:
    def __init__(self, m: "Machine") -> None:
        self._m = m
        self._clusters = m.lanes.ctas // m.geometry.cluster_size
        self._arrivals = np.zeros(m.lanes.rows, np.int64)
        self._known = np.zeros((self._clusters, m.clocks.columns), np.uint32)
        self._met = np.zeros_like(self._known)  # what was done before arrivals, relaxed ones too
        self.met = np.zeros((m.lanes.ctas if m.geometry.cluster_size > 1 else 0, m.clocks.columns), np.uint32)
        self._at = np.full(m.lanes.rows, -1, np.int64)

    def _done(self) -> Array:
        """Phases that are complete, by cluster."""
        counts = np.where(self._m.alive_rows, self._arrivals, np.iinfo(np.int64).max)
        found: Array = counts.reshape(self._clusters, -1).min(axis=1)
        return found

    def arrive(self, group: Group, release: bool) -> Group | None:
        m = self._m
        rows, _ = whole_rows(m, group)
        self._arrivals[rows] += 1
        known = m.clocks.told(rows)
        np.maximum.at(self._met, m.cluster_of_row[rows], known)
        if release:
            if len(rows) == m.lanes.rows:
                self._known = np.maximum(self._known, known.reshape(self._clusters, -1, m.clocks.columns).max(axis=1))
            else:
                np.maximum.at(self._known, m.cluster_of_row[rows], known)
        m.clocks.tick(rows)
        self.check()
        return m.group_of_rows(rows)

    def wait(self, group: Group) -> Group | None:
        """The warps that need not wait; the others are parked."""
        m = self._m
        rows, _ = whole_rows(m, group)
        free = self._done()[m.cluster_of_row[rows]] >= self._arrivals[rows]
        self._at[rows[~free]] = m.pc
        self._learn(rows[free])
        return m.group_of_rows(rows[free])

    def _learn(self, rows: Array) -> None:
        if len(rows):
            cta, cluster = self._m.cta_of_row[rows], self._m.cluster_of_row[rows]
            if len(self.met):
                self.met[cta] = np.maximum(self.met[cta], self._met[cluster])
            self._m.clocks.learn(rows, self._known[cluster])

    def depart(self, rows: Array) -> None:
        """Warps that exit: all that came before the barriers they met at is over, whether it was released or not."""
        self._m.clocks.learn(rows, self._met[self._m.cluster_of_row[rows]])

    def check(self) -> None:
        m = self._m
        rows = np.flatnonzero(self._at >= 0)
        rows = rows[self._done()[m.cluster_of_row[rows]] >= self._arrivals[rows]]
        if not len(rows):
            return
        self._learn(rows)
        m.mutations += 1
        for pc in np.unique(self._at[rows]).tolist():
            m.ready.add(pc + 1, m.mask_of_rows(rows[self._at[rows] == pc]))
        self._at[rows] = -1

    def stuck(self) -> None:
        m = self._m
        rows = np.flatnonzero(self._at >= 0)
        for pc in np.unique(self._at[rows]).tolist():
            text = "the cluster barrier never completes: threads of the cluster do not arrive"
            m.report_rows(Kind.BARRIER, text, rows[self._at[rows] == pc], pc)
