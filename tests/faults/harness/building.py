"""Candidates that are a burden while they are built: given to the builder directly, on the machine as it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from exploits.harness.builds import OUTCOME, SIGNATURE
from exploits.harness.off import Off
from faults.harness.desk import Desk
from faults.harness.swapped import without

from kgen.gates.builder.pool import Builder
from kgen.gates.sandbox import Limits

GRANTED, LOOSE = Limits(memory=1536 << 20, cpu_seconds=20), Limits(cpu_seconds=20)
HEAD = "import os\nimport time\n\n\ndef build(dims, tokens, arch):\n"
SECONDS = 1.0


@dataclass(frozen=True)
class Burden:
    """`body` of `build`; it ends by raising "ESCAPED", or "refused".

    `loose`: the weakened builder has other limits and a longer deadline, `bare`: no sandbox. A message of the builder
    is bounded, and the next candidate is built as if nothing had been.
    """

    body: str
    wall: float = 30.0
    loose: bool = False
    bare: bool = False

    def code(self, desk: Desk, off: Off) -> str:
        builder = desk.builders.bare if off.words and self.bare else desk.builders.builder
        weak = bool(off.words) and self.loose
        with limits(builder, LOOSE if weak else GRANTED, 30.0 if weak else self.wall), without(off):
            got = builder.build(HEAD + self.body, SIGNATURE)
        assert type(got).__name__ == "BuildFailure" and len(got.message) < 10_000  # perhaps the edited module's own
        if got.code == "compile.build":
            last = got.message.splitlines()[-1]
            assert "ESCAPED" in last or "refused" in last, got.message
            return "" if "ESCAPED" in last else got.code
        return got.code


@contextmanager
def limits(builder: Builder, granted: Limits, wall: float) -> Iterator[None]:
    """Another builder would take a second to start, and be the same but for these."""
    before = builder._limits, builder._wall
    builder._limits, builder._wall = granted, wall
    try:
        yield
    finally:
        builder._limits, builder._wall = before


__all__ = ["OUTCOME", "SECONDS", "Burden"]
