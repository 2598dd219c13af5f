"""Instructions of a whole warp: shuffles, votes, match, redux, elect.

Those with a member mask wait until the lanes it names have come. None but bar.warp.sync orders the memory accesses of
the warp's lanes. A value from a lane outside the group is what that lane's register holds, and a finding.
"""

from collections.abc import Callable

import numpy as np

from kgen.gates.ptx.budget import UnsupportedError
from kgen.gates.ptx.findings import Kind
from kgen.gates.ptx.plan import Decoder
from kgen.gates.ptx.state import Array, Ended, Machine, Reader, Step
from kgen.gates.ptx.steps.register import is_immediate
from kgen.gates.ptx.syntax import Instruction, Operand, Pair
from kgen.gates.ptx.tokens import PtxError
from kgen.gates.ptx.wave import Group

FULL = (1 << 32) - 1
BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)


def bits_of(lanes: Array) -> Array:
    """(warps x 32,) bool -> one uint32 per warp."""
    found: Array = np.packbits(lanes.reshape(-1, 32), axis=1, bitorder="little").view(np.uint32)[:, 0]
    return found


def together(m: "Machine", g: Group, members: Reader | None) -> Group | None:
    """The lanes whose fellow members (None: all lanes of the warp) are all here; the others stall."""
    if g.covers:
        return g
    here, live = bits_of(g.dense), bits_of(m.lanes.live)
    if members is None:
        complete = np.repeat((here & live) == live, 32)
    else:
        wanted = np.zeros(m.lanes.count, np.uint32)
        wanted[g.index] = members(m, g)
        complete = (wanted & np.repeat(live & ~here, 32)) == 0
    ready = g.dense & complete
    if not ready.all():
        apart = g.dense & ~complete
        if apart.any():
            m.ready.stall(m.pc, apart)
    found = Group(m.lanes, ready)
    return found if found.count else None


def synced(members: Reader | None, body: Callable[["Machine", Group], None]) -> Step:
    def step(m: "Machine", g: Group) -> Ended:
        found = together(m, g, members)
        if found is None:
            return False
        body(m, found)
        return None if found is g else found

    return step


def mask_reader(d: Decoder, operand: Operand, i: Instruction) -> Reader | None:
    """None for the mask of all lanes."""
    number = is_immediate(operand)
    if number is not None and number & FULL == FULL:
        return None
    return d.picked(operand, "b32", i)


def warp_sync(d: Decoder, i: Instruction) -> Step:
    return synced(mask_reader(d, i.operands[0], i), lambda m, g: m.clocks.meet(None if g.mask is None else g.rows))


def shfl(d: Decoder, i: Instruction) -> Step:
    """shfl.sync.{up,down,bfly,idx}.b32 d[|p], a, b, c, membermask."""
    if i.modifiers[0] != "sync" or len(i.operands) != 5:
        raise UnsupportedError(i)
    mode = i.modifiers[1]
    first = i.operands[0]
    number = d.number(first.first if isinstance(first, Pair) else first, i)
    valid = d.number(first.second, i) if isinstance(first, Pair) else -1
    a, b, c = (_whole(d, o, i) for o in i.operands[1:4])

    def body(m: "Machine", g: Group) -> None:
        value = a(m).reshape(-1, 32)
        lane = np.arange(32)
        offset, control = (b(m) & 31).astype(np.int64).reshape(-1, 32), c(m).astype(np.int64).reshape(-1, 32)
        clamp, segment = control & 31, control >> 8 & 31
        top = (lane & segment) | (clamp & ~segment & 31)
        low = lane & segment
        source, inside = _source(mode, lane, offset, top, low, ~segment & 31)
        source = np.where(inside, source, lane)
        if not (g.covers and m.lanes.live.all()):
            _absent(m, g, np.broadcast_to(source, (m.lanes.rows, 32)))
        got = np.take_along_axis(np.broadcast_to(value, (m.lanes.rows, 32)), source, axis=1).reshape(-1)
        if number >= 0:
            m.registers[number] = g.put(m.registers[number], got[g.index])
        if valid >= 0:
            m.registers[valid] = g.put(
                m.registers[valid], np.broadcast_to(inside, (m.lanes.rows, 32)).reshape(-1)[g.index]
            )

    return synced(mask_reader(d, i.operands[4], i), body)


def _absent(m: "Machine", g: Group, source: Array) -> None:
    """Reports the lanes of the group that read from one outside of it."""
    lost = g.dense & ~np.take_along_axis(g.dense.reshape(-1, 32), source, axis=1).reshape(-1)
    if lost.any():
        text = "the value comes from a lane of the warp that does not take part, which leaves it undefined"
        m.report_lanes(Kind.BARRIER, text, np.flatnonzero(lost))


def _source(mode: str, lane: Array, offset: Array, top: Array, low: Array, inner: Array) -> tuple[Array, Array]:
    """Lane that each lane reads, and whether that is inside its segment."""
    if mode == "up":
        source = lane - offset
        return source, source >= top
    if mode == "down":
        source = lane + offset
    elif mode == "bfly":
        source = lane ^ offset
    else:
        source = low | (offset & inner)
    return source, source <= top


def _whole(d: Decoder, operand: Operand, i: Instruction) -> Callable[["Machine"], Array]:
    """An operand over all lanes of the wave."""
    kind = i.modifiers[-1]
    read = d.source(operand, kind if kind != "pred" else "pred", i)

    def get(m: "Machine") -> Array:
        value = read(m, Group(m.lanes, None))
        return value if len(value) == m.lanes.count else np.repeat(value, m.lanes.count)

    return get


def vote(d: Decoder, i: Instruction) -> Step:
    """vote.sync.{all,any,uni}.pred p, a, mask and vote.sync.ballot.b32 d, a, mask."""
    if i.modifiers[0] != "sync":
        raise UnsupportedError(i)
    mode = i.modifiers[1]
    number, a = d.number(i.operands[0], i), d.picked(i.operands[1], "pred", i)

    def body(m: "Machine", g: Group) -> None:
        yes = np.zeros(m.lanes.count, np.bool_)
        yes[g.index] = a(m, g)
        said, here = bits_of(yes), bits_of(g.dense)
        answers = {"ballot": said, "all": said == here, "any": said != 0, "uni": (said == here) | (said == 0)}
        m.registers[number] = g.put(m.registers[number], np.repeat(answers[mode], 32)[g.index])

    if mode not in ("ballot", "all", "any", "uni"):
        raise UnsupportedError(i)
    return synced(mask_reader(d, i.operands[2], i), body)


def match(d: Decoder, i: Instruction) -> Step:
    """match.any.sync and match.all.sync of b32 and b64."""
    mode, kind = i.modifiers[0], i.modifiers[-1]
    first = i.operands[0]
    number = d.number(first.first if isinstance(first, Pair) else first, i)
    valid = d.number(first.second, i) if isinstance(first, Pair) else -1
    a = d.picked(i.operands[1], kind, i)

    def body(m: "Machine", g: Group) -> None:
        values = np.zeros(m.lanes.count, np.uint64)
        values[g.index] = a(m, g)
        rows, here = values.reshape(-1, 32), g.dense.reshape(-1, 32)
        same = (rows[:, :, None] == rows[:, None, :]) & here[:, None, :]
        peers = (same * BITS).sum(axis=2, dtype=np.uint64).astype(np.uint32)
        if mode == "all":
            agree = peers == bits_of(g.dense)[:, None]
            peers = np.where(agree, peers, np.uint32(0))
            if valid >= 0:
                m.registers[valid] = g.put(m.registers[valid], agree.reshape(-1)[g.index])
        m.registers[number] = g.put(m.registers[number], peers.reshape(-1)[g.index])

    if mode not in ("any", "all"):
        raise UnsupportedError(i)
    return synced(mask_reader(d, i.operands[2], i), body)


def redux(d: Decoder, i: Instruction) -> Step:
    """redux.sync.op.{u32,s32,b32} d, a, mask. Lanes with one mask form one reduction."""
    op, kind = i.modifiers[1], i.modifiers[-1]
    signed = np.int32 if kind == "s32" else np.uint32
    functions = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}
    functions["xor"] = np.bitwise_xor
    if op not in functions or kind not in ("u32", "s32", "b32"):
        raise UnsupportedError(i)
    neutral = {"add": 0, "or": 0, "xor": 0, "and": -1 & FULL}
    ends = np.iinfo(signed)
    start = ends.max if op == "min" else ends.min if op == "max" else neutral[op]
    number, a = d.number(i.operands[0], i), d.picked(i.operands[1], "b32", i)
    members = mask_reader(d, i.operands[2], i)

    def body(m: "Machine", g: Group) -> None:
        values = np.full(m.lanes.count, start, signed if op in ("min", "max") else np.uint32)
        values[g.index] = a(m, g).view(values.dtype)
        if members is None:
            got = functions[op].reduce(values.reshape(-1, 32), axis=1)
            found = np.repeat(got.astype(values.dtype), 32)[g.index]
        else:
            masks = members(m, g)[:, None] & BITS != 0
            rows = values.reshape(-1, 32)[m.lanes.row[g.index]]
            found = functions[op].reduce(np.where(masks, rows, np.array(start).astype(values.dtype)), axis=1)
        m.registers[number] = g.put(m.registers[number], found.astype(values.dtype).view(np.uint32))

    return synced(members, body)


def elect(d: Decoder, i: Instruction) -> Step:
    """elect.sync d|p, mask: the lowest lane of the mask that is here."""
    first = i.operands[0]
    if not isinstance(first, Pair):
        raise PtxError(i.line, "elect.sync has two results")
    number = d.number(first.first, i)
    chosen = d.number(first.second, i)

    def body(m: "Machine", g: Group) -> None:
        leader = g.dense.reshape(-1, 32).argmax(axis=1)
        lanes = np.repeat(leader, 32)[g.index]
        if number >= 0:
            m.registers[number] = g.put(m.registers[number], lanes.astype(np.uint32))
        if chosen >= 0:
            m.registers[chosen] = g.put(m.registers[chosen], lanes == m.lanes.lane[g.index])

    return synced(mask_reader(d, i.operands[1], i), body)
