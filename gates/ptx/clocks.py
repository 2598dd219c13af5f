"""What each warp knows of what others did: vector clocks over agents.

An agent is a warp, the asynchronous work of a warp (cp.async; what bulk stores read; wgmma; what bulk stores write), or
an mbarrier (the copies that complete on it). A row per resident warp, a column per agent of its cluster, or of all
the grid when the kernel synchronises CTAs through global memory. The last of these columns is the grid before this one,
known after griddepcontrol.wait. There may be as many columns again, up to three times: for shared and for global
memory, where asynchronous work reads what threads may have written, what is known to be visible to it (after
fence.proxy.async); where CTAs synchronise, what is known to be visible to the whole device (after a fence of that scope
by whoever did it or learned of it).

A stamp is what an access leaves on a granule of memory: agent << 38 | lane << 32 | scope << 30 | clock; 0: never.
`scope` 0: a weak access; 1, 2, 3: strong at CTA, cluster, device scope. Clocks start at 1.

A warp's clock (`now`) goes on with every release and at every barrier. Its own column holds the clock up to which its
lanes know each other's accesses: only barriers (also bar.warp.sync), and what they acquire, move that.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx.geometry import WARP, Geometry
from kgen.gates.ptx.wave import Lanes

Array = npt.NDArray[Any]

AGENT, LANE, SCOPE = np.uint64(38), np.uint64(32), np.uint64(30)
LANE_MASK, SCOPE_MASK, CLOCK_MASK = np.uint64(63), np.uint64(3), np.uint64((1 << 30) - 1)
NO_LANE = 32
OWN = 4  # agents of a warp; one more where there are bulk stores
MAX_BARRIERS = 64  # mbarriers of one CTA
MAX_BYTES = 1 << 30


class Clocks:
    """`blind`: too many warps to follow what CTAs tell each other; accesses of other CTAs are then never judged."""

    def __init__(
        self,
        geometry: Geometry,
        ctas: Array,
        lanes: Lanes,
        whole: bool,
        barriers: bool,
        stores: bool = False,  # bulk stores: what they have written is known apart from what they have read
        proxies: Iterable[str] = (),  # "shared", "global": what asynchronous work reads
    ) -> None:
        spaces = sorted(proxies)
        warps, size = geometry.warps, geometry.cluster_size
        self.kinds = OWN + stores
        self.agents = self.kinds * warps + (MAX_BARRIERS if barriers else 0)
        self.lanes, self.warps, self.cluster = lanes, warps, size
        self.ctas = ctas
        columns = (geometry.ctas if whole else size) * self.agents + 1
        self.blind = whole and columns * (2 + len(spaces)) * lanes.rows * 4 > MAX_BYTES
        if self.blind:
            whole, columns = False, size * self.agents + 1
        self.whole = whole
        cta_of_row = np.repeat(np.arange(len(ctas)), warps)
        self.cta_of_row = ctas[cta_of_row]
        self.rank_of_row = cta_of_row % size
        warp = np.tile(np.arange(warps), len(ctas))
        # agent numbers are of CTAs in the order of clusters, so that a cluster's are contiguous
        self.place = self._places(geometry)
        self.own = self.place[self.cta_of_row] * self.agents + warp
        self.first = np.zeros(lanes.rows, np.int64) if whole else self._cluster_first()
        self.width = columns  # of what is known
        # first column of what asynchronous reads of a space see
        self.proxies = {space: columns * (1 + i) for i, space in enumerate(spaces)}
        self.device = columns * (1 + len(spaces)) if whole else 0  # first column of what the device sees
        self.columns = columns * (1 + len(spaces) + whole)
        self.vc = np.zeros((lanes.rows, self.columns), np.uint32)
        self.now = np.ones(lanes.rows, np.uint32)
        self._at = np.arange(lanes.rows)
        self._column = self.own - self.first  # of each warp among what it knows
        # cp.async copies that a warp has waited for since its lanes were last in step: each lane knows its own
        self.copies = np.zeros(lanes.rows, np.int64)  # ... known to all lanes before that wait
        self.wait_clock = np.full(lanes.rows, -1, np.int64)  # its lanes' common clock at that wait; -1: none
        self._waits = False
        self._stamp: Array | None = None

    @staticmethod
    def _places(geometry: Geometry) -> Array:
        order = np.concatenate(geometry.waves(True, None))
        place = np.empty(geometry.ctas, np.int64)
        place[order] = np.arange(geometry.ctas)
        return place

    def _cluster_first(self) -> Array:
        return self.place[self.cta_of_row] // self.cluster * self.cluster * self.agents

    # -- stamps

    def stamps(self, index: Array, scope: int = 0) -> Array:
        """Stamps of accesses that the lanes at `index` make now."""
        if self._stamp is None:
            row = (self.own.astype(np.uint64) << AGENT) | self.now.astype(np.uint64)
            self._stamp = np.repeat(row, WARP) | (self.lanes.lane.astype(np.uint64) << LANE)
        found = self._stamp if len(index) == len(self._stamp) else self._stamp[index]
        return found | (np.uint64(scope) << SCOPE) if scope else found

    def agent_stamps(self, agents: Array, clocks: Array, lanes: Array | int = NO_LANE) -> Array:
        """Stamps of what agents other than warps do, for the lane that asked for it (none: of every lane)."""
        lane = np.asarray(lanes).astype(np.uint64) << LANE
        return (agents.astype(np.uint64) << AGENT) | lane | clocks.astype(np.uint64)

    def waited(self, rows: Array, counts: Array) -> None:
        """The lanes of some warps know their cp.async copies up to a count each."""
        column = self.local(rows, 1)
        clock = self.vc[rows, self.local(rows, 0)].astype(np.int64)
        self._waits = True
        first = self.wait_clock[rows] != clock  # the first wait since the lanes were in step
        known = self.vc[rows, column]
        self.copies[rows] = np.where(first, known, self.copies[rows])
        self.wait_clock[rows] = clock
        self.vc[rows, column] = np.maximum(known, counts)

    def ordered(self, stamps: Array, index: Array) -> Array:
        """Whether each access comes before what the lane at `index` does now. `stamps`: (n, k)."""
        row = self.lanes.row[index][:, None]
        agent = (stamps >> AGENT).view(np.int64)
        column = agent - self.first[row]
        inside = (column >= 0) & (column < self.width - 1)
        everywhere = bool(inside.all())
        seen = np.take(
            self.vc.reshape(-1), row * self.columns + (column if everywhere else np.where(inside, column, 0))
        )
        clock = (stamps & CLOCK_MASK).view(np.int64)
        found: Array = seen >= clock
        if self._waits:
            found &= ~self._fresh(row, agent, clock, stamps, index)
        if not everywhere:
            found &= inside
        if not found.all():
            mine = agent == self.own[row]
            found |= mine & (((stamps >> LANE) & LANE_MASK).view(np.int64) == self.lanes.lane[index][:, None])
            found |= stamps == 0
        return found if not self.blind else found | ~inside

    def _fresh(self, row: Array, agent: Array, clock: Array, stamps: Array, index: Array) -> Array:
        """Copies of another lane of the same warp that only that lane has waited for."""
        now = self.vc[row, self.local(row, 0)].astype(np.int64)
        copied = (agent == self.own[row] + self.warps) & (self.wait_clock[row] == now) & (clock > self.copies[row])
        lane = ((stamps >> LANE) & LANE_MASK).view(np.int64)
        found: Array = copied & (lane != self.lanes.lane[index][:, None])
        return found

    def hidden(self, space: str, stamps: Array, index: Array) -> Array:
        """Ordinary writes, and those of cp.async, that no fence.proxy.async has shown to asynchronous reads. (n, k)."""
        if space not in self.proxies:
            return np.zeros(stamps.shape, np.bool_)
        row = self.lanes.row[index][:, None]
        agent = (stamps >> AGENT).view(np.int64)
        column = agent - self.first[row]
        ordinary = (column >= 0) & (column < self.width - 1) & (agent % self.agents < 2 * self.warps) & (stamps != 0)
        seen = self.vc[row, self.proxies[space] + np.where(ordinary, column, 0)]
        found: Array = ordinary & (seen < (stamps & CLOCK_MASK).view(np.int64))
        return found

    # -- what warps learn

    def show(self, rows: Array, spaces: Iterable[str]) -> None:
        """fence.proxy.async: what the warps know is visible to asynchronous reads of some spaces from now on."""
        for space in self.proxies.keys() & set(spaces):
            self._copy(rows, self.proxies[space])
        if self.proxies:
            self.tick(rows)

    def publish(self, rows: Array) -> None:
        """A fence of device scope: what the warps know is visible to the device from now on."""
        if self.device:
            self._copy(rows, self.device)

    def _copy(self, rows: Array, first: int) -> None:
        part = slice(first, first + self.width)
        self.vc[rows, part] = np.maximum(self.vc[rows, part], self.told(rows)[:, : self.width])

    def told(self, rows: Array) -> Array:
        """What the warps know and did so far, a row each: what a release of theirs tells."""
        found: Array = self.vc[rows]
        found[np.arange(len(rows)), self._column[rows]] = self.now[rows]
        return found

    def published(self, row: int) -> Array | None:
        """What a strong write of the warp tells that is no release: what the device sees. None for nothing."""
        if not self.device:
            return None
        known = self.vc[row].copy()
        known[: self.width] = known[self.device : self.device + self.width]
        return known if known.any() else None

    def tick(self, rows: Array | None = None) -> None:
        """What the warps do from now on is later than all before."""
        if rows is None:
            self.now += np.uint32(1)
        else:
            self.now[rows] += np.uint32(1)
        self._stamp = None

    def meet(self, rows: Array | None = None) -> None:
        """The lanes of the warps know what each of them did."""
        at = self._at if rows is None else rows
        self.vc[at, self._column[at]] = self.now[at]
        self.tick(rows)

    def learn(self, rows: Array, known: Array) -> None:
        """`known`: (columns,) or (rows, columns)."""
        self.vc[rows] = np.maximum(self.vc[rows], known)
        self._stamp = None

    def join(self, size: int) -> None:
        """Every `size` neighbouring warps learn what all of them know (whole CTAs or clusters), and go on."""
        self.vc[self._at, self._column] = self.now
        groups = self.vc.reshape(-1, size, self.columns)
        groups[:] = groups.max(axis=1, keepdims=True)
        self.tick()

    def local(self, rows: Array, kind: int) -> Array:
        """Column of an agent of the warp's own CTA: 0 the warp, 1 its cp.async copies, 2 what its bulk stores read,
        3 wgmma, 4 what its bulk stores write."""
        return self.own[rows] - self.first[rows] + kind * self.warps

    def near(self, row: int, known: Array, scope: int) -> Array:
        """What of `known` is about the warp's own CTA (`scope` 1) or cluster (2): all that a narrow acquire tells."""
        if scope > 2 or (scope == 2 and not self.whole):
            return known
        size = 1 if scope == 1 else self.cluster
        start = int(self.own[row]) // (self.agents * size) * self.agents * size - int(self.first[row])
        found = np.zeros_like(known)
        for block in range(0, self.columns, self.width):
            for part in (slice(block + start, block + start + self.agents * size), block + self.width - 1):
                found[part] = known[part]
        return found

    def mbarrier_agent(self, place: Array, slot: Array) -> Array:
        """Number of an mbarrier's agent; `place` of its CTA."""
        return place * self.agents + self.kinds * self.warps + slot

    def after_predecessor(self, rows: Array) -> None:
        self.vc[rows, self.width - 1] = 1

    def knows_predecessor(self, index: Array) -> Array:
        found: Array = self.vc[self.lanes.row[index], self.width - 1] > 0
        return found
