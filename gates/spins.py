"""Kernels that wait in a loop for another block: they read one place of global memory until its value lets them go on.

    waiting(text)    their names in PTX: a loop that ends by what a strong load (acquire, relaxed, volatile) reads from
                     an address that the loop does not change

It hangs a GPU where the blocks that are waited for cannot run beside those that wait, so a reader should see it. The
PTX comes from the untrusted build: a hint, no proof, and no verdict depends on it. Not covered: waits by atomics (the
holder of a lock runs already), on addresses that the loop computes, in shared memory.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kgen.gates.audit.phases import ENTRY, LABEL

LINE = re.compile(r"^\s*\{?\s*(?:@!?(%\w+)\s+)?([a-z][\w.:]*)\s*([^;]*);")
REGISTER = re.compile(r"%\w+")
STRONG = re.compile(r"^ld\.(?:acquire|relaxed|volatile)(?!\S*\.shared)\S*$")
ANY = re.compile(r"\bld\.(?:acquire|relaxed|volatile)")  # most kernels have none
LONGEST = 200  # instructions of a loop that still is a wait

Instruction = tuple[str, str, str]  # predicate or "", opcode, operands


def waiting(text: str) -> tuple[str, ...]:
    """In the order of the text. Never raises for what a text holds."""
    if not ANY.search(text):
        return ()
    return tuple(dict.fromkeys(name for name, body, labels in _kernels(text) if _waits(body, labels)))


@functools.lru_cache(maxsize=512)
def waiting_file(path: Path) -> tuple[str, ...]:
    """Of a file that is named by its content; nothing of one that is gone."""
    try:
        return waiting(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ()


def _kernels(text: str) -> Iterator[tuple[str, list[Instruction], dict[str, int]]]:
    name, body, labels = "", list[Instruction](), dict[str, int]()
    for line in text.splitlines():
        if match := ENTRY.match(line):
            if name:
                yield name, body, labels
            name, body, labels = match[1], [], {}
        elif name and (match := LABEL.match(line)):
            labels[match[1]] = len(body)
        elif name and (match := LINE.match(line)):
            body.append((match[1] or "", match[2], match[3].strip()))
    if name:
        yield name, body, labels


def _waits(body: Sequence[Instruction], labels: dict[str, int]) -> bool:
    for at, (_, opcode, operands) in enumerate(body):
        start = _target(operands, labels) if opcode.startswith("bra") else None
        if start is not None and start <= at < start + LONGEST and _until_read(body, start, at, labels):
            return True
    return False


def _until_read(body: Sequence[Instruction], start: int, end: int, labels: dict[str, int]) -> bool:
    """Whether a branch that stays in or leaves the loop [start, end] hangs on such a load in it."""
    loop = body[start : end + 1]
    changed = {r for _, opcode, operands in loop if not opcode.startswith(("st", "bra")) for r in _written(operands)}
    known: set[str] = set()
    for predicate, opcode, operands in loop:
        written, read = _written(operands), _read(operands)
        if STRONG.match(opcode):
            known |= written if not read & changed else set()
        elif opcode.startswith("bra"):
            target = _target(operands, labels)
            if predicate in known and target is not None and (target == start or not start <= target <= end):
                return True
        elif (read | {predicate}) & known and not opcode.startswith("st"):
            known |= written
    return False


def _target(operands: str, labels: dict[str, int]) -> int | None:
    return labels.get(operands.split()[-1]) if operands else None


def _written(operands: str) -> set[str]:
    """The first operand's registers, or those of the vector that stands first."""
    first = operands.partition("}")[0] if operands.startswith("{") else operands.partition(",")[0]
    return set(REGISTER.findall(first)) if not first.startswith("[") else set()


def _read(operands: str) -> set[str]:
    rest = operands.partition("}")[2] if operands.startswith("{") else operands.partition(",")[2]
    return set(REGISTER.findall(rest))
