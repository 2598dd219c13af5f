"""What a run of a ranked kernel on one host comes to, as one JSON file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kgen.records import Environment, Status


@dataclass(frozen=True)
class PartRecord:
    """How one part ended. `message` names the rank; `logs`: what ranks that did not end well said, whole."""

    SCHEMA: ClassVar[str] = "kgen.ranks-part/1"
    name: str
    transport: str
    status: Status
    code: str
    message: str
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    logs: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckRow:
    """One thing that was judged over all ranks; `complaint` is "" when it is right."""

    SCHEMA: ClassVar[str] = "kgen.ranks-row/1"
    problem: str
    what: str
    calls: int
    seed: int
    code: str = ""
    complaint: str = ""


@dataclass(frozen=True)
class TimedPoint:
    """One column of one problem. us per call: medians over repetitions of the largest over ranks.

    `samples`: side -> a list a rank, in rank order, of one sample a repetition. `best`: the fastest baseline, "" where
    there is none; `ratio`: candidate/best with its 95 % interval, 0 without one. `late_us`: of the last rank, which
    starts last where ranks start apart.
    """

    SCHEMA: ClassVar[str] = "kgen.ranks-point/1"
    problem: str
    tokens: int
    column: str
    us: Mapping[str, float]
    late_us: Mapping[str, float]
    best: str
    ratio: float
    ratio_low: float
    ratio_high: float
    samples: Mapping[str, tuple[tuple[float, ...], ...]]


@dataclass(frozen=True)
class RanksRecord:
    """One candidate on the GPUs of one host. `verdict`: pass only when every part that decides it ran and passed."""

    SCHEMA: ClassVar[str] = "kgen.ranks/1"
    op: str
    op_contract: str
    candidate: str
    ranks: int
    device: str
    seed: int
    seconds: float
    verdict: Status
    message: str
    objects: Mapping[str, str]  # problem -> sha256 of the object that ran
    parts: tuple[PartRecord, ...]
    rows: tuple[CheckRow, ...]
    points: tuple[TimedPoint, ...]
    environment: tuple[Environment, ...] = ()  # a rank each
    host: Mapping[str, str] = field(default_factory=dict)  # how the GPUs are linked, drivers
