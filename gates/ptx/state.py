"""State of a wave of CTAs of one launch: its plan, registers, memory, knowledge, and how findings are made of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx.budget import Before, Run, StoppedError, UnsupportedError
from kgen.gates.ptx.clocks import Clocks
from kgen.gates.ptx.findings import Finding, Kind
from kgen.gates.ptx.geometry import WARP, Geometry, Specials
from kgen.gates.ptx.inflight import InFlight
from kgen.gates.ptx.matrix.tma import TensorMap
from kgen.gates.ptx.memory import Block, Tensor
from kgen.gates.ptx.schedule import Ready
from kgen.gates.ptx.shadow import Region
from kgen.gates.ptx.syntax import Entry, Instruction
from kgen.gates.ptx.target import Target, place
from kgen.gates.ptx.wave import Group, Lanes, blank

Array = npt.NDArray[Any]
# None: the group goes on; a group: only these lanes go on; False: none does (parked, gone or ready elsewhere)
Ended = Group | bool | None
Step = Callable[["Machine", Group], Ended]
Reader = Callable[["Machine", Group], Array]


@dataclass
class Plan:
    entry: Entry
    instructions: tuple[Instruction, ...]
    steps: list[Step]
    kinds: list[str]  # of registers, by number
    leaders: frozenset[int]
    ranks: list[int]
    shared: int  # bytes of static shared memory
    local: int  # bytes of one thread's local memory
    granules: Mapping[str, int]  # "shared", "global" -> bytes of the narrowest access
    spins: Mapping[int, bool]  # branch backwards -> whether it can wait for another thread
    whole_grid: bool  # CTAs may synchronise through global memory
    proxies: frozenset[str]  # spaces that asynchronous work reads and threads may write: "shared", "global"
    uses: frozenset[str] = field(default_factory=frozenset)  # opcodes
    stores: bool = False  # bulk stores
    followed: tuple[int, ...] = ()  # registers that may be read before they are written


class CtaTable(Protocol):
    """Barriers of CTAs: barriers.py."""

    def sync(self, group: Group, number: int, threads: int) -> bool: ...
    def arrive(self, group: Group, number: int, threads: int) -> Group | None: ...
    def reduce(self, group: Group, number: int, threads: int, yes: Array, result: int, op: str) -> None: ...
    def check(self) -> None: ...


class ClusterTable(Protocol):
    """Barriers of clusters: barriers.py."""

    met: Array  # what each CTA was told, by relaxed arrivals too

    def arrive(self, group: Group, release: bool) -> Group | None: ...
    def wait(self, group: Group) -> Group | None: ...
    def depart(self, rows: Array) -> None: ...
    def check(self) -> None: ...


class MbarrierTable(Protocol):
    """mbarrier objects: mbarrier.py."""

    def locate(
        self, space: str, addresses: Array, index: Array, fresh: bool = False, copies: bool = False
    ) -> tuple[Array, Array, Array]: ...
    def show(self, group: Group, proxy: bool) -> None: ...
    def init(self, group: Group, space: str, addresses: Array, counts: Array) -> None: ...
    def invalidate(self, group: Group, space: str, addresses: Array) -> None: ...
    def teach(self, cta: Array, slot: Array, rows: Array, those: Array, known: Array) -> None: ...
    def expect(self, cta: Array, slot: Array, count: Array) -> None: ...
    def arrive(
        self, group: Group, at: Array, cta: Array, slot: Array, counts: Array, release: bool = True
    ) -> Array: ...
    def drop(self, cta: Array, slot: Array) -> None: ...
    def complete(self, cta: Array, slot: Array, count: Array) -> None: ...
    def finished(self, cta: Array, slot: Array, phase: Array, parity: bool) -> Array: ...
    def learn(self, index: Array, cta: Array, slot: Array) -> None: ...
    def park(self, lanes: Array, cta: Array, slot: Array) -> None: ...
    def stamp(self, cta: Array, slot: Array) -> Array: ...


class Machine:
    """State alone; what makes it run is in machine.py, which also sets the three tables of barriers."""

    barriers: CtaTable
    cluster: ClusterTable
    mbarriers: MbarrierTable

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
        self.clocks = Clocks(
            geometry, ctas, self.lanes, plan.whole_grid, "mbarrier" in plan.uses, plan.stores, plan.proxies
        )
        self.rng = np.random.default_rng(run.seed)
        self.ready = Ready(self.lanes, plan.ranks, run.seed)
        self.carry = np.zeros(self.lanes.count, np.bool_)
        self.commits = np.zeros(self.lanes.count, np.int64)  # committed groups of cp.async
        self.bulk_commits = np.zeros(self.lanes.count, np.int64)
        self.inflight = InFlight(self.lanes.rows)
        # register -> lanes for which it holds nothing that was computed
        self.undefined = {number: np.ones(self.lanes.count, np.bool_) for number in plan.followed}
        self.fenced: dict[int, Array] = {}  # warp -> what it knew at its last fence of a smaller scope
        self.heard: dict[int, Array] = {}  # warp -> what strong reads told it, for its next fence
        # (block, offset) -> (scope, who is within it) -> what releases there told
        self.sync: dict[tuple[int, int], dict[tuple[int, int], Array]] = {}
        self.marks: dict[int, Array] = {}  # register -> lanes whose index arithmetic wrapped around
        self.waited = np.zeros(self.lanes.rows, np.bool_)
        self.ended = np.zeros(len(ctas), np.bool_)  # CTAs of clusters
        self.pc, self.mutations = 0, 0
        self._clock = 0

    def _afford(self) -> None:
        lane = sum({"pred": 1, "b8": 1, "b16": 2, "b32": 4, "b64": 8, "b128": 16}[k] for k in self.plan.kinds)
        lane += len(self.plan.followed)
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
        found: Array = np.any(self.lanes.live.reshape(-1, WARP), axis=1)
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

    def parameter(self, group: Group, start: int, size: int) -> Array:
        """The word of `size` bytes at an offset among the parameters: one for all lanes."""
        found: Array = self.params.data[start : start + size].copy().view(f"u{size}")
        return found

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
            rows: Array = np.any(np.take(touched.reshape(-1, width), target.offsets // width, axis=0), axis=1)
            if not text:
                rows &= ~self.clocks.knows_predecessor(target.index)
            if rows.any():
                message = f"{does} an earlier launch touched, which griddepcontrol.wait has not ordered{text}"
                self.report(Kind.PDL, message, target.keep(rows))

    # -- findings

    def report(self, kind: Kind, message: str, target: Target, local: Array | None = None) -> None:
        """The first of some accesses, and their number."""
        if len(target.index):
            tensor, index, address = place(self.space, target, 0)
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

    def stop(self, kind: Kind, message: str, lanes: Array) -> NoReturn:
        """Reports what the hardware would not survive, and ends the run."""
        self.report_lanes(kind, message, lanes)
        raise StoppedError(f"{self.plan.entry.name[:60]} cannot go on: {message}")

    def give_up(self, why: str) -> NoReturn:
        """Raises UnsupportedError for what the interpreter has no room for."""
        raise UnsupportedError(self.plan.instructions[self.pc], why)

    def exit(self, group: Group) -> None:
        """Threads end: who waits for them looks again."""
        self.lanes.exit(group.dense)
        if self.geometry.cluster_size > 1 or "shared" in self.plan.proxies:
            self._leave(group)
        self.mutations += 1
        if self.lanes.alive:
            self.ready.unstall()
            self.barriers.check()
            self.cluster.check()

    def _leave(self, group: Group) -> None:
        """CTAs that end here while others of their cluster, or bulk stores, may still touch their shared memory."""
        alive: Array = np.any(self.lanes.live.reshape(self.lanes.ctas, -1), axis=1)
        gone = np.unique(self.lanes.cta[group.index])
        for cta in gone[~alive[gone]].tolist():
            rows = self.shared_region.unread(self.clocks, cta, self.shared_stride)
            text = "the CTA ends while a bulk store that nobody waited for may still read its shared memory"
            self.report_lanes(Kind.ASYNC, text, rows * WARP)
            if self.geometry.cluster_size == 1:
                continue
            self.ended[cta] = True
            self.cluster.depart(np.flatnonzero(self.cta_of_row == cta))
            lane = int(group.index[np.searchsorted(self.lanes.cta[group.index], cta, side="right") - 1])
            text = "the CTA ends while another one of its cluster may still use its shared memory"
            if self.shared_region.foreign(self.clocks, cta, self.shared_stride, lane).any():
                self.report_lanes(Kind.CLUSTER, text, np.array([lane]))
