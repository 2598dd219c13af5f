"""Instructions on registers alone: whatever `arith` knows, vector moves, conversions of addresses."""

import numpy as np

from kgen.gates.ptx.arith import Pure, lookup, pack, unpack, width
from kgen.gates.ptx.memory import LOCAL_WINDOW, PARAM_WINDOW, RANK_BITS, SHARED_WINDOW
from kgen.gates.ptx.plan import Decoder, sized
from kgen.gates.ptx.state import Array, Machine, Reader, Step
from kgen.gates.ptx.syntax import Imm, Instruction, Operand, Pair, Sym, Vector
from kgen.gates.ptx.tokens import PtxError
from kgen.gates.ptx.wave import Group

WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW, "global": 0, "const": 0}


def pure(d: Decoder, i: Instruction) -> Step | None:
    """None when `arith` does not know it."""
    if i.opcode == "mov" and any(isinstance(o, Vector) for o in i.operands):
        return _vector_move(d, i)
    sources = len(i.operands) - 1
    found = lookup(i.opcode, i.modifiers, sources) or lookup(i.opcode, i.modifiers)
    if found is None:
        return None
    wanted = len(found.operands) - found.carry_in
    if sources != wanted:
        raise PtxError(i.line, f"{i.name} takes {wanted} sources, not {sources}")
    readers = [d.source(o, k, i) for o, k in zip(i.operands[1:], found.operands, strict=False)]
    if found.carry_in:
        readers.append(lambda m, g: g.read(m.carry))
    return _computed(d, i, found, readers)


def _computed(d: Decoder, i: Instruction, found: Pure, readers: list[Reader]) -> Step:
    results = _results(i.operands[0])
    function, kinds = found.function, found.results
    numbers = [d.number(o, i) for o in results][: len(kinds) - found.carry_out]
    bits = [d.bits(n) if n >= 0 else 0 for n in numbers]
    exact = all(b == width(k) for b, k in zip(bits, kinds, strict=False))
    if exact and len(numbers) == 1 and not found.carry_out:
        to = numbers[0]

        def simple(m: "Machine", g: Group) -> None:
            value = function(*[read(m, g) for read in readers])[0]
            m.registers[to] = g.write(m.registers[to], value)

        return simple

    def step(m: "Machine", g: Group) -> None:
        values = function(*[read(m, g) for read in readers])
        for number, value, kind, size in zip(numbers, values, kinds, bits, strict=False):
            if number >= 0:
                m.registers[number] = g.write(m.registers[number], sized(value, kind, size))
        if found.carry_out:
            m.carry = g.write(m.carry, values[-1])

    return step


def _results(operand: Operand) -> tuple[Operand, ...]:
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand,)


def _vector_move(d: Decoder, i: Instruction) -> Step:
    to, source = i.operands
    kind = i.modifiers[-1]
    if isinstance(source, Vector):
        part = f"b{width(kind) // len(source.items)}"
        readers = [d.source(o, part, i) for o in source.items]
        number = d.number(to, i)
        size = d.bits(number)

        def join(m: "Machine", g: Group) -> None:
            value = sized(pack(*[read(m, g) for read in readers]), kind, size)
            m.registers[number] = g.write(m.registers[number], value)

        return join
    if not isinstance(to, Vector):
        raise PtxError(i.line, "mov has no vector")
    numbers = [d.number(o, i) for o in to.items]
    read_whole = d.source(source, kind, i)

    def split(m: "Machine", g: Group) -> None:
        for number, value in zip(numbers, unpack(read_whole(m, g), kind, len(numbers)), strict=True):
            if number >= 0:
                m.registers[number] = g.write(m.registers[number], np.ascontiguousarray(value))

    return split


def cvta(d: Decoder, i: Instruction) -> Step:
    """cvta.space: an address of a space -> generic; cvta.to.space: back."""
    back = i.modifiers[0] == "to"
    space = i.modifiers[1 if back else 0].partition("::")[0]
    if space not in WINDOWS:
        raise PtxError(i.line, f"cvta to .{space} is not known")
    window = np.uint64(WINDOWS[space])
    number, kind = d.number(i.operands[0], i), i.modifiers[-1]
    source = d.source(i.operands[1], kind, i)
    size = d.bits(number)

    def step(m: "Machine", g: Group) -> None:
        value = source(m, g).astype(np.uint64)
        value = value - window if back else value + window
        m.registers[number] = g.write(m.registers[number], sized(value, "u64", size))

    return step


def isspacep(d: Decoder, i: Instruction) -> Step:
    space = i.modifiers[0].partition("::")[0]
    number, source = d.number(i.operands[0], i), d.source(i.operands[1], "u64", i)
    window = WINDOWS.get(space, 0) >> 60

    def step(m: "Machine", g: Group) -> None:
        found: Array = (source(m, g) >> np.uint64(60)) == np.uint64(window)
        m.registers[number] = g.write(m.registers[number], found)

    return step


def mapa(d: Decoder, i: Instruction) -> Step:
    """mapa.shared::cluster: the same shared variable in another CTA of the cluster."""
    generic = not i.modifiers[0].startswith("shared")
    kind = i.modifiers[-1]
    number, address, rank = (
        d.number(i.operands[0], i),
        d.source(i.operands[1], kind, i),
        d.source(i.operands[2], "u32", i),
    )
    size = d.bits(number)
    low = np.uint64((1 << RANK_BITS) - 1)

    def step(m: "Machine", g: Group) -> None:
        value = (address(m, g).astype(np.uint64) & low) | (
            (rank(m, g).astype(np.uint64) + np.uint64(1)) << np.uint64(RANK_BITS)
        )
        value = value + np.uint64(SHARED_WINDOW) if generic else value
        m.registers[number] = g.write(m.registers[number], sized(value, "u64", size))

    return step


def getctarank(d: Decoder, i: Instruction) -> Step:
    number, address = d.number(i.operands[0], i), d.source(i.operands[1], i.modifiers[-1], i)

    def step(m: "Machine", g: Group) -> None:
        high = ((address(m, g).astype(np.uint64) & np.uint64(0xFFFFFFFF)) >> np.uint64(RANK_BITS)).astype(np.int64)
        own = g.read(m.special("%cluster_ctarank"))
        value = np.where(high > 0, high - 1, own).astype(np.uint32)
        m.registers[number] = g.write(m.registers[number], value)

    return step


def is_immediate(operand: Operand) -> int | None:
    """The number of an immediate, None for any other operand."""
    return operand.bits if isinstance(operand, Imm) and not operand.width else None


def is_sink(operand: Operand) -> bool:
    return isinstance(operand, Sym) and operand.name == "_"
