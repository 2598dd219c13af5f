"""Control flow of an entry: blocks, the order in which they run, loops that may wait for others."""

from collections.abc import Mapping, Sequence

from kgen.gates.ptx.syntax import Entry, Instruction, Sym
from kgen.gates.ptx.tokens import PtxError

WAITING = ("test_wait", "try_wait", "acquire", "relaxed", "volatile", "mmio")


def target(entry: Entry, instruction: Instruction) -> int:
    """Index of the instruction that a branch goes to."""
    operand = instruction.operands[0] if len(instruction.operands) == 1 else None
    if not isinstance(operand, Sym) or operand.name not in entry.labels:
        raise PtxError(instruction.line, "a branch needs one label of its entry")
    return entry.labels[operand.name]


def _ends(instruction: Instruction) -> bool:
    """Whether nothing falls through."""
    return instruction.opcode in ("bra", "exit", "ret", "trap") and instruction.guard is None


def leaders(entry: Entry) -> set[int]:
    """Instructions that something branches to."""
    return {target(entry, i) for i in entry.instructions if i.opcode == "bra"}


def ranks(entry: Entry) -> list[int]:
    """A number for each instruction (and the end): lanes at smaller ones run first. Reverse postorder of the blocks."""
    code = entry.instructions
    starts = sorted({0, *leaders(entry), *(i + 1 for i, x in enumerate(code) if x.opcode == "bra" or _ends(x))})
    starts = [s for s in starts if s < len(code)]
    ends = [*starts[1:], len(code)]
    number = {s: i for i, s in enumerate(starts)}
    following: list[list[int]] = []
    for _, end in zip(starts, ends, strict=True):
        last = code[end - 1]
        after = [] if _ends(last) or end == len(code) else [number[end]]
        if last.opcode == "bra" and (to := target(entry, last)) < len(code):
            after.append(number[to])  # visited last, so that it comes first: a loop's body before its exit
        following.append(after)
    position = _reverse_postorder(following)
    found = [0] * (len(code) + 1)
    for block, (start, end) in enumerate(zip(starts, ends, strict=True)):
        for i in range(start, end):
            found[i] = position[block] * (len(code) + 1) + i
    found[len(code)] = (len(code) + 1) ** 2
    return found


def _reverse_postorder(following: Sequence[Sequence[int]]) -> dict[int, int]:
    """Block -> position; blocks that nothing reaches come last."""
    done: list[int] = []
    seen = {0}
    stack: list[tuple[int, int]] = [(0, 0)] if following else []
    while stack:
        block, at = stack.pop()
        if at < len(following[block]):
            stack.append((block, at + 1))
            after = following[block][at]
            if after not in seen:
                seen.add(after)
                stack.append((after, 0))
        else:
            done.append(block)
    order = [*reversed(done), *(b for b in range(len(following)) if b not in seen)]
    return {block: i for i, block in enumerate(order)}


def spins(entry: Entry) -> Mapping[int, bool]:
    """Branch backwards -> whether what it jumps over can wait for another thread."""
    found = {}
    for at, instruction in enumerate(entry.instructions):
        if instruction.opcode == "bra" and (to := target(entry, instruction)) <= at:
            found[at] = any(_waits(i) for i in entry.instructions[to : at + 1])
    return found


def _waits(instruction: Instruction) -> bool:
    memory = instruction.opcode in ("ld", "mbarrier") and any(m in WAITING for m in instruction.modifiers)
    return memory or instruction.opcode in ("atom", "nanosleep")
