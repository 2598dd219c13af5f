"""A wave of CTAs of one launch: its registers, memory and barriers, and the loop that runs it."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx.access import Target, place
from kgen.gates.ptx.barriers import ClusterBarrier, CtaBarriers
from kgen.gates.ptx.clocks import Clocks
from kgen.gates.ptx.findings import Finding, Kind, Log
from kgen.gates.ptx.geometry import WARP, Geometry, Specials
from kgen.gates.ptx.matrix.tma import TensorMap
from kgen.gates.ptx.mbarrier import Mbarriers
from kgen.gates.ptx.memory import Block, Space, Tensor
from kgen.gates.ptx.plan import Plan, UnsupportedError
from kgen.gates.ptx.schedule import Ready
from kgen.gates.ptx.shadow import Region
from kgen.gates.ptx.wave import Group, Lanes, blank

Array = npt.NDArray[Any]
IDLE_TURNS, LOOK_EVERY = 256, 64


class StoppedError(Exception):
    """A limit of the run is used up: one line."""


@dataclass(frozen=True)
class Limits:
    """Of one run: warp instructions, wall seconds, bytes of memory beside the caller's arrays."""

    instructions: int = 2_000_000_000
    seconds: float = 600.0
    bytes: int = 4 << 30


@dataclass
class Run:
    """What all launches of a run share."""

    space: Space
    log: Log
    limits: Limits
    seed: int
    started: float = field(default_factory=time.monotonic)
    warps: int = 0  # warp instructions so far
    lanes: int = 0  # thread instructions so far

    def check(self) -> None:
        if self.warps > self.limits.instructions:
            raise StoppedError(f"the budget of {self.limits.instructions} warp instructions is used up")
        if time.monotonic() - self.started > self.limits.seconds:
            raise StoppedError(f"the deadline of {self.limits.seconds:g} s has passed")


@dataclass
class Before:
    """What earlier launches touched that may still run: bytes by tensor name."""

    needs_wait: dict[str, Array] = field(default_factory=dict)  # griddepcontrol.wait orders it
    beyond: dict[str, Array] = field(default_factory=dict)  # not even that: the launch between did not wait


class Machine:
    def __init__(
        self,
        run: Run,
        plan: Plan,
        geometry: Geometry,
        ctas: Array,
        params: bytes,
        regions: dict[str, Region],
        before: Before,
        maps: Mapping[int, TensorMap],
    ) -> None:
        self.run, self.plan, self.geometry, self.ctas = run, plan, geometry, ctas
        self.space, self.before, self._regions = run.space, before, regions
        self.maps = maps  # offset among the parameters -> what the descriptor there describes
        self.lanes = Lanes(len(ctas), geometry.warps, geometry.threads)
        self.cta_of_row = np.repeat(np.arange(len(ctas)), geometry.warps)
        self.cluster_of_row = self.cta_of_row // geometry.cluster_size
        self.shared_stride = -(-max(geometry.shared, 16) // 32) * 32
        self.local_size = -(-plan.local // 32) * 32
        self._afford()
        self.specials = Specials(geometry, ctas)
        blanks = {kind: blank(self.lanes.count, kind) for kind in set(plan.kinds)}
        self.registers: list[Array] = [blanks[kind] for kind in plan.kinds]
        self.shared = Block(np.zeros(self.shared_stride * len(ctas), np.uint8))
        self.shared_region = Region(len(self.shared.data), plan.granules["shared"])
        self.local = Block(np.zeros(max(self.local_size * self.lanes.count, 32), np.uint8))
        self.params = Block(np.frombuffer(params + bytes(-len(params) % 32 + 32), np.uint8).copy())
        self.clocks = Clocks(geometry, ctas, self.lanes, plan.whole_grid, "mbarrier" in plan.uses, plan.proxy)
        self.rng = np.random.default_rng(run.seed)
        self.ready = Ready(self.lanes, plan.ranks, run.seed)
        self.barriers, self.cluster, self.mbarriers = CtaBarriers(self), ClusterBarrier(self), Mbarriers(self)
        self.carry = np.zeros(self.lanes.count, np.bool_)
        self.commits = np.zeros(self.lanes.count, np.int64)  # committed groups of cp.async
        self.bulk_commits = np.zeros(self.lanes.count, np.int64)
        self.wgmma_commits = np.zeros(self.lanes.rows, np.int64)
        self.wgmma_done = np.zeros(self.lanes.rows, np.int64)  # groups that a warp has waited for
        self.wgmma_open: dict[int, Array] = {}  # accumulator -> group of each warp that writes it last
        self.fenced: dict[int, Array] = {}  # warp -> what it knew at its last fence
        self.heard: dict[int, Array] = {}  # warp -> what strong reads told it, for its next fence
        self.sync: dict[tuple[int, int], Array] = {}  # (block, offset) -> what releases there told
        self.marks: dict[int, Array] = {}  # register -> lanes whose index arithmetic wrapped around
        self.waited = np.zeros(self.lanes.rows, np.bool_)
        self.ended = np.zeros(len(ctas), np.bool_)  # CTAs of clusters
        self.pc, self.mutations = 0, 0
        self._clock = 0

    def _afford(self) -> None:
        lane = sum({"pred": 1, "b8": 1, "b16": 2, "b32": 4, "b64": 8, "b128": 16}[k] for k in self.plan.kinds)
        granules = self.shared_stride // self.plan.granules["shared"] * 32 + self.shared_stride
        need = self.lanes.count * (lane + self.local_size) + granules * self.lanes.ctas
        if need > self.run.limits.bytes:
            raise StoppedError(f"{need >> 20} MiB of registers and shared memory exceed the memory budget")

    # -- lanes

    @property
    def everyone(self) -> bool:
        """Whether no thread has exited."""
        return self.lanes.alive == self.lanes.born

    @property
    def alive_rows(self) -> Array:
        found: Array = self.lanes.live.reshape(-1, WARP).any(axis=1)
        return found

    def mask_of_rows(self, rows: Array) -> Array:
        chosen = np.zeros(self.lanes.rows, np.bool_)
        chosen[rows] = True
        found: Array = np.repeat(chosen, WARP) & self.lanes.live
        return found

    def group_of_rows(self, rows: Array) -> Group | None:
        return Group(self.lanes, self.mask_of_rows(rows)) if len(rows) else None

    def special(self, name: str) -> Array:
        """Values of a special register over all lanes; clocks go on with every read."""
        if name in ("%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"):
            self._clock += 64
            wide = np.full(self.lanes.count, self.run.warps * 4 + self._clock, np.uint64)
            return wide if name.endswith("64") or name == "%globaltimer" else wide.astype(np.uint32)
        found = self.specials.get(name)
        if found is None:
            raise UnsupportedError(self.plan.instructions[self.pc], f"special register {name}")
        return found

    # -- memory

    def region(self, tensor: Tensor) -> Region | None:
        if not tensor.writable:
            return None
        if tensor.name not in self._regions:
            if len(tensor.data) // self.plan.granules["global"] * 32 > self.run.limits.bytes:
                raise StoppedError(f"the shadow of {tensor.name} does not fit into the memory budget")
            self._regions[tensor.name] = Region(len(tensor.data), self.plan.granules["global"])
        return self._regions[tensor.name]

    def check_predecessor(self, tensor: Tensor, target: Target, width: int, does: str) -> None:
        for table, text in ((self.before.needs_wait, ""), (self.before.beyond, " (the launch between did not wait)")):
            touched = table.get(tensor.name)
            if touched is None:
                continue
            rows = np.take(touched.reshape(-1, width), target.offsets // width, axis=0).any(axis=1)
            if not text:
                rows &= ~self.clocks.knows_predecessor(target.index)
            if rows.any():
                message = f"{does} an earlier launch touched, which griddepcontrol.wait has not ordered{text}"
                self.report(Kind.PDL, message, target.keep(rows))

    # -- findings

    def report(self, kind: Kind, message: str, target: Target, local: Array | None = None) -> None:
        """The first of some accesses, and their number."""
        if len(target.index):
            tensor, index, address = place(self, target, 0)
            self._log(kind, message, int(target.index[0]), len(target.index), address, tensor, index, self.pc)

    def report_lanes(self, kind: Kind, message: str, lanes: Array, pc: int | None = None) -> None:
        if len(lanes):
            self._log(kind, message, int(lanes[0]), len(lanes), 0, "", (), self.pc if pc is None else pc)

    def report_rows(self, kind: Kind, message: str, rows: Array, pc: int | None = None) -> None:
        self.report_lanes(kind, message, rows * WARP, pc)

    def _log(
        self,
        kind: Kind,
        message: str,
        lane: int,
        times: int,
        address: int,
        tensor: str,
        index: tuple[int, ...],
        pc: int,
    ) -> None:
        instruction = self.plan.instructions[min(pc, len(self.plan.instructions) - 1)]
        cta = lane // (self.lanes.warps * WARP)
        thread = self.geometry.thread_of(lane % (self.lanes.warps * WARP))
        block = self.geometry.block_of(int(self.ctas[cta]))
        name, text, line = self.plan.entry.name, instruction.text, instruction.line
        self.run.log.add(Finding(kind, message, name, text, line, block, thread, address, tensor, index, times))

    def give_up(self, why: str) -> None:
        """Raises UnsupportedError for what the interpreter has no room for."""
        raise UnsupportedError(self.plan.instructions[self.pc], why)

    # -- running

    def start(self) -> bool:
        """Runs the wave to its end. False after a deadlock."""
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
                self.mbarriers.land()
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
        self.barriers.stuck()
        self.cluster.stuck()
        self.mbarriers.stuck()
        return False

    def exit(self, group: Group) -> None:
        self.lanes.exit(group.dense)
        if self.geometry.cluster_size > 1:
            self._leave(group)
        self.mutations += 1
        if self.lanes.alive:
            self.ready.unstall()
            self.barriers.check()
            self.cluster.check()

    def _leave(self, group: Group) -> None:
        """CTAs that end here while others of their cluster may still touch their shared memory."""
        alive = self.lanes.live.reshape(self.lanes.ctas, -1).any(axis=1)
        gone = np.unique(self.lanes.cta[group.index])
        for cta in gone[~alive[gone]].tolist():
            self.ended[cta] = True
            lane = int(group.index[np.searchsorted(self.lanes.cta[group.index], cta, side="right") - 1])
            text = "the CTA ends while another one of its cluster may still use its shared memory"
            if self.shared_region.foreign(self.clocks, cta, self.shared_stride, lane).any():
                self.report_lanes(Kind.CLUSTER, text, np.array([lane]))
