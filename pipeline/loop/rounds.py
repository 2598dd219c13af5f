"""What a round did, as a file: <run>/rounds/0001.json. With the candidate folders it is all that a resume needs.

<run>/rounds/0001-failed.json says what it cost that a proposer had no answer, and why; the run goes on without it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kgen.proposers.base import ProposerFailure, Usage
from kgen.records import to_json
from kgen.records.codec import OPTIONAL
from kgen.store.documents import json_bytes, read_record
from kgen.store.runs import Run

FOLDER = "rounds"
NAME, FAILED = re.compile(r"(\d{4,})\.json"), re.compile(r"(\d{4,})-failed\.json")


@dataclass(frozen=True)
class Ranked:
    """A candidate that passed the quick tier, with what it was ordered by (µs, lower is better)."""

    SCHEMA: ClassVar[str] = "kgen.ranked/1"
    candidate: str  # folder name
    us: float
    measured: bool = False  # on a GPU here; else the static cost
    points: tuple[tuple[int, float], ...] = field(default=(), metadata=OPTIONAL)  # (tokens, µs) that `us` is the sum of


@dataclass(frozen=True)
class Cost:
    """What a stage of a round took: wall and CPU seconds on this machine, and of each candidate's own result.

    Candidates are worked on side by side: their own seconds may be more than the stage's.
    """

    SCHEMA: ClassVar[str] = "kgen.cost/1"
    gate: str  # or "propose"
    wall_s: float
    cpu_s: float
    own: Mapping[str, float] = field(default_factory=dict)  # by folder name

    def __add__(self, other: "Cost") -> "Cost":
        names = dict.fromkeys([*self.own, *other.own])
        own = {name: self.own.get(name, 0.0) + other.own.get(name, 0.0) for name in names}
        return Cost(self.gate, self.wall_s + other.wall_s, self.cpu_s + other.cpu_s, own)


@dataclass(frozen=True)
class Round:
    """`candidates` are folder names in the order proposed; `order` is best first, empty until the quick tier is done.

    `seconds` and `costs` are set, and `judged` true, when every candidate has its verdict.
    """

    SCHEMA: ClassVar[str] = "kgen.round/1"
    number: int
    candidates: tuple[str, ...]
    note: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    order: tuple[Ranked, ...] = ()
    ranked: bool = False
    seconds: float = 0.0
    judged: bool = False
    costs: tuple[Cost, ...] = field(default=(), metadata=OPTIONAL)

    @property
    def cost_usd(self) -> float:
        return float(self.usage.get("cost_usd") or 0.0)


@dataclass(frozen=True)
class Failed:
    """How often the proposer failed in a round, its last words, and what the failures cost together."""

    SCHEMA: ClassVar[str] = "kgen.round-failed/1"
    number: int
    times: int
    message: str
    usage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cost_usd(self) -> float:
        return float(self.usage.get("cost_usd") or 0.0)


def write_failed(run: Run, number: int, failure: ProposerFailure) -> Failed:
    """Add a failure to those of the round. Call with the run's lock held. Raises StoreError, IntegrityError."""
    path = run.path / FOLDER / f"{number:04d}-failed.json"
    before = read_record(Failed, path) if path.exists() else Failed(number, 0, "")
    usage = failure.usage + Usage(**before.usage)
    entry = Failed(number, before.times + 1, str(failure), to_json(usage.__dict__))
    run.durable.write(path, json_bytes(entry))
    return entry


def write_round(run: Run, entry: Round) -> Round:
    """Call with the run's lock held. Raises StoreError."""
    run.durable.write(run.path / FOLDER / f"{entry.number:04d}.json", json_bytes(entry))
    return entry


def read_rounds(run: Run) -> tuple[Round, ...]:
    """In order. Raises IntegrityError for a damaged file."""
    folder = run.path / FOLDER
    names = sorted(p for p in folder.iterdir() if NAME.fullmatch(p.name)) if folder.is_dir() else []
    return tuple(sorted((read_record(Round, path) for path in names), key=lambda r: r.number))


def read_failed(run: Run) -> tuple[Failed, ...]:
    """What failed proposals cost, by round. Raises IntegrityError for a damaged file."""
    folder = run.path / FOLDER
    names = sorted(p for p in folder.iterdir() if FAILED.fullmatch(p.name)) if folder.is_dir() else []
    return tuple(read_record(Failed, path) for path in names)
