"""Records that a newer kgen wrote: every kind that a run or a set holds, as a command meets it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from exploits.harness.off import Off, turned
from faults.harness.desk import Desk
from faults.harness.places import everything, filled, propose

CODEC = "kgen.records.codec"
HINT = turned(CODEC, "; upgrade kgen", "", "a record of another version is refused, with the way on")
MANIFEST_HINT = turned("kgen.store.kernelset", "): upgrade kgen", ")", HINT.words)


@dataclass(frozen=True)
class Newer:
    """The file that `pattern` finds says version 99 of `schema`; then `argv`. Nothing in the folder may change."""

    pattern: str
    schema: str
    argv: tuple[str, ...]
    prepare: Callable[[Desk, Path], object]

    def code(self, desk: Desk, off: Off) -> str:
        home = desk.fresh()
        self.prepare(desk, home)
        path = next(home.glob(self.pattern))
        text = path.read_text(encoding="utf-8")
        assert f'"{self.schema}/1"' in text
        head, old, rest = text.rpartition(f'"{self.schema}/1"')
        path.write_text(head + old.replace("/1", "/99") + rest, encoding="utf-8")
        before = everything(home)
        done = desk.here(home, *self.argv, off=off)
        said = done.says(path.name, f"{self.schema}/99", "upgrade kgen")
        return said + ("" if everything(home) == before else ", changed")


def run(desk: Desk, home: Path) -> None:
    """A run whose candidate was judged."""
    assert desk.here(home, *propose(home)).exit == 1


def kernels(desk: Desk, home: Path) -> None:
    filled(home)
