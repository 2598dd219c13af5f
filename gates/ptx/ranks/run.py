"""Runs several ranks' calls of one kernel: PTX, launches and arrays of each rank in; outputs, faults and waits out.

    result = run(ptx, calls, buffers, [Shared("box", "bf16", (2, 2, 4, 256), box_bytes, sentinel=0x80000000)], seed=1)

calls[rank][n] is rank's launch number n; buffers[rank] are its own arrays by name. Each `Shared` exists once on every
rank; a launch names it as "box", and the addresses of all its copies, in rank order, as "box_peers" (i64 [ranks]).
One kernel a call, the same grid in all of them, no clusters, mbarriers, bulk copies or dependent launches: those end a
run as a skip. No multicast instruction is known here, so a kernel that has one is a skip too.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx import memory
from kgen.gates.ptx.budget import Limits, Run, StoppedError, UnsupportedError
from kgen.gates.ptx.decode import plan
from kgen.gates.ptx.findings import Finding, Log
from kgen.gates.ptx.geometry import WARP
from kgen.gates.ptx.launch import ITEM_BYTES, Buffer, parameters
from kgen.gates.ptx.memory import Space, Tensor
from kgen.gates.ptx.parse import parse
from kgen.gates.ptx.ranks.mailbox import Box, Fault, Mailboxes
from kgen.gates.ptx.ranks.scopes import for_ranks
from kgen.gates.ptx.ranks.waits import Wait
from kgen.gates.ptx.ranks.wave import RankGeometry, RankWave
from kgen.gates.ptx.syntax import Entry
from kgen.gates.ptx.tokens import PtxError
from kgen.records import Launch

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Shared:
    """A symmetric buffer. `data`: its first bytes on every rank (uint8, flat); `sentinel`: a mailbox's, else None."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Array
    sentinel: int | None = None


@dataclass(frozen=True)
class RankResult:
    """`outputs[rank]`: bytes by name of every buffer that may be written, symmetric ones too. `calls[rank]`: calls that
    a rank has returned from. `waits`: who waits for what for ever. `skipped`, `stopped`: as of one rank's `Result`."""

    outputs: tuple[Mapping[str, Array], ...]
    findings: tuple[Finding, ...]
    faults: tuple[Fault, ...]
    waits: tuple[Wait, ...]
    calls: tuple[int, ...]
    warps: int
    seconds: float
    skipped: str = ""
    stopped: str = ""

    @property
    def whole(self) -> bool:
        """Whether all ranks returned from all calls."""
        return not (self.skipped or self.stopped)

    @property
    def complaints(self) -> list[str]:
        """Everything that speaks against the kernel but its numbers; one line each."""
        ended = [text for text in (self.skipped, self.stopped) if text]
        return [*map(str, self.waits), *map(str, self.faults), *map(str, self.findings), *ended]


def run(
    ptx: str,
    calls: Sequence[Sequence[Launch]],
    buffers: Sequence[Mapping[str, Buffer]],
    shared: Sequence[Shared] = (),
    seed: int = 0,
    limits: Limits | None = None,
) -> RankResult:
    """Raises PtxError (one line) for malformed PTX, or launches that do not fit it or each other."""
    started = time.monotonic()
    ranks, launches = len(calls), [launch for rank in calls for launch in rank]
    if not launches or len(buffers) != ranks or len({len(rank) for rank in calls}) > 1:
        raise PtxError(0, "every rank needs its buffers and as many calls as the others")
    shapes = {(x.kernel, x.grid, x.block, x.cluster, x.dynamic_smem) for x in launches}
    if len(shapes) > 1:
        raise PtxError(0, f"the ranks' calls launch {len(shapes)} different kernels or grids; one is modelled")
    space = Space()
    made = Run(space, Log(), limits or Limits(), seed)
    boxes = _fill(space, buffers, shared)
    skipped = stopped = ""
    wave: RankWave | None = None
    try:
        with np.errstate(all="ignore"):
            wave = _wave(made, ptx, calls, boxes)
            if not wave.start():
                stopped = f"{launches[0].kernel[:60]} cannot go on: see the waits and findings"
    except UnsupportedError as error:
        skipped = str(error)
    except StoppedError as error:
        stopped = str(error)
    mine = [{t.name: t for t in space.tensors if t.writable and t.name.endswith(f"@{r}")} for r in range(ranks)]
    outputs = tuple({n.rpartition("@")[0]: t.data[: t.nbytes] for n, t in of.items()} for of in mine)
    faults, waits = (wave.boxes.faults, wave.waits) if wave else ((), ())
    done = tuple(int(n) for n in wave.finished) if wave else (0,) * ranks
    seconds = time.monotonic() - started
    return RankResult(outputs, made.log.all(), faults, waits, done, made.warps, seconds, skipped, stopped)


def _fill(space: Space, buffers: Sequence[Mapping[str, Buffer]], shared: Sequence[Shared]) -> list[Box]:
    """Puts every rank's memory into the space, as NAME@RANK."""
    boxes = []
    homes: dict[str, list[int]] = {s.name: [] for s in shared}
    for rank, own in enumerate(buffers):
        for name, b in own.items():
            shape = (b.shape, ITEM_BYTES[b.dtype], b.initialised, b.strides)
            space.add(memory.tensor(f"{name}@{rank}", b.data, b.role, *shape))
        for s in shared:
            made = memory.tensor(f"{s.name}@{rank}", s.data, "workspace", s.shape, ITEM_BYTES[s.dtype], True)
            made.own()
            homes[s.name].append(space.add(made).base)
            if s.sentinel is not None:
                boxes.append(Box.of(made, rank, s.sentinel))
    for rank in range(len(buffers)):
        for name, bases in homes.items():
            addresses = np.array(bases, np.int64)
            space.add(_tensor(f"{name}_peers@{rank}", addresses))
    return boxes


def _tensor(name: str, addresses: Array) -> Tensor:
    return memory.tensor(name, addresses.view(np.uint8), "in", addresses.shape, 8, True)


def _wave(made: Run, ptx: str, calls: Sequence[Sequence[Launch]], boxes: list[Box]) -> RankWave:
    module, first = parse(ptx), calls[0][0]
    entry = module.entries.get(first.kernel)
    if entry is None:
        raise PtxError(0, f"the PTX has no entry {first.kernel[:80]}")
    if any(launch.attributes.get("pdl") for rank in calls for launch in rank):
        raise UnsupportedError(entry.instructions[0], "dependent launches are not modelled for several ranks")
    planned = plan(module, for_ranks(entry), made.space)
    geometry = RankGeometry(first.grid, first.block, first.cluster, planned.shared + first.dynamic_smem, len(calls))
    lanes = geometry.one.ctas * geometry.warps * WARP
    params = [[_params(made.space, entry, launch, rank) for launch in mine] for rank, mine in enumerate(calls)]
    whole = replace(planned, whole_grid=True)
    return RankWave(made, whole, geometry, params, Mailboxes(boxes, len(calls), lanes))


def _params(space: Space, entry: Entry, launch: Launch, rank: int) -> bytes:
    args = tuple(replace(a, tensor=f"{a.tensor}@{rank}") if a.tensor else a for a in launch.args)
    return parameters(space, entry, replace(launch, args=args), {})[0]
