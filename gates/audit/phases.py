"""The phases of a kernel as its PTX text shows them, and what each loads, stores and computes.

    of(text)    kernel -> its phases, in the order of the text

The compiler leaves no line numbers, so a phase is what lies between two barriers of the block outside of loops, or one
outermost loop. It is named by what it does: `start` up to the first barrier or loop; `main loop`, or `body` where no
loop does it, what loads or multiplies most; `reduction` after it where lanes exchange values; `epilogue` the last one
that stores. All of it is static: `load_bytes` and `store_bytes` are those of one thread that takes every path, a turn
of a loop counts once, `block_bytes` are what a block's mbarriers are told to expect of bulk copies. How often a loop
turns, what predicates leave out, and times are not in it. The PTX comes from the untrusted build: a hint, no proof.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from kgen.gates.audit.ptx import in_lines

# What a line is, for a text whose lines end in line feeds alone: a kernel's entry, a label, or opcode and operands.
LINE = re.compile(
    r"^[^\S\n]*(?:(?:\.visible[^\S\n]+)?\.entry[^\S\n]+([\w$]+)|([\w$]+):[^\S\n]*(?:$|//)"
    r"|\{?[^\S\n]*(?:@!?%\w+[^\S\n]+)?([a-z][\w.:]*)[^\S\n]*([^;\n]*);).*",
    re.MULTILINE,
)
BRANCH = re.compile(r"([\w$]+)\s*$")
CONSTANT = re.compile(r"^(%\w+),\s*(\d+)\s*$")
BARRIERS = ("bar.sync", "barrier.sync", "barrier.cta.sync", "barrier.cluster.wait", "griddepcontrol.wait")
MATRIX = ("mma.sync", "wgmma.mma_async", "tcgen05.mma")
SPIN = 12  # a loop of at most so many instructions around a try_wait is a wait, and no phase of its own
BITS = re.compile(r"^[a-z]*?(\d+)(x2)?$")
EXCHANGED = ("shuffles", "shared", "atomics")


@dataclass(frozen=True)
class Phase:
    """`loop`: its counts are those of one turn."""

    SCHEMA: ClassVar[str] = "kgen.phase/1"
    name: str
    loop: bool
    instructions: int
    load_bytes: int = 0  # of a thread
    store_bytes: int = 0  # of a thread
    block_bytes: int = 0  # of a block
    bulk: int = 0  # bulk copies
    shared: int = 0  # accesses of shared memory
    mma: int = 0
    shuffles: int = 0
    atomics: int = 0
    barriers: int = 0


Line = tuple[str, str]  # opcode, operands


def of(text: str) -> dict[str, tuple[Phase, ...]]:
    """Empty for a text without kernels. Never raises for what a text holds."""
    found: dict[str, tuple[Phase, ...]] = {}
    name, body, labels = "", list[Line](), dict[str, int]()

    def close() -> None:
        if name:
            found[name] = tuple(_named(_cut(body, labels)))

    # a brace at the start of a line may also end a piece of inline assembly
    for entry, label, opcode, operands in LINE.findall(in_lines(text)):
        if opcode:
            body.append((opcode, operands.rstrip()))
        elif label:
            labels[label] = len(body)
        else:
            close()
            name, body, labels = entry, [], {}
    close()
    return found


@functools.lru_cache(maxsize=512)
def of_file(path: Path) -> dict[str, tuple[Phase, ...]]:
    """Of a file that is named by its content."""
    return of(path.read_text(encoding="utf-8", errors="replace"))


def facts(path: Path) -> list[dict[str, Any]]:
    """As evidence holds them: a line a phase, counts that are zero left out; nothing of a file that is gone."""
    try:
        found = of_file(path)
    except OSError:
        return []
    return [
        {"kernel": kernel, **{k: v for k, v in vars(phase).items() if v}}
        for kernel, phases in found.items()
        for phase in phases
    ]


def _cut(body: Sequence[Line], labels: dict[str, int]) -> list[tuple[bool, list[Line], dict[str, int]]]:
    """(whether it is a loop, its lines, the kernel's constants) of each phase."""
    constants = _constants(body)
    pieces: list[tuple[bool, list[Line], dict[str, int]]] = []
    at = 0
    for start, stop in [*_loops(body, labels), (len(body), len(body))]:
        ends = [i + 1 for i in range(at, start) if body[i][0].startswith(BARRIERS)]
        for end in [*ends, start]:
            if at < end:
                pieces.append((False, list(body[at:end]), constants))
            at = end
        if start < stop:
            pieces.append((True, list(body[start:stop]), constants))
        at = stop
    return pieces


def _loops(body: Sequence[Line], labels: dict[str, int]) -> list[tuple[int, int]]:
    """The outermost, as half-open ranges; waits that spin are none."""
    spans = []
    for at, (opcode, operands) in enumerate(body):
        if not opcode.startswith("bra") or not (target := BRANCH.search(operands)):
            continue
        start = labels.get(target[1], at + 1)
        waits = at + 1 - start <= SPIN and any("try_wait" in op or "test_wait" in op for op, _ in body[start : at + 1])
        if start <= at and not waits:
            spans.append((start, at + 1))
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _constants(body: Sequence[Line]) -> dict[str, int]:
    """Registers that are set to a number, and to no other."""
    found: dict[str, set[int]] = {}
    for opcode, operands in body:
        if opcode.startswith("mov.") and (match := CONSTANT.match(operands)):
            found.setdefault(match[1], set()).add(int(match[2]))
    return {register: values.copy().pop() for register, values in found.items() if len(values) == 1}


def _named(pieces: Sequence[tuple[bool, list[Line], dict[str, int]]]) -> list[Phase]:
    counted = [_counted(loop, lines, constants) for loop, lines, constants in pieces]
    kept: list[Phase] = []
    for phase in counted:
        if kept and not _says_something(phase):
            phase = _sum(kept.pop(), phase)
        kept.append(phase)
    main = max(
        (i for i, p in enumerate(kept) if any(_weight(p))),
        key=lambda i: (kept[i].loop, _weight(kept[i]), -i),
        default=0,
    )
    last = max((i for i, p in enumerate(kept) if i > main and p.store_bytes and not p.loop), default=-1)
    named, loops = [], 0
    for i, phase in enumerate(kept):
        loops += phase.loop
        if i == main and (i or phase.loop):
            name = "main loop" if phase.loop else "body"
        elif phase.loop:
            name = f"loop {loops}"
        elif i == 0:
            name = "start"
        elif i == last:
            name = "epilogue"
        elif i > main and any(getattr(phase, what) for what in EXCHANGED):
            name = "reduction"
        else:
            name = "between"
        named.append(replace(phase, name=name))
    return _joined(named)


def _joined(phases: Iterable[Phase]) -> list[Phase]:
    """Neighbours of one name as one."""
    found: list[Phase] = []
    for phase in phases:
        if found and found[-1].name == phase.name and not phase.loop:
            phase = _sum(found.pop(), phase)
        found.append(phase)
    return found


def _sum(phase: Phase, more: Phase) -> Phase:
    """Under the first one's name."""
    return replace(phase, **{k: v + getattr(more, k) for k, v in vars(phase).items() if k not in ("name", "loop")})


def _weight(phase: Phase) -> tuple[int, int]:
    return phase.load_bytes + phase.bulk + phase.block_bytes, phase.mma


def _says_something(phase: Phase) -> bool:
    counts = {k: v for k, v in vars(phase).items() if k not in ("name", "loop", "instructions", "barriers")}
    return phase.loop or any(counts.values())


def _counted(loop: bool, lines: Sequence[Line], constants: dict[str, int]) -> Phase:
    n = dict.fromkeys(("load_bytes", "store_bytes", "block_bytes", "bulk", "shared", "mma", "shuffles", "atomics"), 0)
    n["barriers"] = 0
    for opcode, operands in lines:
        name, amount, operand = _kind(opcode)
        if name:
            n[name] += amount if operand is None else _number(operands.split(",")[operand], constants)
    return Phase("", loop, len(lines), **n)


@functools.lru_cache(maxsize=4096)  # kernels use some fifty
def _kind(opcode: str) -> tuple[str, int, slice | None]:
    """What an instruction counts as, "" for nothing, and how much; or the operand that says how much."""
    words = opcode.split(".")
    if words[0] in ("ld", "st") and "global" in words:
        return "load_bytes" if words[0] == "ld" else "store_bytes", _width(words), None
    if words[0] in ("ld", "st", "ldmatrix", "stmatrix") and "shared" in opcode:
        return "shared", 1, None
    if opcode.startswith("cp.async.bulk") and "global" in opcode and "commit" not in opcode:
        return "bulk", 1, None
    if opcode.startswith("cp.async.c") and "shared" in opcode:
        return "load_bytes", 0, slice(2, 3)
    if "expect_tx" in opcode:
        return "block_bytes", 0, slice(-1, None)
    if opcode.startswith(MATRIX):
        return "mma", 1, None
    if words[0] in ("shfl", "redux"):
        return "shuffles", 1, None
    if words[0] in ("atom", "red", "multimem"):
        return "atomics", 1, None
    return "barriers" if opcode.startswith(BARRIERS) else "", 1, None


def _width(words: Sequence[str]) -> int:
    """Bytes of one access by its vector and type."""
    vector = next((int(w[1:]) for w in words if w in ("v2", "v4", "v8")), 1)
    match = BITS.match(words[-1])
    return vector * int(match[1]) * (2 if match[2] else 1) // 8 if match else 0


def _number(operands: Sequence[str], constants: dict[str, int]) -> int:
    word = operands[0].strip() if operands else ""
    return int(word) if word.isdigit() else constants.get(word, 0)
