"""Bulk copies between global and shared memory, also to several CTAs of a cluster, and with reductions.

That a bulk copy writes over what was read or written before needs no fence here but the usual order.
"""

from collections.abc import Iterator

import numpy as np

from kgen.gates.ptx.access import load, put, resolve
from kgen.gates.ptx.arith import width
from kgen.gates.ptx.budget import UnsupportedError
from kgen.gates.ptx.findings import Kind
from kgen.gates.ptx.geometry import MAX_SHARED, WARP
from kgen.gates.ptx.memory import RANK_BITS
from kgen.gates.ptx.plan import Decoder
from kgen.gates.ptx.state import Array, Ended, Machine, Step
from kgen.gates.ptx.steps.atomic import Function, reduction
from kgen.gates.ptx.steps.register import is_immediate
from kgen.gates.ptx.syntax import Instruction
from kgen.gates.ptx.tokens import PtxError
from kgen.gates.ptx.wave import Group

AT_A_TIME = 1 << 26  # bytes that move as one vector
READ, WRITTEN = 2, 4  # agents of a warp: what its bulk stores read, and what they write


def landed(m: "Machine", g: Group, commits: Array, allowed: int, *kinds: int) -> None:
    """The warps know the copies of their groups, but for the last `allowed` of them."""
    rows = g.rows
    known = np.full(m.lanes.count, np.iinfo(np.int64).max)
    known[g.index] = commits[g.index] - allowed
    least = np.maximum(known.reshape(-1, WARP).min(axis=1)[rows], 0).astype(np.uint32)
    if kinds == (1,):
        m.clocks.waited(rows, least)
        return
    for kind in kinds:
        column = m.clocks.local(rows, kind)
        m.clocks.vc[rows, column] = np.maximum(m.clocks.vc[rows, column], least)


def commit(m: "Machine", g: Group) -> Ended:
    m.bulk_commits[g.index] += 1
    return None


def wait(d: Decoder, i: Instruction) -> Step:
    allowed = is_immediate(i.operands[0])
    if allowed is None:
        raise PtxError(i.line, "cp.async.bulk.wait_group takes a number")

    kinds = (READ,) if "read" in i.modifiers else (READ, WRITTEN)

    def step(m: "Machine", g: Group) -> Ended:
        if m.plan.stores:
            landed(m, g, m.bulk_commits, allowed, *kinds)
        return None

    return step


def stores_stamp(m: "Machine", index: Array, kind: int) -> Array:
    """Stamps of what bulk stores read or write that the lanes issue into their open group."""
    agents = (m.clocks.own + kind * m.lanes.warps)[m.lanes.row[index]]
    return m.clocks.agent_stamps(agents, m.bulk_commits[index] + 1)


def spread(low: Array, masks: Array) -> tuple[Array, Array]:
    """shared::cluster addresses in the CTAs of multicast masks, and the position of the lane of each."""
    lane, rank = np.nonzero((masks.astype(np.int64)[:, None] >> np.arange(16)) & 1)
    inside = low[lane] & np.uint64((1 << RANK_BITS) - 1)
    return inside | ((rank + 1).astype(np.uint64) << np.uint64(RANK_BITS)), lane


def _pieces(addresses: Array, size: int) -> Array:
    """(n,) starts -> (n x size / 16,) addresses of 16 bytes each."""
    steps = np.arange(0, size, 16, dtype=np.uint64)
    return (addresses[:, None] + steps).reshape(-1)


def _by_size(m: "Machine", sizes: Array, index: Array) -> Iterator[tuple[int, Array]]:
    """Positions of copies of one size, not too many at a time. Sizes that cannot be are reported."""
    for size in np.unique(sizes).tolist():
        some = np.flatnonzero(sizes == size)
        if size % 16 or size > MAX_SHARED:
            m.report_lanes(Kind.MISALIGNED, f"a bulk copy of {size} bytes cannot be", index[some])
        elif size:
            for part in np.array_split(some, -(-len(some) * size // AT_A_TIME)):
                m.run.check()
                yield size, part


def copy(d: Decoder, i: Instruction, spaces: tuple[str, ...]) -> Step:
    to_space, from_space = spaces[0], spaces[1]
    to, source = d.address(i.operands[0], i), d.address(i.operands[1], i)
    count = d.picked(i.operands[2], "u32", i)
    if to_space == "global" and from_space.startswith("shared") and "bulk_group" in spaces:
        return _store(d, i, from_space)
    if not to_space.startswith("shared") or "mbarrier::complete_tx::bytes" not in spaces or "reduce" in i.modifiers:
        raise UnsupportedError(i)
    barrier = d.address(i.operands[3], i)
    mask = d.picked(i.operands[4], "b16", i) if "multicast::cluster" in spaces else None

    def step(m: "Machine", g: Group) -> Ended:
        places, barriers, lane = to(m, g), barrier(m, g), np.arange(g.count)
        sizes, sources = count(m, g).astype(np.int64), source(m, g)
        if mask is not None:
            masks = mask(m, g)
            places, lane = spread(places, masks)
            barriers = spread(barriers, masks)[0]
        at, cta, slot = m.mbarriers.locate("shared::cluster", barriers, g.index[lane], copies=True)
        stamps = m.mbarriers.stamp(cta, slot)
        for size, some in _by_size(m, sizes[lane[at]], g.index[lane[at]]):
            who = lane[at[some]]
            index = np.repeat(g.index[who], size // 16)
            marks = np.repeat(stamps[some], size // 16)
            values = load(m, from_space, _pieces(sources[who], size), index, 16, 0, marks)
            for target in resolve(m, "shared::cluster", _pieces(places[at[some]], size), index, 16, True):
                chosen = slice(None) if target.at is None else target.at
                put(m, target, 16, values[chosen], 0, marks[chosen])
        m.mbarriers.complete(cta, slot, sizes[lane[at]])
        return None

    return step


def _store(d: Decoder, i: Instruction, from_space: str) -> Step:
    """Shared to global memory, also with a reduction (cp.reduce)."""
    to, source, count = d.address(i.operands[0], i), d.address(i.operands[1], i), d.picked(i.operands[2], "u32", i)
    reduces = i.modifiers[0] == "reduce"
    kind = i.modifiers[-1]
    function = (
        reduction(i, i.modifiers[-3] if i.modifiers[-2] == "noftz" else i.modifiers[-2], kind) if reduces else None
    )

    def step(m: "Machine", g: Group) -> Ended:
        places, sources = to(m, g), source(m, g)
        reads, writes = stores_stamp(m, g.index, READ), stores_stamp(m, g.index, WRITTEN)
        for size, some in _by_size(m, count(m, g).astype(np.int64), g.index):
            index = np.repeat(g.index[some], size // 16)
            stamps = np.repeat(writes[some], size // 16)
            marks = np.repeat(reads[some], size // 16)
            values = load(m, from_space, _pieces(sources[some], size), index, 16, 0, marks)
            for target in resolve(m, "global", _pieces(places[some], size), index, 16, True):
                at = slice(None) if target.at is None else target.at
                new = values[at]
                if function is not None:
                    new = reduced(function, target.block.load(target.offsets, 16), new, kind)
                put(m, target, 16, new, 3 if reduces else 0, stamps[at])
        return None

    return step


def reduced(function: Function, old: Array, new: Array, kind: str) -> Array:
    """Element-wise reduction of (n, 4) words as elements of a type."""
    element = f"u{width(kind) // 8}"
    found: Array = function(np.ascontiguousarray(old).view(element), np.ascontiguousarray(new).view(element), None)
    return np.ascontiguousarray(found).view(np.uint32)
