"""One thing that goes wrong with the world, or that an attack does, and what must happen. Cases lie in `world`.

    CASE = Case(row=23, what="...", who="kgen status", code="exit 5", attack=..., off=...)

Each is tried twice: with the code as it is, which must answer `code`, and with a copy without the defence `off`, which
must answer `then` ("": nobody noticed). An attack has `code(desk, off) -> str`; it checks by itself that what was said
is one line that says what to do. A file may refer to cases elsewhere that show the same: `SHOWN = (Shown(...), ...)`.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Protocol

from exploits.harness.case import Case as Exploit
from exploits.harness.case import cases as exploits
from exploits.harness.off import NOTHING, Off
from faults.durability.harness.case import Case as Stored
from faults.durability.harness.case import cases as stored
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
    22: "a flipped bit, a missing file, another hash in a set; a damaged checkpoint",
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
    """A row that a case of the exploits shows as well, with the gate and the code that are expected of it."""

    row: int
    exploit: str
    gate: str
    code: str

    @property
    def case(self) -> Exploit:
        return exploits()[self.exploit]


@dataclass(frozen=True)
class Kept:
    """A row that a case of the store shows as well, with what must come of it."""

    row: int
    durability: str
    must: str

    @property
    def case(self) -> Stored:
        return stored()[self.durability]


Reference = Shown | Kept


def _modules() -> dict[str, ModuleType]:
    """Every file of a case below `world`, by "folder/file"."""
    paths = sorted(p for p in (FOLDER / "world").glob("*/*.py") if not p.name.startswith("_"))
    return {f"{p.parent.name}/{p.stem}": import_module(f"faults.world.{p.parent.name}.{p.stem}") for p in paths}


def cases() -> dict[str, Case]:
    return {name: module.CASE for name, module in _modules().items() if hasattr(module, "CASE")}


def references() -> list[Reference]:
    """What other cases show, by the files that only refer."""
    return [one for module in _modules().values() if hasattr(module, "SHOWN") for one in module.SHOWN]
