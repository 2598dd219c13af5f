"""Which experts real tokens went to: a file of expert ids by layer, without a word of any text.

    with Writer(path, experts, top_k) as trace: trace.add(layer, ids)     ids: whole numbers [tokens, top_k]
    read(path) -> RoutingTrace       raises TraceError (one line)

The file is JSON lines: a head with `schema`, `experts` and `top_k`, then `{"layer": 3, "ids": [[...], ...]}` for each
call, in order, tokens of a call together. A file that a kill cut short is read up to its last whole line. Expert ids
can tell something of a text to somebody who has the model: treat a trace as you treat lengths and times of requests.
"""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

SCHEMA = "kgen.routing-trace/1"
MOST_TOKENS = 65_536  # of one layer: 4 MB a layer of sixteen experts a token; then nothing more is kept


class TraceError(ValueError):
    """No routing trace; one line."""


class Writer(AbstractContextManager["Writer"]):
    """Raises OSError where the file cannot be written."""

    def __init__(self, path: Path, experts: int, top_k: int, most: int = MOST_TOKENS) -> None:
        self.experts, self.top_k, self.most = experts, top_k, most
        self._kept: dict[int, int] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")
        self._line({"schema": SCHEMA, "experts": experts, "top_k": top_k})

    def add(self, layer: int, ids: Sequence[Sequence[int]]) -> None:
        room = self.most - self._kept.get(layer, 0)
        rows = [list(row) for row in ids][: max(0, room)]
        if rows:
            self._kept[layer] = self._kept.get(layer, 0) + len(rows)
            self._line({"layer": layer, "ids": rows})

    def _line(self, body: object) -> None:
        self._file.write(json.dumps(body, separators=(",", ":")) + "\n")
        self._file.flush()  # a server is killed more often than it ends

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()


@dataclass(frozen=True)
class Call:
    layer: int
    ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class RoutingTrace:
    experts: int
    top_k: int
    calls: tuple[Call, ...]

    def tokens(self, layer: int) -> tuple[tuple[int, ...], ...]:
        """All tokens of a layer, in order."""
        return tuple(row for call in self.calls if call.layer == layer for row in call.ids)

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(sorted({call.layer for call in self.calls}))


def read(path: Path) -> RoutingTrace:
    try:
        *lines, rest = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    del rest  # what a kill cut short, or nothing
    try:
        bodies = [json.loads(line) for line in lines]
        head = bodies[0]
        if head["schema"] != SCHEMA:
            raise TraceError(f"{path} is no routing trace of this kgen: schema {head['schema']!r:.60}, not {SCHEMA!r}")
        trace = RoutingTrace(int(head["experts"]), int(head["top_k"]), tuple(map(_call, bodies[1:])))
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{path} is no routing trace: {type(error).__name__}") from None
    for number, call in enumerate(trace.calls, 2):
        if not all(_chosen(row, trace) for row in call.ids):
            text = f"a token does not have {trace.top_k} different experts below {trace.experts}"
            raise TraceError(f"{path}, line {number}: {text}")
    return trace


def _chosen(row: tuple[int, ...], trace: RoutingTrace) -> bool:
    return len(row) == len(set(row)) == trace.top_k and all(0 <= expert < trace.experts for expert in row)


def _call(body: dict[str, object]) -> Call:
    rows, layer = body["ids"], body["layer"]
    if not isinstance(rows, list) or not isinstance(layer, int):
        raise TypeError
    return Call(layer, tuple(tuple(int(expert) for expert in row) for row in rows))
