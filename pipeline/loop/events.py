"""What a run tells whoever watches it. The watcher must be quick and thread-safe; it decides how things look."""

from collections.abc import Callable
from dataclasses import dataclass

from kgen.records import GateResult


@dataclass(frozen=True)
class Event:
    """`kind`: "say" (a line), "stage" (a stage of `total` steps begins) or "step" (one of them is done).

    `candidate` is a short id, "" when the event is about the run.
    """

    kind: str
    text: str
    total: int = 0
    candidate: str = ""
    result: GateResult | None = None


Observer = Callable[[Event], None]


def silent(_: Event) -> None:
    """The observer that shows nothing."""
