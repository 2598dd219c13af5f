"""What lanes that spin for ever wait for: rank, block, address, what it holds and what the loop compares it with.

The loop that a lane is in is read from the text: its first load that may see another thread's write, the comparisons
in it, and the branch that goes back. Not covered: loops whose address changes from turn to turn (the last one shows).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kgen.gates.ptx import flow
from kgen.gates.ptx.geometry import WARP
from kgen.gates.ptx.memory import Tensor
from kgen.gates.ptx.state import Machine
from kgen.gates.ptx.syntax import Address, Instruction, Reg

MAX_WAITS = 16
STRONG = ("volatile", "relaxed", "acquire", "mmio")


@dataclass(frozen=True)
class Wait:
    """A thread that waits for ever. `holds`: the 32-bit word at the address; `expected`: the loop's comparisons, or
    "anything but 0x...", where the word is a mailbox's sentinel."""

    rank: int
    call: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    tensor: str
    index: tuple[int, ...]
    address: int
    holds: int
    expected: str
    instruction: str
    line: int

    def __str__(self) -> str:
        where = f"{self.tensor}{list(self.index)} (0x{self.address:x})" if self.tensor else f"0x{self.address:x}"
        return (
            f"deadlock: rank {self.rank}, call {self.call}, block {self.block}, thread {self.thread} waits at line"
            f" {self.line} (`{self.instruction}`): {where} holds {self.holds:#010x}, expected {self.expected}"
        )


def loop(m: Machine, pc: int) -> tuple[Instruction, ...]:
    """The instructions of the smallest loop from `pc`, or that one alone."""
    code = m.plan.instructions
    ends = [at for at in m.plan.spins if at >= pc and pc in flow.targets(m.plan.entry, code[at])]
    return code[pc : min(ends) + 1] if ends else code[pc : pc + 1]


def describe(m: Machine, pc: int, lane: int, rank: int, call: int, sentinels: Mapping[str, int]) -> Wait:
    body = loop(m, pc)
    strong = [i for i in body if i.opcode in ("ld", "atom") and (i.opcode == "atom" or set(STRONG) & set(i.modifiers))]
    at = strong[0] if strong else body[0]
    for candidate in strong:
        tensor, offset, address = _place(m, candidate, lane)
        if tensor is not None and _word(tensor, offset, sentinels)[0] == sentinels.get(tensor.name):
            at = candidate
            break
    tensor, offset, address = _place(m, at, lane)
    holds, offset = _word(tensor, offset, sentinels) if tensor is not None else (0, 0)
    expected = "; ".join(f"`{i.text[:60]}` to let it pass" for i in body if i.opcode == "setp")[:300] or "a change"
    name = tensor.name if tensor is not None else ""
    if name in sentinels and holds == sentinels[name]:
        expected = f"anything but {holds:#010x}, the sentinel: nobody has sent it"
    index = tensor.index(offset) if tensor is not None else ()
    block = m.geometry.block_of(int(m.ctas[m.lanes.cta[lane]]))
    thread = m.geometry.thread_of(lane % (m.lanes.warps * WARP))
    return Wait(rank, call, block, thread, name, index, address, holds, expected, at.text, at.line)


def _place(m: Machine, i: Instruction, lane: int) -> tuple[Tensor | None, int, int]:
    operand = next((o for o in i.operands if isinstance(o, Address)), None)
    if operand is None or not isinstance(operand.base, Reg):
        return None, 0, 0
    number = list(m.plan.entry.registers).index(operand.base.name)
    address = (int(m.registers[number][lane]) + operand.offset) & (1 << 64) - 1
    tensor, offset = m.space.at(address)
    if tensor is None or not 0 <= offset <= tensor.nbytes - 4:
        return None, 0, address
    return tensor, offset, address


def _word(tensor: Tensor, offset: int, sentinels: Mapping[str, int]) -> tuple[int, int]:
    """The word at an offset, or the first one of the 16 bytes there that is the sentinel; and where it is."""
    words = tensor.data[offset & ~3 : (offset & ~3) + 16].view(np.uint32)
    armed = np.flatnonzero(words == sentinels.get(tensor.name, -1))
    at = int(armed[0]) if len(armed) else 0
    return int(words[at]), (offset & ~3) + 4 * at
