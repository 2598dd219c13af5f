"""mbarrier objects in shared memory: arrivals, transactions, phases, and what a wait teaches."""

from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx.access import resolve
from kgen.gates.ptx.clocks import AGENT, CLOCK_MASK, LANE, LANE_MASK, MAX_BARRIERS
from kgen.gates.ptx.findings import Kind
from kgen.gates.ptx.geometry import WARP
from kgen.gates.ptx.state import Machine
from kgen.gates.ptx.target import Target
from kgen.gates.ptx.wave import Group

Array = npt.NDArray[Any]


class Mbarriers:
    """Slots by CTA, in the order of their first initialisation."""

    def __init__(self, m: "Machine") -> None:
        self._m = m
        shape = (m.lanes.ctas, MAX_BARRIERS)
        self._slot = np.full((m.lanes.ctas, m.shared_stride // 8), -1, np.int16)
        self._used = np.zeros(m.lanes.ctas, np.int64)
        self._pending, self._expected = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self._bytes = np.zeros(shape, np.int64)
        self.phase = np.zeros(shape, np.int64)
        self._made = np.zeros(shape, np.uint64)  # stamps of the initialisations
        self._shown = np.zeros(shape, np.bool_)  # ... and whether a fence has shown them to other CTAs and to copies
        self._known: dict[int, Array] = {}  # slot -> (CTAs, columns), of the phase that is open
        self._done: dict[int, Array] = {}  # ... of the phases that are complete
        self._flying: list[tuple[Array, Array, Array]] = []  # CTA, slot, bytes
        self._parked: list[tuple[int, Array, Array, Array, Array]] = []  # pc, lanes, CTA, slot, phase to complete

    def locate(
        self, space: str, addresses: Array, index: Array, fresh: bool = False, copies: bool = False
    ) -> tuple[Array, Array, Array]:
        """(positions, CTAs, slots) of the barriers at some addresses; what is no barrier is reported and left out.

        `copies`: an asynchronous copy will complete on them."""
        m = self._m
        parts = []
        for target in resolve(m, space, addresses, index, 8, True):
            at = np.arange(len(addresses)) if target.at is None else target.at
            if not target.stride:
                continue
            cta, word = target.offsets // m.shared_stride, target.offsets % m.shared_stride // 8
            slot = self._slot[cta, word].astype(np.int64)
            if fresh:
                slot = self._new(cta, word, slot)
            elif (slot < 0).any():
                m.report(Kind.MBARRIER, "an mbarrier that was not initialised", target.keep(slot < 0))
            right = slot >= 0
            if not fresh:
                self._early(target.keep(right), cta[right], slot[right], copies)
            parts.append((at[right], cta[right], slot[right]))
        if len(parts) == 1:
            return parts[0]
        empty = np.zeros(0, np.int64)
        at, cta, slot = (np.concatenate([p[i] for p in parts]) if parts else empty for i in range(3))
        return at, cta, slot

    def _early(self, target: Target, cta: Array, slot: Array, copies: bool) -> None:
        """Reports uses without order after the initialisation, and copies that no fence has shown it to.

        A barrier of the cluster orders an initialisation that a fence has shown also where its arrivals are relaxed."""
        m = self._m
        made, shown = self._made[cta, slot], self._shown[cta, slot]
        early = ~m.clocks.ordered(made[:, None], target.index)[:, 0]
        if early.any() and m.geometry.cluster_size > 1:
            row = m.lanes.row[target.index]
            column = (made >> AGENT).astype(np.int64) - m.clocks.first[row]
            inside = (column >= 0) & (column < m.clocks.width - 1)
            met = m.cluster.met[m.cta_of_row[row], np.where(inside, column, 0)]
            early &= ~(shown & inside & (met >= (made & CLOCK_MASK)))
        if early.any():
            text = "an mbarrier whose initialisation has no order before this"
            m.report(Kind.MBARRIER, text, target.keep(early))
        if copies and (hidden := ~shown & ~early).any():
            text = (
                "an asynchronous copy completes on an mbarrier whose initialisation neither fence.mbarrier_init nor "
                "fence.proxy.async has shown to it"
            )
            m.report(Kind.MBARRIER, text, target.keep(hidden))

    def show(self, group: Group, proxy: bool) -> None:
        """A fence shows the initialisations that its own threads made, fence.proxy.async all that they know of."""
        m = self._m
        used = np.arange(MAX_BARRIERS) < self._used[:, None]
        cta, slot = np.nonzero(used & ~self._shown)
        if not len(cta):
            return
        made = self._made[cta, slot]
        warp = (made >> AGENT).astype(np.int64) % m.clocks.agents
        lane = ((made >> LANE) & LANE_MASK).astype(np.int64)
        self._shown[cta, slot] = group.dense[(cta * m.lanes.warps + warp) * WARP + lane]
        if proxy:
            rows = group.rows
            pairs = np.nonzero(m.cta_of_row[rows][:, None] == cta[None, :])
            index = rows[pairs[0]] * WARP
            known = m.clocks.ordered(made[pairs[1]][:, None], index)[:, 0]
            some = pairs[1][known]
            self._shown[cta[some], slot[some]] = True

    def _new(self, cta: Array, word: Array, slot: Array) -> Array:
        for i in np.flatnonzero(slot < 0).tolist():
            if self._slot[cta[i], word[i]] < 0:
                if self._used[cta[i]] >= MAX_BARRIERS:
                    self._m.give_up(f"more than {MAX_BARRIERS} mbarriers in a CTA")
                self._slot[cta[i], word[i]] = self._used[cta[i]]
                self._used[cta[i]] += 1
            slot[i] = self._slot[cta[i], word[i]]
        return slot

    def init(self, group: Group, space: str, addresses: Array, counts: Array) -> None:
        at, cta, slot = self.locate(space, addresses, group.index, fresh=True)
        self._pending[cta, slot] = self._expected[cta, slot] = counts[at]
        self._bytes[cta, slot] = 0
        self.phase[cta, slot] = 0
        self._made[cta, slot] = self._m.clocks.stamps(group.index)[at]
        self._shown[cta, slot] = False
        self._m.mutations += 1

    def invalidate(self, group: Group, space: str, addresses: Array) -> None:
        for target in resolve(self._m, space, addresses, group.index, 8, True):
            self._slot[target.offsets // self._m.shared_stride, target.offsets % self._m.shared_stride // 8] = -1

    def _know(self, table: dict[int, Array], slot: int) -> Array:
        if slot not in table:
            table[slot] = np.zeros((self._m.lanes.ctas, self._m.clocks.columns), np.uint32)
        return table[slot]

    def teach(self, cta: Array, slot: Array, rows: Array, those: Array, known: Array) -> None:
        """What the warps `rows` of arrivals tell (`known`: a row for each of `those`) is known to who waits for the
        open phase."""
        for number in np.unique(slot).tolist():
            chosen = slot == number
            pairs = np.unique(np.stack([cta[chosen], rows[chosen]]), axis=1)
            np.maximum.at(self._know(self._known, number), pairs[0], known[np.searchsorted(those, pairs[1])])

    def expect(self, cta: Array, slot: Array, count: Array) -> None:
        np.add.at(self._bytes, (cta, slot), count.astype(np.int64))

    def arrive(self, group: Group, at: Array, cta: Array, slot: Array, counts: Array, release: bool = True) -> Array:
        """Returns the phase that each arrival belongs to."""
        m = self._m
        phase = self.phase[cta, slot].copy()
        rows = m.lanes.row[group.index[at]]
        if release:
            those = np.unique(rows)
            self.teach(cta, slot, rows, those, m.clocks.told(those))
            m.clocks.tick(those)
        np.subtract.at(self._pending, (cta, slot), counts.astype(np.int64))
        if (self._pending[cta, slot] < 0).any():
            wrong = at[self._pending[cta, slot] < 0]
            m.report_lanes(Kind.MBARRIER, "more arrivals than the mbarrier expects in a phase", group.index[wrong])
            self._pending[cta, slot] = np.maximum(self._pending[cta, slot], 0)
        self.settle()
        return phase

    def drop(self, cta: Array, slot: Array) -> None:
        np.subtract.at(self._expected, (cta, slot), 1)

    def complete(self, cta: Array, slot: Array, count: Array) -> None:
        """Bytes of an asynchronous copy have landed; with an odd seed not before somebody has to wait for them."""
        if self._m.run.seed % 2:
            self._flying.append((cta, slot, count))
        else:
            self._land(cta, slot, count)

    def land(self) -> bool:
        """Lets all copies land that are under way. False when there are none."""
        flying, self._flying = self._flying, []
        for copy in flying:
            self._land(*copy)
        return bool(flying)

    def _land(self, cta: Array, slot: Array, count: Array) -> None:
        np.subtract.at(self._bytes, (cta, slot), count.astype(np.int64))
        self.settle()

    def settle(self) -> None:
        """Ends the phases that are complete, and lets go who waited for them."""
        m = self._m
        used = np.arange(MAX_BARRIERS) < self._used[:, None]
        over = used & (self._pending <= 0) & (self._bytes == 0) & (self._expected > 0)
        if not over.any():
            return
        for cta, slot in np.argwhere(over).tolist():
            known, done = self._know(self._known, slot), self._know(self._done, slot)
            agent = m.clocks.mbarrier_agent(m.clocks.place[m.ctas[cta]], np.asarray(slot))
            first = m.clocks.first[cta * m.lanes.warps]
            known[cta, int(agent - first)] = self.phase[cta, slot] + 1
            done[cta] = np.maximum(done[cta], known[cta])
            known[cta] = 0
        self.phase[over] += 1
        self._pending[over] = self._expected[over]
        m.mutations += 1
        self._release()

    def _release(self) -> None:
        m, parked = self._m, self._parked
        self._parked = []
        for pc, lanes, cta, slot, phase in parked:
            free = self.phase[cta, slot] > phase
            if free.any():
                mask = np.zeros(m.lanes.count, np.bool_)
                mask[lanes[free]] = True
                m.ready.add(pc, mask)
            if not free.all():
                stay = ~free
                self._parked.append((pc, lanes[stay], cta[stay], slot[stay], phase[stay]))

    def finished(self, cta: Array, slot: Array, phase: Array, parity: bool) -> Array:
        """Whether the phase (its number, or its parity) is complete."""
        now = self.phase[cta, slot]
        found: Array = (now & 1) != (phase & 1) if parity else now > phase
        return found

    def learn(self, index: Array, cta: Array, slot: Array) -> None:
        m = self._m
        rows = m.lanes.row[index]
        for number in np.unique(slot).tolist():
            chosen = np.flatnonzero(slot == number)
            some, first = np.unique(rows[chosen], return_index=True)
            if number in self._done:
                m.clocks.learn(some, self._done[number][cta[chosen][first]])

    def park(self, lanes: Array, cta: Array, slot: Array) -> None:
        """Until the open phase is complete; then the lanes execute the instruction again."""
        self._parked.append((self._m.pc, lanes, cta, slot, self.phase[cta, slot].copy()))

    def stuck(self) -> None:
        m = self._m
        for pc, lanes, cta, slot, phase in self._parked:
            c, s = int(cta[0]), int(slot[0])
            text = (
                f"waits for phase {int(phase[0])} of an mbarrier that never completes: "
                f"{int(self._pending[c, s])} arrivals and {int(self._bytes[c, s])} bytes are missing"
            )
            m.report_lanes(Kind.DEADLOCK, text, lanes, pc)

    def stamp(self, cta: Array, slot: Array) -> Array:
        """Stamps of copies that complete in the open phase."""
        m = self._m
        agents = m.clocks.mbarrier_agent(m.clocks.place[m.ctas[cta]], slot)
        return m.clocks.agent_stamps(agents, self.phase[cta, slot] + 1)
