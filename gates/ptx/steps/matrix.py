"""mma.sync, ldmatrix, stmatrix, movmatrix and wgmma, by the pure functions of `matrix`."""

import numpy as np

from kgen.gates.ptx.access import load, store
from kgen.gates.ptx.budget import UnsupportedError
from kgen.gates.ptx.geometry import WARP
from kgen.gates.ptx.matrix import mma as forms
from kgen.gates.ptx.matrix import warp as copies
from kgen.gates.ptx.plan import Decoder
from kgen.gates.ptx.state import Array, Machine, Reader, Step
from kgen.gates.ptx.steps.warp import synced
from kgen.gates.ptx.syntax import Instruction
from kgen.gates.ptx.tokens import PtxError
from kgen.gates.ptx.wave import Group


def by_warp(m: "Machine", g: Group, register: Array) -> Array:
    """A register's values of the group's warps, (warps, 32)."""
    rows = register.reshape(-1, WARP)
    return rows if g.mask is None else rows[g.rows]


def put_warps(m: "Machine", g: Group, number: int, value: Array) -> None:
    """Sets a register of the group's warps from (warps, 32)."""
    if number < 0:
        return
    old = m.registers[number]
    if g.mask is None:
        m.registers[number] = np.ascontiguousarray(value).reshape(-1)
        return
    new = old.reshape(-1, WARP).copy()
    new[g.rows] = value
    m.registers[number] = new.reshape(-1)


def whole_warps(d: Decoder, i: Instruction, at: int) -> list[Reader]:
    """Readers of the registers of an operand, (warps, 32) each."""

    def reader(inner: Reader) -> Reader:
        def read(m: "Machine", g: Group) -> Array:
            value = inner(m, Group(m.lanes, None))
            value = value if len(value) == m.lanes.count else np.repeat(value, m.lanes.count)
            return by_warp(m, g, value)

        return read

    return [reader(d.source(o, "b32", i)) for o in d.items(i.operands[at])]


def expect(d: Decoder, i: Instruction, at: int, count: int) -> None:
    """Raises PtxError where an operand has another number of registers."""
    if len(d.items(i.operands[at])) != count:
        raise PtxError(i.line, f"operand {at + 1} of {i.name[:60]} takes {count} registers")


def mma(d: Decoder, i: Instruction) -> Step:
    form = forms.mma(i.modifiers)
    if form is None or len(i.operands) != 4:
        raise UnsupportedError(i)
    for at, count in enumerate((form.c_registers, form.a_registers, form.b_registers, form.c_registers)):
        expect(d, i, at, count)
    numbers = [d.number(o, i) for o in d.items(i.operands[0])]
    a, b, c = (whole_warps(d, i, at) for at in (1, 2, 3))

    def body(m: "Machine", g: Group) -> None:
        found = form.function(*([read(m, g) for read in operand] for operand in (a, b, c)))
        for number, value in zip(numbers, found, strict=True):
            put_warps(m, g, number, value)

    return synced(None, body)


def ldmatrix(d: Decoder, i: Instruction) -> Step:
    form = copies.ldmatrix(i.modifiers)
    if form is None:
        raise UnsupportedError(i)
    expect(d, i, 0, form.count)
    numbers = [d.number(o, i) for o in d.items(i.operands[0])]
    address = d.address(i.operands[1], i)

    def body(m: "Machine", g: Group) -> None:
        first = m.lanes.lane[g.index] < form.lanes
        words = np.zeros((m.lanes.count, 4), np.uint32)
        words[g.index[first]] = load(m, "shared", address(m, g)[first], g.index[first], 16)
        for number, value in zip(numbers, form.load(words.reshape(-1, WARP, 4)[g.rows]), strict=True):
            put_warps(m, g, number, value)

    return synced(None, body)


def stmatrix(d: Decoder, i: Instruction) -> Step:
    form = copies.stmatrix(i.modifiers)
    if form is None:
        raise UnsupportedError(i)
    expect(d, i, 1, form.count)
    address = d.address(i.operands[0], i)
    sources = whole_warps(d, i, 1)

    def body(m: "Machine", g: Group) -> None:
        words = np.zeros((m.lanes.rows, WARP, 4), np.uint32)
        words[g.rows, : form.lanes] = form.store([read(m, g) for read in sources])
        first = m.lanes.lane[g.index] < form.lanes
        lanes = g.index[first]
        store(m, "shared", address(m, g)[first], lanes, 16, words.reshape(-1, 4)[lanes])

    return synced(None, body)


def movmatrix(d: Decoder, i: Instruction) -> Step:
    if i.modifiers != copies.MOVMATRIX:
        raise UnsupportedError(i)
    number, source = d.number(i.operands[0], i), whole_warps(d, i, 1)[0]

    def body(m: "Machine", g: Group) -> None:
        put_warps(m, g, number, copies.movmatrix(np.ascontiguousarray(source(m, g))))

    return synced(None, body)
