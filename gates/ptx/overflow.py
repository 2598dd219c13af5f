"""32-bit index arithmetic that wraps around on its way into an address of global memory.

The instructions that addresses are computed by are found once, backwards from the accesses. Those of 32 bits are
computed exactly as well: lanes where the result does not fit are marked, marks follow the values, and an access through
a marked address is a finding. Not followed: values that went through memory, shuffles or bit tricks.
"""

from collections.abc import Callable

import numpy as np

from kgen.gates.ptx.findings import Kind
from kgen.gates.ptx.plan import Decoder
from kgen.gates.ptx.state import Array, Ended, Machine, Step
from kgen.gates.ptx.syntax import Address, Entry, Instruction, Operand, Reg
from kgen.gates.ptx.target import Target
from kgen.gates.ptx.wave import Group

CHECKED = ("add", "sub", "mul", "mad", "shl")
CARRIES = ("mov", "selp", "cvt", "min", "max", "cvta", "neg", "or", *CHECKED)  # `or`: sums without carries
WIDENING = {("cvt", "s32"): True, ("cvt", "u32"): False, ("mul", "s32"): True, ("mul", "u32"): False}
WIDENING |= {("mad", "s32"): True, ("mad", "u32"): False}
ACCESSES = ("ld", "st", "atom", "red", "cp")


def _sources(i: Instruction) -> list[str]:
    return [o.name for o in i.operands[1:] if isinstance(o, Reg)]


def _widens(i: Instruction) -> bool | None:
    """Whether a 32-bit value becomes a 64-bit one here: True of signed ones, False of unsigned, None if not."""
    wide = "wide" in i.modifiers or (i.opcode == "cvt" and i.modifiers[0] in ("s64", "u64"))
    return WIDENING.get((i.opcode, i.modifiers[-1])) if wide else None


def watched(entry: Entry) -> dict[int, bool]:
    """Instructions that global addresses are computed by -> whether what they make is read as signed."""
    makers: dict[str, list[int]] = {}
    for at, i in enumerate(entry.instructions):
        if i.operands and isinstance(i.operands[0], Reg) and i.opcode in CARRIES:
            makers.setdefault(i.operands[0].name, []).append(at)
    todo = [(name, True) for i in entry.instructions for name in addresses(i)]
    found: dict[int, bool] = {}
    while todo:
        name, signed = todo.pop()
        for at in makers.get(name, ()):
            if at in found:
                continue
            found[at] = signed
            widens = _widens(entry.instructions[at])
            todo += [(s, signed if widens is None else widens) for s in _sources(entry.instructions[at])]
    return found


def addresses(i: Instruction) -> list[str]:
    """Registers of the addresses of global memory that an instruction touches."""
    if i.opcode not in ACCESSES or any(m.startswith(("shared", "local", "param")) for m in i.modifiers[:1]):
        return []
    return [o.base.name for o in i.operands if isinstance(o, Address) and isinstance(o.base, Reg)]


def watch(d: Decoder, i: Instruction, signed: bool, inner: Step) -> Step:
    """The step, with marks for lanes whose 32-bit result does not fit."""
    to = d.number(i.operands[0], i)
    sources = [d.number(o, i) for o in i.operands[1:] if isinstance(o, Reg)]
    exact = _exact(d, i) if d.bits(to) == 32 and i.opcode in CHECKED and "hi" not in i.modifiers else None

    def step(m: "Machine", g: Group) -> Ended:
        wrong: Array | None = None
        if exact is not None:
            wrong = _wrong(exact, m, g, signed)
        ended = inner(m, g)
        if wrong is None and not m.marks:
            return ended
        marks = np.zeros(m.lanes.count, np.bool_)
        for number in sources:
            if number in m.marks:
                marks |= m.marks[number]
        if wrong is not None:
            marks[g.index] |= wrong
        before = m.marks.get(to)
        marks = np.where(g.dense, marks, False if before is None else before)
        m.marks.pop(to, None)
        if marks.any():
            m.marks[to] = marks
        return ended

    return step


def _wrong(exact: "Callable[[Machine, Group, bool], Array]", m: "Machine", g: Group, signed: bool) -> Array | None:
    value = exact(m, g, True)
    wrong = (value > 0x7FFFFFFF) | (value < -0x80000000)
    if not wrong.any():
        return None
    if not signed:
        value = exact(m, g, False)
        wrong &= (value > 0xFFFFFFFF) | (value < 0)
    return wrong if wrong.any() else None


def _exact(d: Decoder, i: Instruction) -> "Callable[[Machine, Group, bool], Array]":
    """The result in 64 bits, of the group's own lanes, with operands read as signed or unsigned."""
    readers = [d.picked(o, "b32", i) for o in i.operands[1:]]
    opcode = i.opcode

    def compute(m: "Machine", g: Group, signed: bool) -> Array:
        a, b, *c = (read(m, g).view(np.int32 if signed else np.uint32).astype(np.int64) for read in readers)
        if opcode == "shl":
            return a << np.clip(b, 0, 31)
        found: Array = a + b if opcode == "add" else a - b if opcode == "sub" else a * b
        return found + c[0] if opcode == "mad" else found

    return compute


def guard(d: Decoder, i: Instruction, inner: Step) -> Step:
    """The access, with a finding where its address was computed by arithmetic that wrapped around."""
    bases = [(n, operand) for operand in i.operands if (n := _base(d, operand)) is not None]

    def step(m: "Machine", g: Group) -> Ended:
        if m.marks:
            for number, operand in bases:
                marked = m.marks.get(number)
                if marked is not None and (bad := marked[g.index]).any():
                    _report(m, g, bad, d.address(operand, i)(m, g))
        return inner(m, g)

    return step


def _base(d: Decoder, operand: Operand) -> int | None:
    if isinstance(operand, Address) and isinstance(operand.base, Reg):
        return d.number(operand.base, Instruction("", (), (), None, 0, ""))
    return None


def _report(m: "Machine", g: Group, bad: Array, where: Array) -> None:
    at = np.flatnonzero(bad)
    wide = where[at]
    target = Target(m.params, None, None, wide.astype(np.int64), g.index[at], wide, at)
    m.report(Kind.OVERFLOW, "32-bit arithmetic wrapped around on its way into this address", target)
