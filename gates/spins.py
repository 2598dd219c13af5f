"""Kernels that wait in a loop for another block: they read one place of global memory until its value lets them go on.

    waiting(text)          their names in PTX: a loop that ends by what a strong load (acquire, relaxed, volatile) or an
                           atomic that changes nothing reads from an address that the loop does not change
    breach(record, ptx)    "", or the launch that may hang: its blocks wait for one another, it is not cooperative, and
                           they are not sure to run at once

Where the blocks that are waited for find no place beside those that wait, the GPU hangs; a cooperative launch of too
many is an error instead. PTX comes from the untrusted build: this keeps honest mistakes out, no malice. Not covered:
locks (their holder runs already), waits on addresses that the loop computes, waits in shared memory (the blocks of a
cluster run at once), GPUs with fewer SMs than `occupancy` counts, other kernels on the GPU.
"""

import functools
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kgen.gates import occupancy
from kgen.gates.audit.ptx import in_lines
from kgen.records import BuildRecord, Launch

CODE = "audit.wait"

# What a line is, as in audit.phases: a kernel's entry, a label, or predicate, opcode and operands.
LINE = re.compile(
    r"^[^\S\n]*(?:(?:\.visible[^\S\n]+)?\.entry[^\S\n]+([\w$]+)|([\w$]+):[^\S\n]*(?:$|//)"
    r"|\{?[^\S\n]*(?:@!?(%\w+)[^\S\n]+)?([a-z][\w.:]*)[^\S\n]*([^;\n]*);).*",
    re.MULTILINE,
)
REGISTER = re.compile(r"%\w+")
STRONG = re.compile(r"^ld\.(?:acquire|relaxed|volatile|mmio)(?!\S*\.shared)\S*$")
ATOMIC = re.compile(r"^atom(?!\S*\.shared)\S*\.(add|or|xor|cas)\b")
READS = ("ld.acquire", "ld.relaxed", "ld.volatile", "ld.mmio", "atom")  # most kernels have none of them
ZERO = re.compile(r"^(%\w+),\s*0$")
LONGEST = 200  # instructions of a loop that still is a wait

Instruction = tuple[str, str, str]  # predicate or "", opcode, operands


def waiting(text: str) -> tuple[str, ...]:
    """In the order of the text. Never raises for what a text holds."""
    if not any(word in text for word in READS):
        return ()
    return tuple(dict.fromkeys(name for name, body, labels in _kernels(text) if _waits(body, labels)))


@functools.lru_cache(maxsize=512)
def waiting_file(path: Path) -> tuple[str, ...]:
    """Of a file that is named by its content; nothing of one that is gone."""
    try:
        return waiting(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ()


def breach(record: BuildRecord, ptx: Path) -> str:
    """Of the record's launches the first that may hang, in one line with what to do; "" where none does."""
    names = waiting_file(ptx)
    for launch in record.launches if names else ():
        blocks, fits = math.prod(launch.grid), _sure(record, launch)
        if launch.kernel in names and not launch.attributes.get("cooperative") and blocks > fits:
            clusters = f" in clusters of {math.prod(launch.cluster)}" if math.prod(launch.cluster) > 1 else ""
            return (
                f"kernel {launch.kernel[:60]}: its blocks wait in a loop for one another, and of the {blocks}{clusters}"
                f" only {fits} are sure to run at once, so that it may never end: launch it with cooperative=True"
            )
    return ""


def _sure(record: BuildRecord, launch: Launch) -> int:
    """Blocks of the launch that are sure to run at once; the audit has matched launches and kernels."""
    kernel = next(k for k in record.kernels if k.name == launch.kernel)
    smem, carveout = kernel.static_smem + launch.dynamic_smem, launch.attributes.get("smem_carveout", 0)
    threads, cluster = math.prod(launch.block), math.prod(launch.cluster)
    return occupancy.sure(record.problem.arch, threads, kernel.registers, smem, cluster, carveout)


def _kernels(text: str) -> Iterator[tuple[str, list[Instruction], dict[str, int]]]:
    name, body, labels = "", list[Instruction](), dict[str, int]()
    for entry, label, predicate, opcode, operands in LINE.findall(in_lines(text)):
        if opcode:
            body.append((predicate, opcode, operands.strip()))
        elif label:
            labels[label] = len(body)
        else:
            if name:
                yield name, body, labels
            name, body, labels = entry, [], {}
    if name:
        yield name, body, labels


def _waits(body: Sequence[Instruction], labels: dict[str, int]) -> bool:
    loops = []
    for at, (_, opcode, operands) in enumerate(body):
        start = labels.get(operands) if opcode.startswith("bra") else None
        if start is not None and at < start + LONGEST and any(map(_may_read, body[start : at + 1])):
            loops.append((start, at))
    zeros = _zeros(body) if loops else frozenset[str]()
    return any(_until_read(body, start, at, labels, zeros) for start, at in loops)


def _may_read(instruction: Instruction) -> bool:
    """Whether `_only_reads` may say so: most loops have no such instruction."""
    return bool(STRONG.match(instruction[1]) or ATOMIC.match(instruction[1]))


def _until_read(
    body: Sequence[Instruction], start: int, end: int, labels: dict[str, int], zeros: frozenset[str]
) -> bool:
    """Whether a branch that stays in or leaves the loop [start, end] hangs on such a read in it, of this turn or the
    one before."""
    loop = body[start : end + 1]
    changed = {register for _, _, operands in loop for register in _written(operands)}
    known: set[str] = set()
    for predicate, opcode, operands in (*loop, *loop):
        if _only_reads(opcode, operands, zeros):
            known |= _written(operands) if not _address(operands) & changed else set()
        elif opcode.startswith("bra"):
            target = labels.get(operands)
            if predicate in known and target is not None and not start < target <= end:
                return True
        elif (_read(operands) | {predicate}) & known:
            known |= _written(operands)
    return False


def _only_reads(opcode: str, operands: str, zeros: frozenset[str]) -> bool:
    """A strong load, or an atomic that leaves what it reads: of nothing added, or the same value put back."""
    if match := ATOMIC.match(opcode):
        first, *more = [word.strip() for word in operands.split(",")[2:4]] or [""]
        return more == [first] if match[1] == "cas" else first in zeros
    return bool(STRONG.match(opcode))


def _zeros(body: Sequence[Instruction]) -> frozenset[str]:
    """What stands for nothing: 0, and registers that are 0 and nothing else."""
    found, others = {"0"}, set[str]()
    for _, opcode, operands in body:
        if opcode.startswith("mov.") and (match := ZERO.match(operands)):
            found.add(match[1])
        else:
            others |= _written(operands)
    return frozenset(found - others)


def _address(operands: str) -> set[str]:
    return set(REGISTER.findall(operands.partition("[")[2].partition("]")[0]))


def _written(operands: str) -> set[str]:
    """The first operand's registers, or those of the vector that stands first; of a store none."""
    first = operands.partition("}")[0] if operands.startswith("{") else operands.partition(",")[0]
    return set(REGISTER.findall(first)) if not first.startswith("[") else set()


def _read(operands: str) -> set[str]:
    rest = operands.partition("}")[2] if operands.startswith("{") else operands.partition(",")[2]
    return set(REGISTER.findall(rest))
