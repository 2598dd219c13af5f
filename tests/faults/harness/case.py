"""One thing that goes wrong with the world or comes from an attack, and what must happen. Cases lie in the folders beside.

    CASE = Case(row=23, what="...", who="kgen status", code="exit 5", attack=..., off=...)

Each is tried twice: with the code as it is, which must answer `code`, and with a copy without the defence `off`, which
must answer `then` ("": nobody noticed). An attack has `code(desk, off) -> str`; it checks by itself that what was said
is one line that says what to do. `shown_by` names cases of the exploits that show the same; `run` is then theirs.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from exploits.harness.case import Case as Exploit
from exploits.harness.case import cases as exploits
from exploits.harness.off import NOTHING, Off
from faults.harness.desk import Desk

FOLDER = Path(__file__).parents[1]

# What has to be covered: a row each, in the order of the table that this follows
ROWS = {
    1: "a candidate that loops for ever while it is built",
    2: "a fork bomb",
    3: "memory without end",
    4: "writes to the home, the system, the repository, the manifest",
    5: "sockets and name service",
    6: "keys in the environment, other processes and files",
    7: "a compiler that crashes",
    8: "a compiler that prints 100 MB",
    9: "comparison, events or clock patched",
    10: "a forged verdict, written to every descriptor",
    11: "a view of an input, a lazy tensor, the reference as the answer",
    12: "answers kept by pointer or content, right for the first call",
    13: "work on another stream, or after the return",
    14: "right on known seeds and shapes only",
    15: "NaN, infinities, denormals, zero rows, one row, padding",
    16: "a write beside the output",
    17: "a missing barrier",
    18: "a silent fallback to torch",
    19: "SIGKILL at each step of a promotion",
    20: "two promotions at the same time",
    21: "a full disk, for a run and for a promotion",
    22: "a flipped bit, a missing file, another hash in the set",
    23: "a record of a newer schema",
    24: "an endpoint that fails",
    25: "an answer that holds no candidate",
    26: "instructions in quoted text",
    27: "a key that somebody echoes",
    28: "SIGINT, a clock that jumps back, a read-only folder, locale C, odd paths, no root",
    29: "two candidates with one short id",
    30: "a slow file system",
}


class Attack(Protocol):
    def code(self, desk: Desk, off: Off) -> str:
        """What came of it, in a word."""
        ...


@dataclass(frozen=True)
class Case:
    """`row`: what of ROWS it is about. `deep`: takes seconds, runs under make deep."""

    row: int
    what: str
    who: str  # the gate or command that must notice
    code: str
    attack: Attack
    off: Off
    then: str = ""
    deep: bool = False

    def caught(self, desk: Desk) -> str:
        return self.attack.code(desk, NOTHING)

    def weakened(self, desk: Desk) -> str:
        return self.attack.code(desk, self.off)


@dataclass(frozen=True)
class Shown:
    """A row that a case of the exploits shows, with the gate and the code that are expected there."""

    row: int
    exploit: str
    gate: str
    code: str

    @property
    def case(self) -> Exploit:
        return exploits()[self.exploit]


def found() -> dict[str, Case | tuple[Shown, ...]]:
    """Every case by "folder/file", below `durability` and `world`; SHOWN for files that only refer."""
    out: dict[str, Case | tuple[Shown, ...]] = {}
    for path in sorted(FOLDER.glob("*/**/*.py")):
        name = path.relative_to(FOLDER).with_suffix("")
        if name.parts[0] != "harness" and not path.name.startswith("_"):
            module = importlib.import_module(".".join(("faults", *name.parts)))
            if hasattr(module, "CASE") or hasattr(module, "SHOWN"):
                out["/".join(name.parts)] = module.CASE if hasattr(module, "CASE") else module.SHOWN
    return out


def cases(kind: str) -> dict[str, Case]:
    """The cases below one folder that are to be run."""
    return {n: c for n, c in found().items() if n.startswith(f"{kind}/") and isinstance(c, Case)}
