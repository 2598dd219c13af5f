"""Control flow of an entry: blocks, the order in which they run, loops that may wait for others."""

import itertools
from collections.abc import Mapping, Sequence

from kgen.gates.ptx.syntax import Entry, Instruction, Sym
from kgen.gates.ptx.tokens import PtxError

BRANCHES = ("bra", "brx")
MAX_TABLE = 4096  # targets of one brx.idx
MAX_TARGETS = 1 << 20  # of all brx.idx of an entry
WAITING = ("test_wait", "try_wait", "acquire", "relaxed", "volatile", "mmio")


def target(entry: Entry, instruction: Instruction) -> int:
    """Index of the instruction that a branch goes to."""
    operand = instruction.operands[0] if len(instruction.operands) == 1 else None
    if not isinstance(operand, Sym) or operand.name not in entry.labels:
        raise PtxError(instruction.line, "a branch needs one label of its entry")
    return entry.labels[operand.name]


def targets(entry: Entry, instruction: Instruction) -> list[int]:
    """Indexes of the instructions that a branch may go to; none for other instructions."""
    if instruction.opcode == "brx":
        return listed(entry, instruction)
    return [target(entry, instruction)] if instruction.opcode == "bra" else []


def listed(entry: Entry, instruction: Instruction) -> list[int]:
    """Where each index of `brx.idx index, list` goes."""
    operand = instruction.operands[1] if len(instruction.operands) == 2 else None
    names = entry.tables.get(operand.name, ()) if isinstance(operand, Sym) else ()
    if not 0 < len(names) <= MAX_TABLE or any(name not in entry.labels for name in names):
        raise PtxError(instruction.line, f"brx.idx needs a list of 1 to {MAX_TABLE} labels of its entry")
    return [entry.labels[name] for name in names]


def _ends(instruction: Instruction) -> bool:
    """Whether nothing falls through."""
    return instruction.opcode in (*BRANCHES, "exit", "ret", "trap") and instruction.guard is None


def leaders(entry: Entry) -> set[int]:
    """Instructions that something branches to."""
    return {to for i in entry.instructions for to in targets(entry, i)}


def blocks(entry: Entry) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Start and end of every block, and the blocks that follow it: the next one first, what it branches to last."""
    code = entry.instructions
    starts = sorted({0, *leaders(entry), *(i + 1 for i, x in enumerate(code) if x.opcode in BRANCHES or _ends(x))})
    starts = [s for s in starts if s < len(code)]
    ends = [*starts[1:], len(code)]
    number = {s: i for i, s in enumerate(starts)}
    following: list[list[int]] = []
    for end in ends:
        last = code[end - 1]
        after = [] if _ends(last) or end == len(code) else [number[end]]
        # visited last, so that they come first: a loop's body before its exit
        after += [number[to] for to in targets(entry, last) if to < len(code)]
        following.append(after)
    return list(zip(starts, ends, strict=True)), following


def ranks(entry: Entry) -> list[int]:
    """A number for each instruction (and the end): lanes at smaller ones run first. Reverse postorder of the blocks."""
    count = len(entry.instructions) + 1
    parts, following = blocks(entry)
    position = positions(following)
    found = [0] * count
    for block, (start, end) in enumerate(parts):
        for i in range(start, end):
            found[i] = position[block] * count + i
    found[-1] = count**2
    return found


def positions(following: Sequence[Sequence[int]]) -> dict[int, int]:
    """Block -> position in reverse postorder; blocks that nothing reaches come last."""
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
    left = MAX_TARGETS
    for instruction in entry.instructions:
        if instruction.opcode == "brx" and (left := left - len(targets(entry, instruction))) < 0:
            raise PtxError(instruction.line, f"more than {MAX_TARGETS} targets of brx.idx")
    before = [0, *itertools.accumulate(int(_waits(i)) for i in entry.instructions)]
    found: dict[int, bool] = {}
    for at, instruction in enumerate(entry.instructions):
        back = [to for to in targets(entry, instruction) if to <= at]
        if back:
            found[at] = before[at + 1] > before[min(back)]
    return found


def _waits(instruction: Instruction) -> bool:
    memory = instruction.opcode in ("ld", "mbarrier") and any(m in WAITING for m in instruction.modifiers)
    return memory or instruction.opcode in ("atom", "nanosleep")
