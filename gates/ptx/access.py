"""Loads and stores of a group of lanes: which memory an address means, which accesses are faults, what is reported.

A faulty access is reported and left out: it reads zeros and writes nothing.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx.clocks import AGENT
from kgen.gates.ptx.findings import Kind
from kgen.gates.ptx.memory import (
    LOCAL_WINDOW,
    PARAM_WINDOW,
    RANK_BITS,
    SHARED_START,
    SHARED_WINDOW,
    WORD,
    Block,
)
from kgen.gates.ptx.shadow import Conflict
from kgen.gates.ptx.state import Machine
from kgen.gates.ptx.target import Target

Array = npt.NDArray[Any]
LOW = np.uint64((1 << 32) - 1)


def resolve(m: "Machine", space: str, addresses: Array, index: Array, width: int, writes: bool) -> Iterator[Target]:
    """Right accesses by target; wrong ones are reported."""
    if not len(addresses):
        return
    if space in ("shared", "shared::cta", "shared::cluster"):
        yield from _shared(m, addresses & LOW, index, width, None, space == "shared::cluster")
    elif space in ("global", "const"):
        yield from _global(m, addresses, index, width, None, writes)
    elif space == "local":
        yield from _flat(m, m.local, m.local_size, addresses & LOW, index, index, width, None)
    else:
        yield from _generic(m, addresses, index, width, writes)


def _generic(m: "Machine", addresses: Array, index: Array, width: int, writes: bool) -> Iterator[Target]:
    window = (addresses >> np.uint64(60)).astype(np.int64)
    if not window.any():
        yield from _global(m, addresses, index, width, None, writes)
        return
    for kind in np.unique(window).tolist():
        at = np.flatnonzero(window == kind)
        some, lanes = addresses[at], index[at]
        if kind == SHARED_WINDOW >> 60:
            yield from _shared(m, some & LOW, lanes, width, at, True)
        elif kind == LOCAL_WINDOW >> 60:
            yield from _flat(m, m.local, m.local_size, some & LOW, lanes, lanes, width, at)
        elif kind == PARAM_WINDOW >> 60:
            yield from _flat(m, m.params, 0, some & LOW, np.zeros_like(lanes), lanes, width, at)
        else:
            yield from _global(m, some, lanes, width, at, writes)


def _right(m: "Machine", target: Target, size: int, local: Array, width: int) -> Target | None:
    """The accesses within `size` bytes (by offset `local`) and aligned; None without any."""
    inside = (local >= 0) & (local <= size - width)
    aligned = (target.addresses & np.uint64(width - 1)) == 0
    right = inside & aligned
    if right.all():
        return target
    whole = f"{size} bytes"
    wrong = target.keep(~inside)
    m.report(Kind.OUT_OF_BOUNDS, f"{width} bytes outside of the {whole}", wrong, local[~inside])
    crooked = inside & ~aligned
    m.report(Kind.MISALIGNED, f"the address of {width} bytes is no multiple of {width}", target.keep(crooked))
    return target.keep(right) if right.any() else None


def _global(
    m: "Machine", addresses: Array, index: Array, width: int, at: Array | None, writes: bool
) -> Iterator[Target]:
    number = m.space.number(addresses)
    first = int(number[0])
    several = not (number == first).all()
    for which in np.unique(number).tolist() if several else [first]:
        chosen = np.flatnonzero(number == which) if several else None
        some, lanes = (addresses, index) if chosen is None else (addresses[chosen], index[chosen])
        places = at if chosen is None else chosen if at is None else at[chosen]
        if not 0 <= which < len(m.space.tensors):
            lost = Target(m.params, None, None, some.astype(np.int64), lanes, some, places)
            m.report(Kind.OUT_OF_BOUNDS, f"{width} bytes at an address that no tensor is near", lost)
            continue
        tensor = m.space.tensors[which]
        local = some.astype(np.int64) - tensor.base
        region = m.region(tensor) if tensor.writable or writes else None
        target = _right(m, Target(tensor, region, tensor, local, lanes, some, places), tensor.nbytes, local, width)
        if target is not None:
            yield target


def _shared(
    m: "Machine", addresses: Array, index: Array, width: int, at: Array | None, cluster: bool
) -> Iterator[Target]:
    cta = m.lanes.cta[index]
    low = addresses.astype(np.int64)
    rank = low >> RANK_BITS
    if cluster and rank.any():
        size = m.geometry.cluster_size
        peer = np.minimum(rank - 1, size)  # beyond the cluster: out of bounds below
        low = np.where((rank > 0) & (peer < size), low & ((1 << RANK_BITS) - 1), low)
        cta = np.where((rank > 0) & (peer < size), cta // size * size + peer, cta)
        if m.ended.any() and (late := m.ended[cta]).any():
            lost = Target(m.shared, m.shared_region, None, low, index, addresses, at, m.shared_stride)
            m.report(Kind.CLUSTER, "shared memory of a CTA that has ended", lost.keep(late))
    local = low - SHARED_START
    offsets = cta * m.shared_stride + local
    given = Target(m.shared, m.shared_region, None, offsets, index, addresses, at, m.shared_stride)
    target = _right(m, given, m.geometry.shared, local, width)
    if target is not None:
        yield target


def _flat(
    m: "Machine", block: Block, stride: int, low: Array, owner: Array, index: Array, width: int, at: Array | None
) -> Iterator[Target]:
    """Memory of each lane (local) or of all (parameters, stride 0)."""
    local = low.astype(np.int64)
    target = Target(block, None, None, owner * stride + local, index, low, at, stride)
    right = _right(m, target, stride or len(block.data), local, width)
    if right is not None:
        yield right


def load(
    m: "Machine", space: str, addresses: Array, index: Array, width: int, scope: int = 0, stamps: Array | None = None
) -> Array:
    """(n,) words of up to 8 bytes, or (n, width / 4) uint32."""
    out: Array | None = None
    for target in resolve(m, space, addresses, index, width, False):
        marks = None if stamps is None or target.at is None else stamps[target.at]
        note_read(m, target, width, scope, stamps if target.at is None else marks)
        values = target.block.load(target.offsets, width)
        if target.at is None:
            return values
        if out is None:
            out = np.zeros((len(index), *values.shape[1:]), values.dtype)
        out[target.at] = values
    if out is None:
        shape = (len(index),) if width <= 8 else (len(index), width // 4)
        out = np.zeros(shape, WORD.get(width, np.uint32))
    return out


def note_read(
    m: "Machine", target: Target, width: int, scope: int = 0, stamps: Array | None = None, writes: bool = False
) -> None:
    """Checks and remembers a read, as the lanes' own or as what `stamps` say. One that also `writes` is remembered by
    that alone: whoever meets it later meets the write."""
    tensor, region = target.tensor, target.region
    if region is None:
        return
    if tensor is not None:
        m.check_predecessor(tensor, target, width, "reads what")
    if tensor is None or tensor.init is not None:
        unset = region.unwritten(target.offsets, width)
        if unset.any() and tensor is not None and tensor.init is not None:
            flags = np.take(tensor.init.reshape(-1, width), target.offsets // width, axis=0)
            unset &= (flags == 0).any(axis=1)
        if unset.any():
            m.report(Kind.UNINITIALISED, "reads what was never written", target.keep(unset))
    if stamps is not None and m.clocks.proxies:
        space = "shared" if tensor is None else "global"
        hidden = region.hidden(m.clocks, space, target.offsets, width, target.index)
        if hidden.any():
            text = "an asynchronous read of what an ordinary store wrote, without fence.proxy.async between the two"
            m.report(Kind.PROXY, text, target.keep(hidden))
    made = m.clocks.stamps(target.index, scope) if stamps is None else stamps
    conflict = region.read(m.clocks, target.offsets, width, target.index, made, m.pc, not writes)
    if conflict is not None:
        _race(m, target, conflict, "reads")


def store(m: "Machine", space: str, addresses: Array, index: Array, width: int, values: Array, scope: int = 0) -> None:
    for target in resolve(m, space, addresses, index, width, True):
        put(m, target, width, values if target.at is None else values[target.at], scope)


def put(m: "Machine", target: Target, width: int, values: Array, scope: int = 0, stamps: Array | None = None) -> None:
    """One right store, with its checks. `values` as `load` gives them."""
    tensor, region = target.tensor, target.region
    m.mutations += 1
    if tensor is not None:
        if not tensor.writable:
            m.report(Kind.INPUT_WRITTEN, f"writes to a tensor of role {tensor.role}", target)
        tensor.own()
        m.check_predecessor(tensor, target, width, "writes over what")
    if region is None:
        target.block.store(target.offsets, width, values)
        return
    made = m.clocks.stamps(target.index, scope) if stamps is None else stamps
    conflicts = region.write(m.clocks, target.offsets, width, target.index, made, m.pc)
    for conflict in conflicts:
        if conflict.wrote:  # the same value again does no harm
            now = target.block.load(target.offsets[conflict.at], width)
            differs = _differs(now, values[conflict.at])
            kept = (conflict.at[differs], conflict.stamp[differs], conflict.instruction[differs])
            conflict = Conflict(*kept, True)
        if len(conflict.at):
            _race(m, target, conflict, "writes")
    target.block.store(target.offsets, width, values)
    lost = region.lost(target.offsets, width, made)
    if len(lost):
        lost = lost[_differs(target.block.load(target.offsets[lost], width), values[lost])]
        if len(lost):
            m.report(Kind.RACE, "threads write different values in one instruction", target.keep(lost))


def _differs(a: Array, b: Array) -> Array:
    found: Array = (a != b) if a.ndim == 1 else (a != b).any(axis=1)
    return found


def _race(m: "Machine", target: Target, conflict: Conflict, does: str) -> None:
    agent = int(conflict.stamp[0] >> AGENT) % m.clocks.agents
    other = m.plan.instructions[int(conflict.instruction[0])]
    did = "wrote" if conflict.wrote else "read"
    asynchronous = agent >= m.clocks.warps
    who = "asynchronous work" if asynchronous else "another thread"
    mine, its = int(m.clocks.own[m.lanes.row[target.index[conflict.at[0]]]]), int(conflict.stamp[0] >> AGENT)
    where = "" if its // m.clocks.agents == mine // m.clocks.agents else " of another CTA"
    if its == mine:
        where = " of the same warp"
    message = (
        f"{does} what {who}{where} {did} at line {other.line} (`{other.text[:80]}`), with no order between the two"
    )
    if its == mine:
        message += ": lanes of a warp are ordered by bar.warp.sync or a barrier, not by shfl, vote or mma"
    m.report(Kind.ASYNC if asynchronous else Kind.RACE, message, target.keep(conflict.at))
