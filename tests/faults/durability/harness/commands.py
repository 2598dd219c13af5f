"""Commands of the CLI as jobs: all that they write lies in the watched folder. Imports torch and the loop: seconds."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.durability.harness.jobs import RUNS, SET
from support.loops import BROKEN, FORBIDDEN, called, recording

import kgen.loop.graph
from kgen.gates.sandbox import choose

CACHE, RECORDED = "cache", "recorded"
ASKED = ("propose", "--op", "moe_shared", "--proposer", "replay", "--arch", "sm_90a", "--dims", "nano", "--tokens", "1")
PLACES = {"KGEN_RUNS": RUNS, "KGEN_SET": SET, "KGEN_CACHE": CACHE}


def record(folder: Path) -> Path:
    """A run for replay: what it holds is refused by the screen, so that nothing is compiled."""
    return recording(folder, [FORBIDDEN + "# 1\n", FORBIDDEN + "# 2\n", BROKEN])


def command(root: Path, args: dict[str, Any]) -> int:
    for name, folder in PLACES.items():
        os.environ[name] = str(root / folder)
    os.chdir(root)
    return called(args["argv"])


def ready() -> None:
    """What every command would find out anew."""
    choose()
    assert kgen.loop.graph.CHECKPOINT


ready()
JOBS: dict[str, Callable[[Path, dict[str, Any]], Any]] = {"command": command}
