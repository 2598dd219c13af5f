"""One thing that a machine does to stored files, and what must come of it. All cases lie in the folders beside.

    CASE = Case(what="...", of="promote", must=WHOLE, trial=Sweep(...), off=NO_SYNC, then="lost")

A trial is made twice: on the store as it is, where `must` is seen, and on one whose defence `off` is taken out, where
`then` is seen. What is seen is a word; after a colon may follow where.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from exploits.harness.off import NOTHING, Off
from faults.durability.harness.desk import Desk

FOLDER = Path(__file__).parents[1]
WHOLE = "whole"  # as before or as after, nothing lost, and it goes on from there


class Trial(Protocol):
    def seen(self, desk: Desk, off: Off) -> str:
        """What comes of it on a store without `off`."""
        ...


@dataclass(frozen=True)
class Case:
    """`of`: the command, or the part of one. `deep`: takes seconds, runs under make deep."""

    what: str
    of: str
    must: str
    trial: Trial
    off: Off
    then: str
    deep: bool = False

    def real(self, desk: Desk) -> str:
        return self.trial.seen(desk, NOTHING)

    def weakened(self, desk: Desk) -> str:
        return self.trial.seen(desk, self.off)


def cases() -> dict[str, Case]:
    """Every case by "kind/name", the folder and the file that it lies in."""
    found: dict[str, Case] = {}
    for path in sorted(FOLDER.glob("*/*.py")):
        kind = path.parent.name
        if kind != "harness" and not path.name.startswith("_"):
            found[f"{kind}/{path.stem}"] = importlib.import_module(f"faults.durability.{kind}.{path.stem}").CASE
    return found
