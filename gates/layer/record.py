"""What one measurement of a layer says, and the file that holds all of them: rewritten after every point."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from kgen.gates.layer.points import Job, Point
from kgen.records import Environment, RecordError, from_json, to_json
from kgen.store.durable import DURABLE


@dataclass(frozen=True)
class Side:
    """One column, µs a layer: median with its 95 % interval. `launches`: -1 where nothing can count them."""

    name: str
    us: float
    low: float
    high: float
    launches: int
    samples: tuple[float, ...]


@dataclass(frozen=True)
class Part:
    """One op of the chain: what sits there, and what the chain without overlap takes longer for it (`us`).

    `floor_us`: its bytes at the read rate; 0 where no rate is known.
    """

    seat: str
    op: str
    path: str  # promoted or stock
    candidate: str
    reason: str
    us: float
    bytes: int
    floor_us: float


@dataclass(frozen=True)
class Switch:
    """The chain without one technique: µs it then takes longer, and the ratio of paired times with its interval."""

    name: str
    us: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Kernel:
    """One launch of a replay of the chain: µs since the first one's start."""

    name: str
    start: float
    us: float
    stream: int


@dataclass(frozen=True)
class Measured:
    """One point. `ratios`: by side and output, distance from float64 over the unfused layer's; `worst`: of the row, and
    of the tile of a row, where that ratio is largest."""

    SCHEMA: ClassVar[str] = "kgen.layer-point/2"
    job: Job
    bytes: int  # that the layer's ops must move by their own count, a mean over the sets
    floor_us: float
    read_rate: float  # bytes per second; 0 where none is known
    experts: float  # distinct ones a layer reads, a mean over the sets
    sides: tuple[Side, ...]
    parts: tuple[Part, ...]
    switches: tuple[Switch, ...]
    timeline: tuple[Kernel, ...]
    ratios: Mapping[str, Mapping[str, float]]
    worst: Mapping[str, Mapping[str, float]]
    left_out: Mapping[str, str]  # side -> why it is not there
    sets: int
    calls: int
    timer: str
    environment: Environment
    seconds: float

    def side(self, name: str) -> Side | None:
        return next((s for s in self.sides if s.name == name), None)


@dataclass(frozen=True)
class LayerRecord:
    """`refused`: point -> why it was not timed."""

    SCHEMA: ClassVar[str] = "kgen.layer/2"
    points: tuple[Measured, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    def measured(self, point: Point) -> Measured | None:
        return next((m for m in self.points if m.job.point == point), None)

    def with_point(self, found: Measured) -> "LayerRecord":
        """A point measured again takes the place of the one before."""
        key = found.job.point.key
        kept = tuple(m for m in self.points if m.job.point.key != key)
        return replace(self, points=(*kept, found), refused={k: v for k, v in self.refused.items() if k != key})

    def without(self, point: Point, why: str) -> "LayerRecord":
        """A point that is refused now: what was measured of it before does not stand beside that."""
        kept = tuple(m for m in self.points if m.job.point.key != point.key)
        return replace(self, points=kept, refused={**self.refused, point.key: why})


def read(path: Path) -> LayerRecord:
    """An empty record where there is no file. Raises RecordError (one line) for anything else than a record."""
    if not path.exists():
        return LayerRecord()
    try:
        value: Any = json.loads(path.read_bytes())
    except ValueError as error:
        raise RecordError(f"{path} is no record of layers: {error}") from None
    return from_json(LayerRecord, value, str(path))


def write(path: Path, record: LayerRecord) -> None:
    """Whole or not at all."""
    DURABLE.write(path, json.dumps(to_json(record), indent=1, sort_keys=True).encode() + b"\n")
