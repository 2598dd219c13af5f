"""cp.async with its groups, and which kind of copy an instruction is.

Bytes move at once; that nobody may look at them before a wait is the shadow's affair: they carry the stamp of the
copy's agent.
"""

import numpy as np

from kgen.gates.ptx.access import load, put, resolve
from kgen.gates.ptx.budget import UnsupportedError
from kgen.gates.ptx.plan import Decoder
from kgen.gates.ptx.state import Array, Ended, Machine, Step
from kgen.gates.ptx.steps import bulk, tensor
from kgen.gates.ptx.steps.control import nothing
from kgen.gates.ptx.steps.register import is_immediate
from kgen.gates.ptx.syntax import Instruction
from kgen.gates.ptx.tokens import PtxError
from kgen.gates.ptx.wave import Group


def cp(d: Decoder, i: Instruction) -> Step:
    reduces = i.modifiers[:1] == ("reduce",)
    rest = i.modifiers[2:] if reduces else i.modifiers[1:]
    if i.modifiers[1 if reduces else 0] != "async" or not rest:
        raise UnsupportedError(i)
    if rest[0] in ("ca", "cg") and not reduces:
        return _copy(d, i)
    if rest[0] == "mbarrier":
        return _arrive(d, i)
    if rest[0] in ("commit_group", "wait_group", "wait_all"):
        return _groups(d, i, rest[0])
    if rest[0] != "bulk":
        raise UnsupportedError(i)
    if rest[1] == "commit_group":
        return bulk.commit
    if rest[1] == "wait_group":
        return bulk.wait(d, i)
    if rest[1] == "prefetch":
        return nothing(d, i)
    if rest[1] == "tensor":
        return tensor.copy(d, i)
    return bulk.copy(d, i, rest[1:])


# -- cp.async


def _copy(d: Decoder, i: Instruction) -> Step:
    if "shared" not in i.modifiers and "shared::cta" not in i.modifiers:
        raise UnsupportedError(i)
    to, source = d.address(i.operands[0], i), d.address(i.operands[1], i)
    size = is_immediate(i.operands[2])
    if size not in (4, 8, 16):
        raise PtxError(i.line, "cp.async copies 4, 8 or 16 bytes")
    hinted = "L2::cache_hint" in i.modifiers
    more = i.operands[3:-1] if hinted else i.operands[3:]
    constant = is_immediate(more[0]) if more else size
    some = d.picked(more[0], "u32", i) if more and constant != size else None

    def step(m: "Machine", g: Group) -> Ended:
        addresses = source(m, g)
        if some is None:
            values = load(m, "global", addresses, g.index, size)
        else:
            values = _filled(m, g, addresses, some(m, g).astype(np.int64), size)
        agents = (m.clocks.own + m.lanes.warps)[m.lanes.row[g.index]]
        stamps = m.clocks.agent_stamps(agents, m.commits[g.index] + 1, m.lanes.lane[g.index])
        for target in resolve(m, "shared", to(m, g), g.index, size, True):
            at = slice(None) if target.at is None else target.at
            put(m, target, size, values[at], 0, stamps[at])
        return None

    return step


def _filled(m: "Machine", g: Group, addresses: Array, counts: Array, size: int) -> Array:
    """`counts` bytes of each source, then zeros."""
    rows = np.zeros((g.count, size), np.uint8)
    whole = np.flatnonzero(counts >= size)
    got = load(m, "global", addresses[whole], g.index[whole], size)
    rows[whole] = np.ascontiguousarray(got).view(np.uint8).reshape(-1, size)
    for byte in range(size - 1):
        part = np.flatnonzero((counts < size) & (counts > byte))
        if len(part):
            rows[part, byte] = load(m, "global", addresses[part] + np.uint64(byte), g.index[part], 1)
    return rows.view(np.uint32) if size == 16 else rows.view(f"u{size}")[:, 0]


def _groups(d: Decoder, i: Instruction, what: str) -> Step:
    if what == "commit_group":

        def commit(m: "Machine", g: Group) -> Ended:
            if g.mask is None:
                m.commits += 1
            else:
                m.commits[g.index] += 1
            return None

        return commit
    allowed = -1 if what == "wait_all" else is_immediate(i.operands[0])
    if allowed is None:
        raise PtxError(i.line, "cp.async.wait_group takes a number")

    def wait(m: "Machine", g: Group) -> Ended:
        bulk.landed(m, g, m.commits, allowed, 1)
        return None

    return wait


def _arrive(d: Decoder, i: Instruction) -> Step:
    """cp.async.mbarrier.arrive[.noinc]: an arrival when the thread's copies so far have landed."""
    address = d.address(i.operands[0], i)
    counts = "noinc" in i.modifiers
    space = next((m for m in i.modifiers if m.startswith("shared")), "")

    def step(m: "Machine", g: Group) -> Ended:
        at, cta, slot = m.mbarriers.locate(space, address(m, g), g.index)
        rows = m.lanes.row[g.index[at]]
        issued = np.zeros(m.lanes.rows, np.int64)
        np.maximum.at(issued, rows, m.commits[g.index[at]] + 1)
        those = np.unique(rows)
        known = np.zeros((len(those), m.clocks.columns), np.uint32)
        known[np.arange(len(those)), m.clocks.local(those, 1)] = issued[those]
        m.mbarriers.teach(cta, slot, rows, those, known)
        if counts:
            m.mbarriers.arrive(g, at, cta, slot, np.ones(len(at), np.int64))
        return None

    return step
