"""Starts processes below the file layer (layer.c), and says what became of the jobs that they were told.

stage = Stage(folder)                                   kgen as it is; Stage(folder, off) with one defence taken out
stage.run(Order("promote", root, how=KILL, at=7))       a child was killed before its 8th change below `root`
"""

import dataclasses
import functools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from exploits.harness.off import NOTHING, Off

WATCH, KILL, TORN, ONCE, ON, SHORT, HALF = range(7)  # as in layer.c
PLAIN = ("faults.durability.harness.jobs",)
WHOLE = (*PLAIN, "faults.durability.harness.commands")  # with torch and the loop: seconds to start
SECONDS = 1800.0  # the longest job of a deep sweep, on a busy machine


@dataclass(frozen=True)
class Order:
    """One job, and what the file system below `root` does while it runs. `how`: one of the modes above, at change `at`.

    `errno`: the failure of ONCE, ON and SHORT. `delay`: microseconds before each change. `clock`: seconds that the
    clock is off. `lock`, `folder_sync`: errno of every flock, of every fsync of a folder. `log`: a file.
    """

    job: str
    root: Path
    args: Mapping[str, Any] = field(default_factory=dict)
    how: int = WATCH
    at: int = 0
    errno: int = 0
    delay: int = 0
    clock: int = 0
    lock: int = 0
    folder_sync: int = 0
    log: str = ""


@dataclass(frozen=True)
class Outcome:
    """`status`: 0, or minus the signal that ended the child. The rest is only there at 0."""

    status: int
    code: int = 0
    line: str = ""
    value: Any = None
    count: int = 0
    said: str = ""

    @property
    def killed(self) -> bool:
        return self.status == -9


@functools.cache
def library() -> Path:
    """The compiled layer."""
    cc = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if cc is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler: the file layer is built here")
    out = Path(tempfile.mkdtemp(prefix="kgen-layer-")) / "layer.so"
    source = Path(__file__).with_name("layer.c")
    subprocess.run([cc, "-shared", "-fPIC", "-O1", "-w", "-o", str(out), str(source), "-ldl"], check=True)
    return out


class Stage:
    """One process that imported kgen, or a weakened kgen, and forks for each job."""

    def __init__(self, off: Off = NOTHING, jobs: tuple[str, ...] = PLAIN) -> None:
        setup = json.dumps({"module": off.module, "edits": off.edits, "jobs": jobs})
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("KGEN_", "OPENAI_"))}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("stage.py")), setup],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**kept, "LD_PRELOAD": str(library()), "OMP_NUM_THREADS": "1"},
        )
        assert self._line() == b"ready\n"

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], SECONDS)[0]:
            self._process.kill()
            pytest.fail(f"a job did not end within {SECONDS:.0f} s")
        return self._process.stdout.readline()

    def together(self, *orders: Order) -> list[Outcome]:
        """All at once, each in a process of its own; returns when all have ended."""
        assert self._process.stdin is not None
        told = [{**dataclasses.asdict(o), "root": str(o.root)} for o in orders]
        self._process.stdin.write(json.dumps(told).encode() + b"\n")
        self._process.stdin.flush()
        return [Outcome(**found) for found in json.loads(self._line())]

    def run(self, order: Order) -> Outcome:
        return self.together(order)[0]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
