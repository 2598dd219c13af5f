"""Registers that a thread reads but never wrote on its way: found where such a value decides, is stored, or addresses.

A register that every way writes before it reads costs nothing. The others are followed by thread: a move, a selection
and arithmetic pass "never written" on; what combines bits passes it on where all its sources are so. It is a finding
at a guard, an address, a stored value, or an operand of mma or a barrier. A compiler's undefined values that nobody
uses are none. Not followed: through memory, shuffles and wgmma.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kgen.gates.ptx import flow
from kgen.gates.ptx.arith import lookup
from kgen.gates.ptx.findings import Kind
from kgen.gates.ptx.plan import Decoder
from kgen.gates.ptx.state import Array, Ended, Machine, Step
from kgen.gates.ptx.syntax import Address, Entry, Instruction, Not, Operand, Pair, Reg, Vector
from kgen.gates.ptx.wave import Group

NO_RESULT = ("bar", "barrier", "nanosleep", "bra", "brx", "ret", "exit", "setmaxnreg")
SINKS = ("st", "red", "atom", "mma", "bar", "barrier", "stmatrix")
BITWISE = ("and", "or", "xor", "lop3", "prmt", "bfi", "shf")
MAX_BITS = 1 << 31  # registers x blocks of an entry that is looked through
TEXT = "uses a register that the thread never wrote on its way here"


def _names(operand: Operand) -> Iterator[str]:
    if isinstance(operand, Reg):
        yield operand.name
    elif isinstance(operand, Not):
        yield operand.reg.name
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from _names(item)
    elif isinstance(operand, Pair):
        yield from _names(operand.first)
        yield from _names(operand.second)
    elif isinstance(operand, Address):
        yield from _names(operand.base)
        for item in operand.more:
            yield from _names(item)


def results(i: Instruction) -> tuple[str, ...]:
    """Registers that an instruction writes."""
    if not i.operands or isinstance(i.operands[0], Address):
        return ()
    if i.opcode in NO_RESULT and not (i.opcode in ("bar", "barrier") and "red" in i.modifiers):
        return ()
    return tuple(_names(i.operands[0]))


def sources(i: Instruction) -> tuple[str, ...]:
    """Registers that it reads, but for its guard. What wgmma adds to is not counted: it may be told not to."""
    return tuple(name for operand in i.operands[1 if results(i) else 0 :] for name in _names(operand))


def _guard(i: Instruction) -> tuple[str, ...]:
    return () if i.guard is None else tuple(_names(i.guard))


def suspects(entry: Entry) -> frozenset[str]:
    """Registers that some way through the entry reads before it writes them. None for an entry that is too large."""
    blocks, following = flow.blocks(entry)
    if not blocks or len(blocks) * len(entry.registers) > MAX_BITS:
        return frozenset()
    bit = {name: 1 << n for n, name in enumerate(entry.registers)}
    written = [0] * len(blocks)
    for block, (start, end) in enumerate(blocks):
        for i in entry.instructions[start:end]:
            if i.guard is None:
                for name in results(i):
                    written[block] |= bit[name]
    found: set[str] = set()
    for block, have in _reached(following, written).items():
        start, end = blocks[block]
        for i in entry.instructions[start:end]:
            found.update(name for name in (*sources(i), *_guard(i)) if not have & bit[name])
            if i.guard is None:
                for name in results(i):
                    have |= bit[name]
    return frozenset(found)


def _reached(following: Sequence[Sequence[int]], written: Sequence[int]) -> dict[int, int]:
    """Block that something reaches -> what all ways to it write, as bits. In the order in which blocks run."""
    place = flow.positions(following)
    at = {0: 0}
    queue, waits = [(place[0], 0)], {0}
    while queue:
        _, block = heapq.heappop(queue)
        waits.discard(block)
        after = at[block] | written[block]
        for to in following[block]:
            new = at[to] & after if to in at else after
            if to in at and new == at[to]:
                continue
            at[to] = new
            if to not in waits:
                waits.add(to)
                heapq.heappush(queue, (place[to], to))
    return at


def _passes(i: Instruction) -> bool:
    if i.opcode == "mov":
        return True
    return lookup(i.opcode, i.modifiers, len(i.operands) - 1) is not None or lookup(i.opcode, i.modifiers) is not None


def followed(entry: Entry) -> frozenset[str]:
    """The suspects, and what is computed of them."""
    found = set(suspects(entry))
    readers: dict[str, list[tuple[str, ...]]] = {}
    for i in entry.instructions if found else ():
        if _passes(i):
            for name in sources(i):
                readers.setdefault(name, []).append(results(i))
    left = list(found)
    while left:
        new = {name for to in readers.get(left.pop(), ()) for name in to} - found
        found |= new
        left += new
    return frozenset(found)


@dataclass(frozen=True)
class _How:
    to: tuple[int, ...]
    of: tuple[int, ...]
    every: bool  # undefined where all sources are so
    sinks: bool
    chooses: tuple[int, int, int] | None  # of selp: a, b, p


def watch(d: Decoder, i: Instruction, inner: Step) -> Step:
    """The step (without its guard), with note of what stays undefined, and a finding where such a value is used."""
    mine = [name for name in (*results(i), *sources(i)) if name in d.followed]
    if not mine:
        return inner
    number = {name: d.number(Reg(name), i) for name in mine}
    to = tuple(number[n] for n in results(i) if n in d.followed)
    read = sources(i)
    if i.opcode not in SINKS and not _passes(i):  # addresses alone
        read = tuple(n for o in i.operands if isinstance(o, Address) for n in _names(o))
    of = tuple(number[n] for n in read if n in d.followed)
    joins = i.opcode in BITWISE or (i.opcode == "mov" and isinstance(i.operands[1], Vector))
    every = joins and len(of) == len(read)
    if joins and not every:
        of = ()
    how = _How(to, of, every, not _passes(i), _choice(d, i))

    def step(m: "Machine", g: Group) -> Ended:
        bad = _undefined(m, g, how)
        if how.sinks and bad is not None and bad.any():
            m.report_lanes(Kind.UNINITIALISED, TEXT, g.index[bad])
        value: Array | bool = False if bad is None or how.sinks else bad
        for n in how.to:
            m.undefined[n][g.index] = value
        return inner(m, g)

    return step


def _choice(d: Decoder, i: Instruction) -> tuple[int, int, int] | None:
    """Numbers of selp's a, b and p; -1 for what is always defined."""
    if i.opcode != "selp":
        return None
    a, b, p = (o.name if isinstance(o, Reg) else "" for o in i.operands[1:4])
    if not p:
        return None
    return (
        d.number(Reg(a), i) if a in d.followed else -1,
        d.number(Reg(b), i) if b in d.followed else -1,
        d.number(Reg(p), i),
    )


def _undefined(m: Machine, g: Group, how: _How) -> Array | None:
    """Lanes of the group, in the order of its index, for which the sources are undefined. None: for none."""
    if not how.of:
        return None
    if how.chooses is not None:
        p = how.chooses[2]
        none = np.zeros(m.lanes.count, np.bool_)
        first, second, other = (m.undefined.get(n, none) for n in how.chooses)
        found: Array = np.where(m.registers[p], first, second) | other
        return found[g.index]
    parts = [m.undefined[n][g.index] for n in how.of]
    joined: Array = np.logical_and.reduce(parts) if how.every else np.logical_or.reduce(parts)
    return joined


def guarded(d: Decoder, i: Instruction, whole: Step) -> Step:
    """The step with its guard: a finding where the guard is undefined."""
    names = [name for name in _guard(i) if name in d.followed]
    if not names:
        return whole
    number = d.number(Reg(names[0]), i)

    def step(m: "Machine", g: Group) -> Ended:
        bad = m.undefined[number][g.index]
        if bad.any():
            m.report_lanes(Kind.UNINITIALISED, TEXT, g.index[bad])
        return whole(m, g)

    return step
