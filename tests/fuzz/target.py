"""What one parser is fuzzed with: seeds, the way they are changed, and the property that must hold for any bytes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FOLDER = Path(__file__).parent
CASES = FOLDER / "cases"


@dataclass(frozen=True)
class Target:
    """`check` raises for bytes that break the property. `shape`: how inputs are changed (mutate.py).

    `words`: pieces that mean something to the parser. `network`: it speaks to a server of the target's own.
    """

    name: str
    parser: str  # module and function, as docs show it
    seeded: str  # where its seeds come from, in words
    promise: str  # the property, in words
    shape: str
    make_seeds: Callable[[], Sequence[bytes]]
    check: Callable[[bytes], None]
    words: tuple[bytes, ...] = ()
    network: bool = False

    @cached_property
    def seeds(self) -> tuple[bytes, ...]:
        return tuple(self.make_seeds())


def one_line(message: str, most: int = 2000) -> None:
    """What a reader is told is one printable line that a file can hold."""
    assert message and "\n" not in message and "\r" not in message, f"not one line: {message[:80]!r}"
    assert len(message) <= most, f"a message of {len(message)} characters"
    message.encode("utf-8")
