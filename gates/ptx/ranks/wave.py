"""The grids of all ranks as one wave: each rank goes through its calls one after another, at a pace of its own.

A rank's next call begins when all of its threads have left the one before, whatever the others do, so ranks may be a
call apart. What a rank did in one call is ordered before its next one; peers are told nothing by the end of a call:
dependent launches overlap, so a kernel that relies on it is refused, and needs fences of its own. Registers, shared
memory and parameters are new in each call, global memory and who knows what of it are not.

With a seed, ranks and warps run in drawn bursts that may end at any access to memory; seed 0 keeps them in step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx.barriers import ClusterBarrier, CtaBarriers
from kgen.gates.ptx.budget import Before, Run
from kgen.gates.ptx.geometry import WARP, Geometry, Specials
from kgen.gates.ptx.machine import Wave
from kgen.gates.ptx.mbarrier import Mbarriers
from kgen.gates.ptx.memory import Tensor
from kgen.gates.ptx.ranks.mailbox import Mailboxes
from kgen.gates.ptx.ranks.waits import MAX_WAITS, Wait, describe
from kgen.gates.ptx.schedule import Ready
from kgen.gates.ptx.state import Plan
from kgen.gates.ptx.target import Target
from kgen.gates.ptx.tokens import PtxError
from kgen.gates.ptx.wave import Group, Lanes, blank

Array = npt.NDArray[Any]
IDLE = 48  # turns of every spinning group without a write by anybody, after which nothing will change
MEMORY = ("ld", "st", "atom", "red")
BURST = 24  # turns that one class of warps runs at most, drawn anew each time
PAUSE = 0.25  # chance that a group stops after an access to memory


@dataclass(frozen=True)
class RankGeometry(Geometry):
    """One rank's grid, as many times as there are ranks; a rank stands where a cluster stands elsewhere."""

    ranks: int = 1

    def __post_init__(self) -> None:
        one = self.one  # its own checks
        if one.cluster_size > 1:
            raise PtxError(0, "clusters are not modelled for several ranks")
        if one.ctas > one.residents():
            raise PtxError(0, f"{one.ctas} CTAs of one rank do not fit on a device at a time")

    @property
    def one(self) -> Geometry:
        return Geometry(self.grid, self.block, self.cluster, self.shared)

    @property
    def ctas(self) -> int:
        return self.one.ctas * self.ranks

    @property
    def cluster_size(self) -> int:
        return self.one.ctas

    def waves(self, together: bool, rng: np.random.Generator | None) -> list[Array]:
        return [np.arange(self.ctas)]

    def block_of(self, cta: int) -> tuple[int, int, int]:
        return super().block_of(cta % self.one.ctas)


class RankReady(Ready):
    """Warps of each rank in classes of their own; a drawn class runs for a drawn while."""

    def __init__(self, lanes: Lanes, order: Sequence[int], seed: int, ranks: int) -> None:
        super().__init__(lanes, order, 0)
        self._seeded = bool(seed)
        self._rng = np.random.default_rng(seed)
        if seed:
            warp = np.arange(lanes.rows)
            half = self._rng.integers(0, 2, lanes.rows)
            key = np.repeat(warp // (lanes.rows // ranks) * 2 + half, WARP)
            self._masks = [mask for k in range(2 * ranks) if (mask := key == k).any()]
        self._now = [{} for _ in self._masks]
        self._left = 0

    def pick(self) -> tuple[int, Array] | None:
        if not self._seeded or self._met:
            return super().pick()
        able = [i for i, waiting in enumerate(self._now) if waiting]
        if self._late and (not able or self._rng.random() < 0.1):  # a spinning group looks again
            keys = list(self._late)
            key = keys[int(self._rng.integers(len(keys)))]
            return key[1], self._late.pop(key)
        if not able:
            return None
        if self._left <= 0 or self._running not in able:
            self._running = able[int(self._rng.integers(len(able)))]
            self._left = int(self._rng.integers(1, BURST))
        self._left -= 1
        waiting = self._now[self._running]
        pc = min(waiting, key=self._ranks.__getitem__)
        return pc, waiting.pop(pc)

    @property
    def spinning(self) -> list[tuple[int, Array]]:
        return [(pc, mask) for (_, pc), mask in self._late.items()]


class RankWave(Wave):
    """`params`: [rank][call] parameter bytes, of one length."""

    def __init__(
        self, run: Run, plan: Plan, geometry: RankGeometry, params: Sequence[Sequence[bytes]], boxes: Mailboxes
    ) -> None:
        self.ranks, self._calls = geometry.ranks, len(params[0])
        super().__init__(run, plan, geometry, np.arange(geometry.ctas), params[0][0], {}, Before(), {})
        one = geometry.one
        self.specials = Specials(one, self.ctas % one.ctas)
        self.ready: RankReady = RankReady(self.lanes, plan.ranks, run.seed, self.ranks)
        self._params = np.array([[np.frombuffer(call, np.uint8) for call in rank] for rank in params])
        self.boxes = boxes
        self._now = np.zeros(self.ranks, np.int64)  # the call that each rank is in
        self.waits: tuple[Wait, ...] = ()
        self.rows_of_rank = self.lanes.rows // self.ranks

    @property
    def finished(self) -> Array:
        """Calls that each rank has returned from."""
        return self._now

    def parameter(self, group: Group, start: int, size: int) -> Array:
        at = np.minimum(self._now, self._calls - 1)
        raw = np.ascontiguousarray(self._params[np.arange(self.ranks), at, start : start + size])
        return group.read(np.repeat(raw.view(f"u{size}")[:, 0], self.rows_of_rank * WARP))

    def check_predecessor(self, tensor: Tensor, target: Target, width: int, does: str) -> None:
        self.boxes.touch(self, tensor, target, width, does.startswith("writes"))

    # -- running

    def start(self) -> bool:
        self._cta, self._cluster, self._mbarriers = CtaBarriers(self), ClusterBarrier(self), Mbarriers(self)
        self.barriers, self.cluster, self.mbarriers = self._cta, self._cluster, self._mbarriers
        self.ready.add(0, self.lanes.exists)
        idle, seen = 0, -1
        while self.lanes.alive:
            if seen != self.mutations:
                idle, seen = 0, self.mutations
            elif self.ready.only_late:  # turns in which others compute, or a spinning group pauses, do not count
                idle += 1
                if idle > IDLE * len(self.ready.spinning):
                    self._name_waits()
                    return False
            picked = self.ready.pick()
            if picked is None:
                return self._stuck()
            self.run.check()
            self._execute(picked[0], Group(self.lanes, picked[1]))
        return True

    def _execute(self, pc: int, group: Group) -> None:
        steps, leaders, ready, run = self.plan.steps, self.plan.leaders, self.ready, self.run
        while True:
            self.pc = pc
            run.warps += len(group.rows)
            run.lanes += group.count
            ended = steps[pc](self, group)
            self.boxes.settle(self)
            if ended is not None:
                if not isinstance(ended, Group):
                    return
                group = ended
            opcode = self.plan.instructions[pc].opcode if pc < len(self.plan.instructions) else ""
            pc += 1
            pauses = run.seed and opcode in MEMORY and self.rng.random() < PAUSE
            if (pc in leaders or pauses) and (ready.others or pauses):
                ready.add(pc, group.dense)
                return

    # -- from one call to the next

    def exit(self, group: Group) -> None:
        self.lanes.exit(group.dense)
        self.mutations += 1
        for rank in np.unique(group.rows // self.rows_of_rank).tolist():
            rows = np.arange(rank * self.rows_of_rank, (rank + 1) * self.rows_of_rank)
            if not self.alive_rows[rows].any():
                self._next(rank, rows)
        if self.lanes.alive:
            self.ready.unstall()
            self.barriers.check()

    def _next(self, rank: int, rows: Array) -> None:
        self._now[rank] += 1
        self.boxes.calls[rank] += 1
        if self._now[rank] >= self._calls:
            return
        known = self.clocks.told(rows).max(axis=0)
        self.clocks.learn(rows, known)
        self.clocks.tick(rows)
        heard = [self.heard.pop(row) for row in rows.tolist() if row in self.heard]
        for row in rows.tolist():
            self.fenced.pop(row, None)
            if heard:  # reads of the call before: the next fence of a warp that came after them acquires
                self.heard[row] = np.maximum.reduce(heard)
        self._renew(rows)
        mask = np.zeros(self.lanes.count, np.bool_)
        mask[rows[0] * WARP : (rows[-1] + 1) * WARP] = True
        mask &= self.lanes.exists
        self.lanes.live = self.lanes.live | mask
        self.lanes.alive = int(self.lanes.live.sum())
        self.ready.add(0, mask)

    def _renew(self, rows: Array) -> None:
        """Registers and shared memory of a rank as at the start of a call."""
        part = slice(rows[0] * WARP, (rows[-1] + 1) * WARP)
        made: dict[int, Array] = {}
        for number, register in enumerate(self.registers):
            if id(register) not in made:
                fresh = register.copy()
                fresh[part] = blank(part.stop - part.start, self.plan.kinds[number])
                made[id(register)] = fresh
        self.registers = [made[id(register)] for register in self.registers]
        for number, marks in [*self.undefined.items()]:
            self.undefined[number] = marks.copy()
            self.undefined[number][part] = True
        for number, marks in [*self.marks.items()]:
            self.marks[number] = marks.copy()
            self.marks[number][part] = False
        ctas = self.cta_of_row[rows]
        start, stop = int(ctas[0]) * self.shared_stride, (int(ctas[-1]) + 1) * self.shared_stride
        self.shared.data[start:stop] = 0
        granule = self.shared_region.granule
        for shadow in (self.shared_region.writes, self.shared_region.reads, self.shared_region.others):
            shadow[start // granule : stop // granule] = 0

    # -- deadlock

    def _name_waits(self) -> None:
        sentinels = self.boxes.sentinels
        found = []
        for pc, mask in self.ready.spinning:
            for rank in range(self.ranks):
                lanes = np.flatnonzero(mask[rank * self.rows_of_rank * WARP : (rank + 1) * self.rows_of_rank * WARP])
                if len(lanes):
                    lane = int(lanes[0]) + rank * self.rows_of_rank * WARP
                    found.append(describe(self, pc, lane, rank, int(self._now[rank]), sentinels))
        self.waits = tuple(sorted(found, key=lambda w: (w.rank, w.block, w.line))[:MAX_WAITS])
        self._stuck()
