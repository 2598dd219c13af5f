"""What the interpreter knows, as one list: register and matrix instructions, and what the machine executes."""

from kgen.gates.ptx.arith import supported as registers
from kgen.gates.ptx.decode import MAKERS
from kgen.gates.ptx.matrix import supported as matrices


def supported() -> tuple[str, ...]:
    """Sorted lines: forms of register and matrix instructions as PTX writes them, else the opcode alone."""
    lines = {f"{line.opcode}{line.modifiers}" for line in registers()} | set(matrices())
    named = {line.partition(".")[0] for line in lines} - {"cp"}
    return tuple(sorted(lines | {opcode for opcode in MAKERS if opcode not in named}))
