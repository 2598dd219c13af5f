"""The loop that runs a wave: picks lanes, executes their steps, and says why nothing can go on."""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx.barriers import ClusterBarrier, CtaBarriers
from kgen.gates.ptx.findings import Kind
from kgen.gates.ptx.mbarrier import Mbarriers
from kgen.gates.ptx.state import Machine
from kgen.gates.ptx.wave import Group

Array = npt.NDArray[Any]
IDLE_TURNS, LOOK_EVERY = 256, 64


class Wave(Machine):
    def start(self) -> bool:
        """Runs the wave to its end. False after a deadlock."""
        self._cta, self._cluster, self._mbarriers = CtaBarriers(self), ClusterBarrier(self), Mbarriers(self)
        self.barriers, self.cluster, self.mbarriers = self._cta, self._cluster, self._mbarriers
        self.ready.add(0, self.lanes.exists)
        idle, seen, mark = 0, self.mutations, b""
        while self.lanes.alive:
            if self.ready.only_late and seen == self.mutations:
                idle += 1
                if idle > IDLE_TURNS and idle % LOOK_EVERY == 0:
                    now = self._fingerprint()
                    if now == mark:
                        self._spinning()
                        return False
                    mark = now
            else:
                idle, seen = 0, self.mutations
            if not self.ready.others:
                self._mbarriers.land()
            picked = self.ready.pick()
            if picked is None:
                return self._stuck()
            self.run.check()
            self._execute(picked[0], Group(self.lanes, picked[1]))
        return True

    def _execute(self, pc: int, group: Group) -> None:
        """Until the group ends, parts, waits, or comes to where other lanes may join it."""
        steps, leaders, ready, run = self.plan.steps, self.plan.leaders, self.ready, self.run
        while True:
            self.pc = pc
            run.warps += len(group.rows)
            run.lanes += group.count
            ended = steps[pc](self, group)
            if ended is not None:
                if not isinstance(ended, Group):
                    return
                group = ended
            pc += 1
            if pc in leaders and ready.others:
                ready.add(pc, group.dense)
                return

    def _fingerprint(self) -> bytes:
        found = hashlib.blake2b(digest_size=16)
        for register in self.registers:
            found.update(np.ascontiguousarray(register).data)
        return found.digest()

    def _spinning(self) -> None:
        while (picked := self.ready.pick()) is not None:
            pc, mask = picked
            at = next((i for i in range(pc, len(self.plan.instructions)) if i in self.plan.spins), pc)
            text = "spins for ever: nobody who can still run will change what it waits for"
            self.report_lanes(Kind.DEADLOCK, text, np.flatnonzero(mask), at)
        self._stuck()

    def _stuck(self) -> bool:
        for pc, mask in self.ready.stalled.items():
            text = "waits for lanes of its own warp that never come here"
            self.report_lanes(Kind.BARRIER, text, np.flatnonzero(mask), pc)
        self._cta.stuck()
        self._cluster.stuck()
        self._mbarriers.stuck()
        return False
