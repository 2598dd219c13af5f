"""What the cases share: a folder in memory, the stages, sets to start from, and how many points are tried."""

import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from exploits.harness.off import Off
from faults.durability.harness.jobs import SET, case
from faults.durability.harness.layer import PLAIN, Stage
from support.sets import fill

MEMORY = Path("/dev/shm")
SEED = 20261130
BETWEEN, TAIL = 2, 6  # points of a sweep, where not all are tried: some, and the last ones


@dataclass
class Desk:
    """`every`: all points of every sweep, not a sample. `tried` counts them by the name of the sweep.

    `changes`: how many changes each job makes to its folder.
    """

    every: bool = False
    tried: Counter[str] = field(default_factory=Counter)
    changes: dict[str, int] = field(default_factory=dict)
    _stages: dict[tuple[Off, tuple[str, ...]], Stage] = field(default_factory=dict)
    _templates: dict[tuple[str, ...], Path] = field(default_factory=dict)
    _number: int = 0

    def __post_init__(self) -> None:
        here = MEMORY if MEMORY.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="kgen-faults-", dir=here)).resolve()

    def stage(self, off: Off, jobs: tuple[str, ...] = PLAIN) -> Stage:
        if (off, jobs) not in self._stages:
            self._stages[off, jobs] = Stage(off, jobs)
        return self._stages[off, jobs]

    def fresh(self) -> Path:
        """A new empty folder, in a folder of its own."""
        self._number += 1
        made = self.folder / str(self._number) / "root"
        made.mkdir(parents=True)
        return made

    def template(self, *texts: str) -> Path:
        """A folder with a set in which these kernels were promoted, one after the other; not to be changed."""
        if texts not in self._templates:
            self._templates[texts] = self.fresh()
            if texts:
                fill(self._templates[texts] / SET, *map(case, texts))
        return self._templates[texts]

    def copy(self, template: Path) -> Path:
        made = self.fresh()
        shutil.copytree(template, made, symlinks=True, dirs_exist_ok=True)
        return made

    def drop(self, root: Path) -> None:
        shutil.rmtree(root.parent)

    def points(self, name: str, total: int, ways: int, few: int = BETWEEN, step: int = 1) -> list[tuple[int, int]]:
        """Which of the points 0 .. total - 1 are tried, each in which way: all, or the ends and a few between.

        `step`: only each so many of them.
        """
        chosen = [(at, way) for at in range(total) for way in range(ways)]
        if not self.every:
            drawn = random.Random(f"{SEED} {name}")
            tail = TAIL if ways <= 2 else TAIL // 2
            inner = max(0, total - tail - 1)
            between = {1 + (n * inner + drawn.randrange(inner)) // few for n in range(few)} if inner else set()
            tried = [0, *sorted(between), *range(max(1, total - tail), total)]
            both = tried[-TAIL:] if ways <= 2 else []
            chosen = [(at, way) for at in tried for way in (range(ways) if at in both else [drawn.randrange(ways)])]
        chosen = chosen[::step]
        self.tried[name] += len(chosen)
        return chosen

    def close(self) -> None:
        for stage in self._stages.values():
            stage.close()
        shutil.rmtree(self.folder, ignore_errors=True)
