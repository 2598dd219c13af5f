"""st.async and red.async: stores and reductions into another CTA's shared memory that complete on an mbarrier there."""

from kgen.gates.ptx.access import put, resolve
from kgen.gates.ptx.arith import width
from kgen.gates.ptx.budget import UnsupportedError
from kgen.gates.ptx.plan import Decoder
from kgen.gates.ptx.state import Ended, Machine, Step
from kgen.gates.ptx.steps.atomic import reduction, rounds
from kgen.gates.ptx.steps.memory import VECTORS, rows
from kgen.gates.ptx.syntax import Instruction
from kgen.gates.ptx.wave import Group

COMPLETES = "mbarrier::complete_tx::bytes"
KNOWN = ("async", "weak", "relaxed", "cluster", "shared::cluster", COMPLETES)


def store(d: Decoder, i: Instruction) -> Step:
    """st.async.shared::cluster [address], value, [mbarrier]; red.async with an operation on b32 or b64 integers."""
    kind, size = i.modifiers[-1], width(i.modifiers[-1]) // 8
    names = [m for m in i.modifiers[:-1] if m not in KNOWN and m not in VECTORS]
    function = reduction(i, names[0], kind) if i.opcode == "red" and len(names) == 1 else None
    if COMPLETES not in i.modifiers or (i.opcode == "st" and names) or (i.opcode == "red" and function is None):
        raise UnsupportedError(i)
    to, barrier = d.address(i.operands[0], i), d.address(i.operands[2], i)
    sources = [d.picked(o, f"b{size * 8}", i) for o in d.items(i.operands[1])]
    whole = size * len(sources)

    def step(m: "Machine", g: Group) -> Ended:
        places, values = to(m, g), rows([read(m, g) for read in sources], size)
        at, cta, slot = m.mbarriers.locate("shared::cluster", barrier(m, g), g.index)
        stamps = m.mbarriers.stamp(cta, slot)
        for target in resolve(m, "shared::cluster", places[at], g.index[at], whole, True):
            chosen = slice(None) if target.at is None else target.at
            new, marks = values[at][chosen], stamps[chosen]
            if function is None:
                put(m, target, whole, new, 0, marks)
                continue
            for turn in rounds(target.offsets, target.index):
                part = target.keep(turn)
                put(m, part, whole, function(part.block.load(part.offsets, whole), new[turn], None), 0, marks[turn])
        m.mbarriers.complete(cta, slot, (cta * 0) + whole)
        return None

    return step
