"""Branches and ends, and instructions that change nothing that is observed here."""

import numpy as np

from kgen.gates.ptx import flow
from kgen.gates.ptx.budget import UnsupportedError
from kgen.gates.ptx.findings import Kind
from kgen.gates.ptx.plan import Decoder
from kgen.gates.ptx.state import Ended, Machine, Step
from kgen.gates.ptx.syntax import Instruction, Not, Reg
from kgen.gates.ptx.wave import Group


def bra(d: Decoder, i: Instruction) -> Step:
    """With its guard: the lanes that jump and those that go on part."""
    to = flow.target(d.entry, i)
    late = d.spins.get(d.at, False)
    if i.guard is None:

        def jump(m: "Machine", g: Group) -> Ended:
            m.ready.add(to, g.dense, late)
            return False

        return jump
    wanted = isinstance(i.guard, Reg)
    number = d.number(i.guard.reg if isinstance(i.guard, Not) else i.guard, i)

    def branch(m: "Machine", g: Group) -> Ended:
        goes = g.narrowed(m.registers[number], wanted)
        if goes is None:
            return None
        m.ready.add(to, goes.dense, late)
        if goes is g:
            return False
        stays = g.dense & ~goes.dense
        return Group(m.lanes, stays)

    return branch


def brx(d: Decoder, i: Instruction) -> Step:
    """brx.idx index, list: each lane goes where the list says for its index."""
    if i.modifiers[:1] != ("idx",):
        raise UnsupportedError(i)
    to = flow.listed(d.entry, i)
    index = d.picked(i.operands[0], "u32", i)
    late = d.spins.get(d.at, False)

    def step(m: "Machine", g: Group) -> Ended:
        chosen = index(m, g)
        if (beyond := chosen >= len(to)).any():
            m.stop(Kind.TRAP, f"brx.idx has {len(to)} targets, and the index is beyond", g.index[beyond])
        for number in np.unique(chosen).tolist():
            mask = np.zeros(m.lanes.count, np.bool_)
            mask[g.index[chosen == number]] = True
            m.ready.add(to[number], mask, late)
        return False

    return step


def leave(d: Decoder, i: Instruction) -> Step:
    def step(m: "Machine", g: Group) -> Ended:
        m.exit(g)
        return False

    return step


def trap(d: Decoder, i: Instruction) -> Step:
    """An assertion of the kernel's own that does not hold."""

    def step(m: Machine, g: Group) -> Ended:
        m.report_lanes(Kind.TRAP, "the kernel stops itself", g.index)
        m.exit(g)
        return False

    return step


def nothing(d: Decoder, i: Instruction) -> Step:
    def step(m: "Machine", g: Group) -> Ended:
        return None

    return step


def griddepcontrol(d: Decoder, i: Instruction) -> Step:
    if i.modifiers != ("wait",):
        return nothing(d, i)

    def step(m: "Machine", g: Group) -> Ended:
        m.clocks.after_predecessor(g.rows)
        m.waited[g.rows] = True
        return None

    return step


def activemask(d: Decoder, i: Instruction) -> Step:
    number = d.number(i.operands[0], i)

    def step(m: "Machine", g: Group) -> Ended:
        bits = np.packbits(g.dense.reshape(-1, 32), axis=1, bitorder="little").view(np.uint32)[:, 0]
        m.registers[number] = g.put(m.registers[number], np.repeat(bits, 32)[g.index])
        return None

    return step
