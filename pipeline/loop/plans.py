"""What a round was to ask for, and why, as a file: <run>/rounds/0001-plan.json, written before anything is asked.

A run ends with a plan that asks for nothing and whose last decision says why. Not covered: how it is decided (`plan`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from kgen.loop.rounds import FOLDER
from kgen.proposers.base import Ask
from kgen.store.documents import json_bytes, read_record
from kgen.store.runs import Run

NAME = re.compile(r"(\d{4,})-plan\.json")
STOP = "stop"


@dataclass(frozen=True)
class Decision:
    """One decision: `what` (keep, novel, give-up, an ask's kind, stop), about which candidates, why, and the numbers.

    `rule` is a stable word for a reason to stop: which of the rules it was.
    """

    SCHEMA: ClassVar[str] = "kgen.decision/1"
    what: str
    reason: str
    candidates: tuple[str, ...] = ()  # ids
    numbers: Mapping[str, float] = field(default_factory=dict)
    rule: str = ""


@dataclass(frozen=True)
class Plan:
    """Round `number`: the asks in order, and every decision behind them. `basis` is a hash of what was known."""

    SCHEMA: ClassVar[str] = "kgen.plan/1"
    number: int
    asks: tuple[Ask, ...]
    decisions: tuple[Decision, ...]
    basis: str = ""

    @property
    def stop(self) -> Decision | None:
        """Why the run ends here, None while it goes on."""
        return next((d for d in self.decisions if d.what == STOP), None)


def write_plan(run: Run, plan: Plan) -> Plan:
    """Call with the run's lock held. Raises StoreError."""
    run.durable.write(run.path / FOLDER / f"{plan.number:04d}-plan.json", json_bytes(plan))
    return plan


def read_plans(run: Run) -> tuple[Plan, ...]:
    """In order. Raises IntegrityError for a damaged file."""
    folder = run.path / FOLDER
    names = sorted(p for p in folder.iterdir() if NAME.fullmatch(p.name)) if folder.is_dir() else []
    return tuple(sorted((read_record(Plan, path) for path in names), key=lambda p: p.number))
