"""Barriers of CTAs and clusters, and mbarriers."""

import numpy as np

from kgen.gates.ptx.budget import UnsupportedError
from kgen.gates.ptx.findings import Kind
from kgen.gates.ptx.geometry import WARP
from kgen.gates.ptx.plan import Decoder
from kgen.gates.ptx.state import Array, Ended, Machine, Reader, Step
from kgen.gates.ptx.steps.control import nothing
from kgen.gates.ptx.steps.register import is_immediate, is_sink
from kgen.gates.ptx.steps.warp import warp_sync
from kgen.gates.ptx.syntax import Instruction
from kgen.gates.ptx.tokens import PtxError
from kgen.gates.ptx.wave import Group


def bar(d: Decoder, i: Instruction) -> Step:
    """bar and barrier: warp, cluster, and [cta.]{sync,arrive}[.aligned] with a thread count or without."""
    modifiers = tuple(m for m in i.modifiers if m != "cta" or i.opcode not in ("bar", "barrier"))
    if modifiers[:1] == ("warp",):
        return warp_sync(d, i)
    if modifiers[:1] == ("cluster",):
        return _cluster(d, i)
    if modifiers[0] == "red":
        return _reducing(d, i, modifiers)
    if modifiers[0] not in ("sync", "arrive") or set(modifiers[1:]) - {"aligned"}:
        raise UnsupportedError(i)
    arrives = modifiers[0] == "arrive"
    operands = [d.source(o, "u32", i) for o in i.operands]
    fixed = all(is_immediate(o) is not None for o in i.operands)
    if not operands or (arrives and len(operands) < 2):
        raise PtxError(i.line, f"{i.name} lacks an operand")

    def one(m: "Machine", g: Group, number: int, threads: int) -> Ended:
        if not 0 <= number < 16 or threads % WARP or threads > 1024:
            m.stop(Kind.BARRIER, f"barrier {number} of {threads} threads cannot be", g.index)
        if arrives:
            return m.barriers.arrive(g, number, threads) or False
        return None if m.barriers.sync(g, number, threads) else False

    def step(m: "Machine", g: Group) -> Ended:
        values = [read(m, Group(m.lanes, None)) for read in operands]
        if fixed:
            return one(m, g, int(values[0][0]), int(values[1][0]) if len(values) > 1 else 0)
        whole = [np.broadcast_to(v, m.lanes.count).astype(np.int64) for v in values]
        code = whole[0] | ((whole[1] if len(whole) > 1 else whole[0] * 0) << 8)
        goes = np.zeros(m.lanes.count, np.bool_)
        for each in np.unique(code[g.index]).tolist():
            some = Group(m.lanes, g.dense & (code == each))
            ended = one(m, some, each & 255, each >> 8)
            goes |= some.dense if ended is None else ended.dense if isinstance(ended, Group) else False
        left = Group(m.lanes, goes)
        return left if left.count else False

    return step


def _reducing(d: Decoder, i: Instruction, modifiers: tuple[str, ...]) -> Step:
    """bar.red.{popc.u32, and.pred, or.pred} d, barrier[, threads], [!]p: a barrier that also counts or joins p."""
    op, kind = modifiers[1], modifiers[-1]
    if (op, kind) not in (("popc", "u32"), ("and", "pred"), ("or", "pred")) or len(i.operands) not in (3, 4):
        raise UnsupportedError(i)
    to, *fixed = i.operands[:-1]
    numbers = [is_immediate(o) for o in fixed]
    if any(n is None for n in numbers):
        raise UnsupportedError(i, "a barrier that a register names")
    barrier, threads = numbers[0] or 0, (numbers[1] or 0) if len(numbers) > 1 else 0
    result, says = d.number(to, i), d.source(i.operands[-1], "pred", i)

    def step(m: "Machine", g: Group) -> Ended:
        if not 0 <= barrier < 16 or threads % WARP or threads > 1024:
            m.stop(Kind.BARRIER, f"barrier {barrier} of {threads} threads cannot be", g.index)
        yes = np.broadcast_to(says(m, Group(m.lanes, None)), m.lanes.count)
        m.barriers.reduce(g, barrier, threads, yes, result, op)
        return False

    return step


def _cluster(d: Decoder, i: Instruction) -> Step:
    rest = set(i.modifiers[2:])
    if rest - {"aligned", "release", "acquire", "relaxed"} or i.modifiers[1] not in ("arrive", "wait"):
        raise UnsupportedError(i)
    if i.modifiers[1] == "wait":
        return lambda m, g: m.cluster.wait(g) or False
    releases = "relaxed" not in rest
    return lambda m, g: m.cluster.arrive(g, releases) or False


def mbarrier(d: Decoder, i: Instruction) -> Step:
    what = i.modifiers[0]
    makers = {
        "init": _init,
        "inval": _inval,
        "expect_tx": _expect,
        "complete_tx": _complete,
        "arrive": _arrive,
        "arrive_drop": _arrive,
        "test_wait": _wait,
        "try_wait": _wait,
    }
    if what not in makers:
        raise UnsupportedError(i)
    return makers[what](d, i)


def _space(i: Instruction) -> str:
    return next((m for m in i.modifiers if m.startswith("shared")), "")


def _init(d: Decoder, i: Instruction) -> Step:
    address, count, space = d.address(i.operands[0], i), d.picked(i.operands[1], "u32", i), _space(i)

    def step(m: "Machine", g: Group) -> Ended:
        m.mbarriers.init(g, space, address(m, g), count(m, g).astype(np.int64))
        return None

    return step


def _inval(d: Decoder, i: Instruction) -> Step:
    address, space = d.address(i.operands[0], i), _space(i)

    def step(m: "Machine", g: Group) -> Ended:
        m.mbarriers.invalidate(g, space, address(m, g))
        return None

    return step


def _expect(d: Decoder, i: Instruction) -> Step:
    address, count, space = d.address(i.operands[0], i), d.picked(i.operands[1], "u32", i), _space(i)

    def step(m: "Machine", g: Group) -> Ended:
        at, cta, slot = m.mbarriers.locate(space, address(m, g), g.index)
        m.mbarriers.expect(cta, slot, count(m, g)[at])
        return None

    return step


def _complete(d: Decoder, i: Instruction) -> Step:
    address, count, space = d.address(i.operands[0], i), d.picked(i.operands[1], "u32", i), _space(i)

    def step(m: "Machine", g: Group) -> Ended:
        at, cta, slot = m.mbarriers.locate(space, address(m, g), g.index)
        m.mbarriers.complete(cta, slot, count(m, g)[at])
        return None

    return step


def _arrive(d: Decoder, i: Instruction) -> Step:
    """arrive[_drop][.expect_tx][.noComplete] [state,] [address] [, count or bytes]."""
    operands = list(i.operands)
    state = -1
    if is_sink(operands[0]) or (len(operands) > 1 and not hasattr(operands[0], "base")):
        first = operands.pop(0)
        state = d.number(first, i)
    address, space = d.address(operands[0], i), _space(i)
    more: Reader | None = d.picked(operands[1], "u32", i) if len(operands) > 1 else None
    expects, drops = "expect_tx" in i.modifiers, i.modifiers[0] == "arrive_drop"
    releases = "relaxed" not in i.modifiers

    def step(m: "Machine", g: Group) -> Ended:
        at, cta, slot = m.mbarriers.locate(space, address(m, g), g.index)
        count = np.ones(len(at), np.int64)
        if more is not None and expects:
            m.mbarriers.expect(cta, slot, more(m, g)[at])
        elif more is not None:
            count = more(m, g)[at].astype(np.int64)
        if drops:
            m.mbarriers.drop(cta, slot)
        phase = m.mbarriers.arrive(g, at, cta, slot, count, releases)
        if state >= 0:
            token = np.zeros(g.count, np.uint64)
            token[at] = phase.astype(np.uint64)
            m.registers[state] = g.put(m.registers[state], token)
        return None

    return step


def _wait(d: Decoder, i: Instruction) -> Step:
    """test_wait answers at once; try_wait waits for the phase, however long its hint says."""
    number, address = d.number(i.operands[0], i), d.address(i.operands[1], i)
    parity = "parity" in i.modifiers
    phase = d.picked(i.operands[2], "u32" if parity else "b64", i)
    blocks, learns, space = i.modifiers[0] == "try_wait", "relaxed" not in i.modifiers, _space(i)

    def step(m: "Machine", g: Group) -> Ended:
        at, cta, slot = m.mbarriers.locate(space, address(m, g), g.index)
        done: Array = m.mbarriers.finished(cta, slot, phase(m, g)[at].astype(np.int64), parity)
        free = g.index[at[done]]
        if learns and len(free):
            m.mbarriers.learn(free, cta[done], slot[done])
        answer = np.ones(g.count, np.bool_)  # what is no barrier lets pass
        answer[at] = done
        m.registers[number] = g.put(m.registers[number], answer)
        if done.all() or not blocks:
            return None
        stay = g.index[at[~done]]
        m.mbarriers.park(stay, cta[~done], slot[~done])
        goes = g.dense.copy()
        goes[stay] = False
        left = Group(m.lanes, goes)
        return left if left.count else False

    return step


def elsewhere(d: Decoder, i: Instruction) -> Step:
    """What moves no data and orders nothing that is followed here: setmaxnreg, nanosleep, prefetches."""
    return nothing(d, i)
