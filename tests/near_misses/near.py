"""A right kernel that looks like a cheat. Each file beside this one holds one, as edits of base.py: `NEAR = ...`."""

import importlib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
BASE = (FOLDER / "base.py").read_text(encoding="utf-8")
HELPERS = ("base", "near")
LAUNCH = "        self.kernel(lat, w_uv, p, lengths, y).launch(grid=grid, block=[THREADS, 1, 1], stream=stream)\n"
STREAM = "        stream: cuda.CUstream,\n"
BUILD = "def build(dims, tokens, arch):\n    return OutGate(dims)\n"
STORE = "        y[token, column] = self.gated(lat, w_uv, p, lengths, token, column)\n"


@dataclass(frozen=True)
class Near:
    """`looks` says of which cheat it reminds. `edits`: (old, new) texts, each of which occurs once in base.py."""

    looks: str
    edits: tuple[tuple[str, str], ...] = ()
    head: str = ""
    tail: str = ""

    @property
    def source(self) -> str:
        text = BASE
        for old, new in self.edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return self.head + text + self.tail


def nears() -> dict[str, Near]:
    """By file name."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in HELPERS)
    return {name: importlib.import_module(f"near_misses.{name}").NEAR for name in names}
