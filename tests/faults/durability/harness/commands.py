"""Commands of the CLI as jobs: all that they write lies in the watched folder. Imports torch and the loop: seconds."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.durability.harness.jobs import RUNS, SET
from support.loops import BROKEN, FORBIDDEN, called, recording
from support.proven import proven

import kgen.loop.graph
from kgen.gates.sandbox import choose

CACHE, RECORDED, EVIDENCE = "cache", "recorded", "evidence"
PLACES = {"KGEN_RUNS": RUNS, "KGEN_SET": SET, "KGEN_CACHE": CACHE}


def record(root: Path, args: dict[str, Any]) -> str:
    """A run for replay: what it holds is refused by the screen, so that nothing is compiled."""
    return str(recording(root / RECORDED, [FORBIDDEN + "# 1\n", FORBIDDEN + "# 2\n", BROKEN]))


def prove(root: Path, args: dict[str, Any]) -> str:
    """A run that waits for a GPU, and evidence for it."""
    made = proven(root / RUNS, root / CACHE)
    (root / EVIDENCE).mkdir()
    return str(made.evidence(root / EVIDENCE).relative_to(root))


def command(root: Path, args: dict[str, Any]) -> int:
    for name, folder in PLACES.items():
        os.environ[name] = str(root / folder)
    os.chdir(root)
    return called(args["argv"])


def commands(root: Path, args: dict[str, Any]) -> list[int]:
    """Several one after the other, up to the first that fails."""
    codes: list[int] = []
    for argv in args["argvs"]:
        codes.append(command(root, {"argv": argv}))
        if codes[-1]:
            break
    return codes


choose()  # what every command would find out anew
assert kgen.loop.graph.CHECKPOINT
JOBS: dict[str, Callable[[Path, dict[str, Any]], Any]] = {
    "record": record,
    "prove": prove,
    "command": command,
    "commands": commands,
}
