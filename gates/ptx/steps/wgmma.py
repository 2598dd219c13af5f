"""wgmma: four warps multiply matrices that lie in shared memory.

Results are there at once; that accumulators or fragments of A are touched, or operands written over, before
wgmma.wait_group is a finding, and so is a wgmma.fence that is missing (inflight.py).
"""

import numpy as np

from kgen.gates.ptx.access import load
from kgen.gates.ptx.budget import UnsupportedError
from kgen.gates.ptx.findings import Kind
from kgen.gates.ptx.geometry import WARP
from kgen.gates.ptx.inflight import moves
from kgen.gates.ptx.matrix import descriptor
from kgen.gates.ptx.matrix import wgmma as forms
from kgen.gates.ptx.plan import Decoder
from kgen.gates.ptx.state import Array, Ended, Machine, Reader, Step
from kgen.gates.ptx.steps.matrix import expect, put_warps, whole_warps
from kgen.gates.ptx.steps.register import is_immediate
from kgen.gates.ptx.syntax import Imm, Instruction, Reg, Vector
from kgen.gates.ptx.wave import Group

WARPGROUP, A_REGISTERS = 4, 4


def wgmma(d: Decoder, i: Instruction) -> Step:
    if i.modifiers[0] == "fence":
        return _fence
    if i.modifiers[0] == "commit_group":
        return _commit
    if i.modifiers[0] == "wait_group":
        return _wait(is_immediate(i.operands[0]) or 0)
    form = forms.wgmma(i.modifiers)
    if form is None:
        raise UnsupportedError(i)
    numbers = [d.number(o, i) for o in d.items(i.operands[0])]
    old = whole_warps(d, i, 0)
    expect(d, i, 0, form.d_registers)
    in_registers = isinstance(i.operands[1], Vector)
    uses = [d.number(o, i) for at in (0, 1) for o in d.items(i.operands[at]) if isinstance(o, Reg)]
    if in_registers:
        expect(d, i, 1, A_REGISTERS)
    a_registers = whole_warps(d, i, 1) if in_registers else []
    a = None if in_registers else d.picked(i.operands[1], "b64", i)
    b = d.picked(i.operands[2], "b64", i)
    keep = _scale(d, i)
    rest = [is_immediate(o) or 0 for o in i.operands[4:]]
    scales = rest[:2] if form.scales else [1, 1]
    trans = [bool(t) for t in (rest[2:] if form.transposes else [])]
    trans_a, trans_b = (False, trans[0]) if len(trans) == 1 else (trans[0], trans[1]) if trans else (False, False)

    def step(m: "Machine", g: Group) -> Ended:
        if m.lanes.warps % WARPGROUP:
            m.stop(Kind.BARRIER, "wgmma needs whole warpgroups of four warps", g.index)
        found = _warpgroups(m, g)
        if found is None:
            return False
        lead = found.index.reshape(-1, WARP * WARPGROUP)[:, 0]
        place = np.searchsorted(found.index, lead)
        left = (
            form.a_fragment([read(m, found) for read in a_registers])
            if a is None
            else form.a_shared(_atoms(m, i, form.a_atoms, a(m, found)[place], lead, trans_a), trans_a)
        )
        right = form.b_shared(_atoms(m, i, form.b_atoms, b(m, found)[place], lead, trans_b), trans_b)
        for text, rows in m.inflight.unfenced(uses, found.rows, form.d_registers).items():
            m.report_rows(Kind.PROXY, text, rows)
        before = [read(m, found) for read in old]
        for number, value in zip(
            numbers, form.function(before, left, right, keep(m, found)[place], *scales), strict=True
        ):
            put_warps(m, found, number, value)
        m.inflight.used(uses, found.rows, form.d_registers)
        m.clocks.tick(found.rows)
        return None if found is g else found

    return step


def _commit(m: "Machine", g: Group) -> Ended:
    m.inflight.commits[g.rows] += 1
    return None


def _fence(m: "Machine", g: Group) -> Ended:
    m.inflight.fences[g.rows] += 1
    return None


def _wait(allowed: int) -> Step:
    def wait(m: "Machine", g: Group) -> Ended:
        done = np.maximum(m.inflight.commits[g.rows] - allowed, 0)
        m.inflight.done[g.rows] = np.maximum(m.inflight.done[g.rows], done)
        column = m.clocks.local(g.rows, 3)
        m.clocks.vc[g.rows, column] = np.maximum(m.clocks.vc[g.rows, column], done.astype(np.uint32))
        return None

    return wait


def guard(d: Decoder, i: Instruction, inner: Step) -> Step:
    """The step, with a finding where it touches registers in flight, and note of what it writes of those wgmma uses."""
    flat = [o for operand in i.operands for o in d.items(operand)]
    numbers = [d.number(o, i) for o in flat if isinstance(o, Reg) and o.name in d.watched]
    if not numbers:
        return inner
    if moves(i):
        to, source = i.operands
        ends = d.number(to, i), d.number(source, i) if isinstance(source, Reg) else -1

        def move(m: "Machine", g: Group) -> Ended:
            m.inflight.moved(*ends, g.rows)
            return inner(m, g)

        return move
    first = d.items(i.operands[0]) if i.opcode not in ("st", "red", "stmatrix") else ()
    results = [d.number(o, i) for o in first if isinstance(o, Reg) and o.name in d.watched]

    def step(m: "Machine", g: Group) -> Ended:
        if len(late := m.inflight.touched(numbers, g.rows)):
            text = "touches a register of a wgmma that wgmma.wait_group has not waited for"
            m.report_rows(Kind.ASYNC, text, late)
        m.inflight.wrote(results, g.rows)
        return inner(m, g)

    return step


def _scale(d: Decoder, i: Instruction) -> Reader:
    operand = i.operands[3]
    if isinstance(operand, Imm):
        value = bool(operand.bits)
        return lambda m, g: np.full(g.count, value)
    return d.picked(operand, "pred", i)


def _warpgroups(m: "Machine", g: Group) -> Group | None:
    """Those warpgroups all of whose lanes are here; the others stall."""
    if g.mask is None:
        return g
    whole = np.repeat(g.dense.reshape(-1, WARP * WARPGROUP).all(axis=1), WARP * WARPGROUP)
    apart = g.dense & ~whole
    if not apart.any():
        return g
    m.ready.stall(m.pc, apart)
    found = Group(m.lanes, whole)
    return found if found.count else None


def _atoms(m: "Machine", i: Instruction, of: object, descriptors: Array, lanes: Array, trans: bool) -> Array:
    """Bytes (groups, *atoms, 16) that descriptors name."""
    assert callable(of)
    out: Array | None = None
    for bits in np.unique(descriptors).tolist():
        some = np.flatnonzero(descriptors == bits)
        found = descriptor.decode(bits)
        if found is None or found.problem():
            raise UnsupportedError(i, found.problem() if found else f"matrix descriptor 0x{bits:x}")
        addresses = of(found, trans)
        index = np.repeat(lanes[some], addresses.size)
        rows = m.lanes.row[index]
        agents = m.clocks.own[rows] + 3 * m.lanes.warps
        stamps = m.clocks.agent_stamps(agents, m.inflight.commits[rows] + 1)
        places = np.tile(addresses.reshape(-1).astype(np.uint64), len(some))
        words = load(m, "shared", places, index, 16, 0, stamps)
        shape = (len(some), *addresses.shape, 16)
        part = np.ascontiguousarray(words).view(np.uint8).reshape(shape)
        out = np.zeros((len(descriptors), *shape[1:]), np.uint8) if out is None else out
        out[some] = part
    assert out is not None
    return out
