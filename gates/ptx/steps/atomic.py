"""atom and red: read, compute, write as one step, lane after lane where they meet at one address."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kgen.gates.ptx.access import note_read, put, resolve
from kgen.gates.ptx.arith import lookup, width
from kgen.gates.ptx.budget import UnsupportedError
from kgen.gates.ptx.memory import WORD
from kgen.gates.ptx.plan import Decoder, sized
from kgen.gates.ptx.state import Array, Ended, Machine, Step
from kgen.gates.ptx.steps import order
from kgen.gates.ptx.steps.memory import SPACES, VECTORS, element
from kgen.gates.ptx.syntax import Instruction
from kgen.gates.ptx.target import Target
from kgen.gates.ptx.wave import Group

Function = Callable[[Array, Array, Array | None], Array]  # old, b, c -> new
IGNORED = ("noftz", "relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys")
FLOATS = ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64")


def reduction(i: Instruction, op: str, kind: str) -> Function:
    signed = {"s32": np.int32, "s64": np.int64}.get(kind)
    if op in ("add", "min", "max") and kind in FLOATS:
        modifiers = ("rn", kind) if op == "add" and kind not in ("f32", "f64") else (kind,)
        pure = lookup(op, modifiers) or lookup(op, (kind,))
        if pure is None:
            raise UnsupportedError(i)
        found = pure.function
        return lambda old, b, c: found(old, b)[0]
    simple: dict[str, Function] = {
        "add": lambda old, b, c: old + b,
        "and": lambda old, b, c: old & b,
        "or": lambda old, b, c: old | b,
        "xor": lambda old, b, c: old ^ b,
        "exch": lambda old, b, c: b,
        "inc": lambda old, b, c: np.where(old >= b, old.dtype.type(0), old + old.dtype.type(1)),
        "dec": lambda old, b, c: np.where((old == 0) | (old > b), b, old - old.dtype.type(1)),
        "cas": lambda old, b, c: np.where(old == b, old if c is None else c, old),
    }
    if op in ("min", "max"):
        choose = np.minimum if op == "min" else np.maximum
        if signed is None:
            return lambda old, b, c: choose(old, b)
        view = signed
        return lambda old, b, c: choose(old.view(view), b.view(view)).view(old.dtype)
    if op not in simple:
        raise UnsupportedError(i)
    return simple[op]


def rounds(offsets: Array, lanes: Array) -> list[Array]:
    """Positions in rounds, so that no round has an address twice."""
    sort = np.lexsort((lanes, offsets))
    ordered = offsets[sort]
    new = np.r_[True, ordered[1:] != ordered[:-1]]
    if new.all():
        return [np.arange(len(offsets))]
    start = np.maximum.accumulate(np.where(new, np.arange(len(ordered)), 0))
    turn = np.arange(len(ordered)) - start
    by_turn = np.argsort(turn, kind="stable")
    edges = np.flatnonzero(np.diff(turn[by_turn])) + 1
    return [sort[part] for part in np.split(by_turn, edges)]


@dataclass(frozen=True)
class _How:
    """`reads`: the old value is a result. `compares`: it is a cas."""

    function: Function
    size: int
    scope: int
    reads: bool
    acquires: bool
    releases: bool
    compares: bool


def atom(d: Decoder, i: Instruction) -> Step:
    """atom d, [a], b[, c] and red [a], b; vectors of f32, f16, bf16 and their pairs."""
    reduces = i.opcode == "red"
    kind = element(i)
    space = next((m for m in i.modifiers if m in SPACES), "")
    vector = next((m for m in i.modifiers if m in VECTORS), "")
    names = [m for m in i.modifiers if m not in (*IGNORED, space, vector, kind) and not m.startswith("L2::")]
    if len(names) != 1 or kind == "b128":
        raise UnsupportedError(i)
    function = reduction(i, names[0], kind)
    operands = i.operands if reduces else i.operands[1:]
    address = d.address(operands[0], i)
    narrow = f"b{width(kind)}"
    sources = [d.picked(o, narrow, i) for o in d.items(operands[1])]
    third = d.picked(operands[2], narrow, i) if len(operands) > 2 else None
    results = [] if reduces else [d.number(o, i) for o in d.items(i.operands[0])]
    size = width(kind) // 8
    how = _How(
        function,
        size,
        order.scope(i, True),
        not reduces,
        any(m in i.modifiers for m in ("acquire", "acq_rel")),
        any(m in i.modifiers for m in ("release", "acq_rel")),
        names[0] == "cas",
    )

    def step(m: Machine, g: Group) -> Ended:
        addresses = address(m, g)
        extra = None if third is None else third(m, g)
        given = [read(m, g) for read in sources]
        old = np.zeros((len(sources), len(addresses)), WORD[size])
        for target in resolve(m, space, addresses, g.index, size * len(sources), True):
            for at, values in enumerate(given):
                moved = replace(target, offsets=target.offsets + at * size)
                moved.addresses = target.addresses + np.uint64(at * size)
                _apply(m, moved, values, extra, how, old[at])
        for at, number in enumerate(results):
            if number >= 0:
                m.registers[number] = g.put(m.registers[number], sized(old[at], kind, d.bits(number)))
        return None

    return step


def _apply(m: Machine, target: Target, values: Array, extra: Array | None, how: _How, out: Array) -> None:
    """Old values into `out`. The order of lanes at one address depends on the seed; each learns what those before it
    released."""
    at = np.arange(len(out)) if target.at is None else target.at
    note_read(m, target, how.size, how.scope, writes=True)
    keys = m.rng.permutation(len(at)) if m.run.seed else np.arange(len(at))
    for chosen in rounds(target.offsets, keys):
        m.run.check()
        part = target.keep(chosen)
        if how.reads:
            order.heard(m, part, how.acquires, how.scope)
        old = target.block.load(part.offsets, how.size)
        mine, before = values[at[chosen]], m.mutations
        new = how.function(old, mine, None if extra is None else extra[at[chosen]])
        put(m, part, how.size, new, how.scope)
        if (old == new).all():  # a lock that stays taken: to spin on it gets nobody further
            m.mutations = before
        told = part.keep(old == mine) if how.compares else part  # a comparison that fails writes nothing
        order.tell(m, told, how.releases, True, how.scope)
        out[at[chosen]] = old
