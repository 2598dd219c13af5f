"""An entry -> a Plan: every instruction gets its step, or the run is refused by name before it starts."""

from collections.abc import Callable

from kgen.gates.ptx import flow, inflight, overflow, undefined
from kgen.gates.ptx.budget import UnsupportedError
from kgen.gates.ptx.memory import Space
from kgen.gates.ptx.plan import Decoder
from kgen.gates.ptx.state import Ended, Plan, Step
from kgen.gates.ptx.steps import atomic, control, copy, matrix, memory, order, register, remote, sync, warp, wgmma
from kgen.gates.ptx.syntax import Entry, Instruction, Module, Not, Reg
from kgen.gates.ptx.tokens import PtxError
from kgen.gates.ptx.wave import Group

Maker = Callable[[Decoder, Instruction], Step]
MAKERS: dict[str, Maker] = {
    "activemask": control.activemask,
    "applypriority": control.nothing,
    "atom": atomic.atom,
    "bar": sync.bar,
    "barrier": sync.bar,
    "bra": control.bra,
    "brx": control.brx,
    "cp": copy.cp,
    "createpolicy": control.nothing,
    "cvta": register.cvta,
    "discard": control.nothing,
    "elect": warp.elect,
    "exit": control.leave,
    "fence": order.fence,
    "getctarank": register.getctarank,
    "griddepcontrol": control.griddepcontrol,
    "isspacep": register.isspacep,
    "ld": memory.ld,
    "ldmatrix": matrix.ldmatrix,
    "ldu": memory.ld,
    "mapa": register.mapa,
    "match": warp.match,
    "mbarrier": sync.mbarrier,
    "membar": order.fence,
    "mma": matrix.mma,
    "movmatrix": matrix.movmatrix,
    "nanosleep": control.nothing,
    "pmevent": control.nothing,
    "prefetch": control.nothing,
    "prefetchu": control.nothing,
    "red": atomic.atom,
    "redux": warp.redux,
    "ret": control.leave,
    "setmaxnreg": control.nothing,
    "shfl": warp.shfl,
    "st": memory.st,
    "stmatrix": matrix.stmatrix,
    "trap": control.trap,
    "vote": warp.vote,
    "wgmma": wgmma.wgmma,
}
GENERIC = "generic"


def step(d: Decoder, i: Instruction) -> Step:
    """Raises UnsupportedError for an instruction that nothing knows, PtxError for a malformed one."""
    made: Step | None
    try:
        if i.opcode in ("st", "red") and i.modifiers[:1] == ("async",):
            made = remote.store(d, i)
        else:
            made = MAKERS[i.opcode](d, i) if i.opcode in MAKERS else register.pure(d, i)
    except (IndexError, KeyError) as error:  # fewer words than the instruction has
        raise PtxError(i.line, f"{i.name} is not written in full ({error})") from error
    if made is None:
        raise UnsupportedError(i)
    if d.at in d.indexes and i.opcode in overflow.CARRIES:
        made = overflow.watch(d, i, d.indexes[d.at], made)
    elif overflow.addresses(i):
        made = overflow.guard(d, i, made)
    if d.watched and i.opcode != "wgmma":
        made = wgmma.guard(d, i, made)
    if d.followed:
        made = undefined.watch(d, i, made)
    whole = made if i.guard is None or i.opcode == "bra" else _guarded(d, i, made)
    return undefined.guarded(d, i, whole) if d.followed else whole


def _guarded(d: Decoder, i: Instruction, body: Step) -> Step:
    assert i.guard is not None
    wanted = isinstance(i.guard, Reg)
    number = d.number(i.guard.reg if isinstance(i.guard, Not) else i.guard, i)

    def guarded(m: "object", g: Group) -> Ended:
        some = g.narrowed(m.registers[number], wanted)  # type: ignore[attr-defined]
        if some is None:
            return None
        ended = body(m, some)  # type: ignore[arg-type]
        if ended is None or some is g:
            return ended
        rest = g.dense & ~some.dense
        return Group(g.of, rest | ended.dense if isinstance(ended, Group) else rest)

    return guarded


def plan(module: Module, entry: Entry, space: Space) -> Plan:
    d = Decoder(module, entry, space)
    d.watched = inflight.watched(entry)
    d.followed = undefined.followed(entry)
    d.indexes = overflow.watched(entry)
    steps = []
    for at, instruction in enumerate(entry.instructions):
        d.at = at
        steps.append(step(d, instruction))
    steps.append(control.leave(d, entry.instructions[-1]))  # running past the last one
    return Plan(
        entry,
        entry.instructions,
        steps,
        d.kinds,
        frozenset(flow.leaders(entry)),
        flow.ranks(entry),
        d.shared,
        d.local,
        _granules(entry),
        d.spins,
        any(order.across(i) for i in entry.instructions),
        _proxies(entry),
        frozenset(i.opcode for i in entry.instructions),
        any(i.opcode == "cp" and "bulk_group" in i.modifiers for i in entry.instructions),
        tuple(d.number(Reg(name), entry.instructions[0]) for name in sorted(d.followed)),
    )


def _proxies(entry: Entry) -> frozenset[str]:
    """Spaces that wgmma or bulk copies read and ordinary stores may write."""
    found = set()
    bulk = [i.modifiers for i in entry.instructions if i.opcode == "cp" and {"bulk", "async"} <= set(i.modifiers)]
    loads = [m for m in bulk if "mbarrier::complete_tx::bytes" in m]
    if any(i.opcode == "wgmma" for i in entry.instructions) or any("bulk_group" in m for m in bulk):
        found.add("shared")
    if any("global" not in m for m in loads):  # from shared memory into that of another CTA
        found.add("shared")
    stores = [i for i in entry.instructions if i.opcode in ("st", "atom", "red")]
    if any("global" in m for m in loads) and any(not _is_shared(i) for i in stores):
        found.add("global")
    return frozenset(found)


def _is_shared(i: Instruction) -> bool:
    return any(m.startswith(("shared", "local", "param")) for m in i.modifiers)


def _granules(entry: Entry) -> dict[str, int]:
    """Bytes of the narrowest access to shared and to global memory."""
    found = {"shared": 16, "global": 16}
    for i in entry.instructions:
        for space, size in _touches(i):
            for name in found if space == GENERIC else (space,):
                found[name] = min(found.get(name, 16), size)
    return {"shared": found["shared"], "global": found["global"]}


def _touches(i: Instruction) -> list[tuple[str, int]]:
    if widths := memory.widths(i):
        return [widths]
    if i.opcode == "cp" and i.modifiers[:2] in (("async", "ca"), ("async", "cg")):
        size = register.is_immediate(i.operands[2]) or 4
        partial = len(i.operands) > 3 and register.is_immediate(i.operands[3]) != size
        return [("shared", size), ("global", 1 if partial else size)]
    if i.opcode == "cp" and "tensor" in i.modifiers:
        return [("global", 1)]
    return [("shared", 8)] if i.opcode == "mbarrier" else []
