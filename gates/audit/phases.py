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

ENTRY = re.compile(r"^\s*(?:\.visible\s+)?\.entry\s+([\w$]+)")
LABEL = re.compile(r"^\s*([\w$]+):\s*(?:$|//)")
BODY = re.compile(r"^\s*\{?\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)\s*([^;]*);")
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

    for line in text.splitlines():  # a brace at the start of a line may also end a piece of inline assembly
        if match := ENTRY.match(line):
            close()
            name, body, labels = match[1], [], {}
        elif not name or (match := LABEL.match(line)):
            if match:
                labels[match[1]] = len(body)
        elif match := BODY.match(line):
            body.append((match[1], match[2].strip()))
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
    loops = _loops(body, labels)
    pieces: list[tuple[bool, list[Line], dict[str, int]]] = []
    straight: list[Line] = []

    def close() -> None:
        if straight:
            pieces.append((False, list(straight), constants))
            straight.clear()

    at = 0
    while at < len(body):
        end = next((stop for start, stop in loops if start == at), None)
        if end is not None:
            close()
            pieces.append((True, list(body[at:end]), constants))
            at = end
            continue
        straight.append(body[at])
        if body[at][0].startswith(BARRIERS):
            close()
        at += 1
    close()
    return pieces


def _loops(body: Sequence[Line], labels: dict[str, int]) -> list[tuple[int, int]]:
    """The outermost, as half-open ranges; waits that spin are none."""
    spans = []
    for at, (opcode, operands) in enumerate(body):
        target = BRANCH.search(operands) if opcode.startswith("bra") else None
        start = labels.get(target[1], at + 1) if target else at + 1
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
        words = opcode.split(".")
        if words[0] in ("ld", "st") and "global" in words:
            n["load_bytes" if words[0] == "ld" else "store_bytes"] += _width(words)
        elif words[0] in ("ld", "st", "ldmatrix", "stmatrix") and "shared" in opcode:
            n["shared"] += 1
        elif opcode.startswith("cp.async.bulk") and "global" in opcode and "commit" not in opcode:
            n["bulk"] += 1
        elif opcode.startswith("cp.async.c") and "shared" in opcode:
            n["load_bytes"] += _number(operands.split(",")[2:3], constants)
        elif "expect_tx" in opcode:
            n["block_bytes"] += _number(operands.split(",")[-1:], constants)
        elif opcode.startswith(MATRIX):
            n["mma"] += 1
        elif words[0] in ("shfl", "redux"):
            n["shuffles"] += 1
        elif words[0] in ("atom", "red", "multimem"):
            n["atomics"] += 1
        elif opcode.startswith(BARRIERS):
            n["barriers"] += 1
    return Phase("", loop, len(lines), **n)


def _width(words: Sequence[str]) -> int:
    """Bytes of one access by its vector and type."""
    vector = next((int(w[1:]) for w in words if w in ("v2", "v4", "v8")), 1)
    match = BITS.match(words[-1])
    return vector * int(match[1]) * (2 if match[2] else 1) // 8 if match else 0


def _number(operands: Sequence[str], constants: dict[str, int]) -> int:
    word = operands[0].strip() if operands else ""
    return int(word) if word.isdigit() else constants.get(word, 0)
