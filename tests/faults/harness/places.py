"""Runs and sets in places, and in a world, that are not as one would like. Small ones, by the real commands."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exploits.harness.off import Off
from faults.harness.desk import Desk, Done, World
from support.loops import FORBIDDEN, OP, recording, source
from support.sets import fill, make_case

from kgen.store import Run, Runs

MATRIX = ("--arch", "sm_90a", "--dims", "nano", "--tokens", "1", "--no-interpret")
OUTPUT, BOUNDARY, PROPOSE, COMMON = "kgen.cli.output", "kgen.cli.boundary", "kgen.cli.propose", "kgen.cli.common"
DURABLE, ERRORS, SESSION, WORK = "kgen.store.durable", "kgen.store.errors", "kgen.loop.session", "kgen.loop.work"


def recorded(home: Path, builds: bool = False) -> str:
    """A run to replay: one candidate, which the screen refuses, or which `builds`."""
    return str(recording(home / "recorded", [source("world") if builds else FORBIDDEN]))


def propose(home: Path, builds: bool = False) -> tuple[str, ...]:
    return ("propose", "--op", OP.name, "--replay", recorded(home, builds), *MATRIX)


def judged(desk: Desk, home: Path) -> Done:
    """A finished run in `home`."""
    done = desk.here(home, *propose(home))
    assert done.exit == 1, done.err
    return done


def the_run(home: Path) -> Run:
    (run,) = Runs(home / "runs").list()
    return run


def filled(home: Path, *names: str) -> Path:
    """A set in `home` with these kernels, the last one serving."""
    return fill(home / "set", *[make_case(name) for name in names or ("kernel",)]).path


def everything(folder: Path) -> dict[str, bytes]:
    """All files below, but for locks."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


@dataclass(frozen=True)
class Command:
    """One command in one place. `argv` and `prepare` get the folder; `says` are words of the one line, () for none.

    `world`: what is wrong, as arguments of World; "HOME" in its texts stands for the folder. `left`: nothing in the
    folder may have changed. The answer is the exit code, and what is wrong with the rest.
    """

    argv: Callable[[Path], tuple[str, ...]]
    says: tuple[str, ...] = ()
    prepare: Callable[[Desk, Path], object] = lambda desk, home: None
    world: Mapping[str, Any] = field(default_factory=dict)
    left: bool = False
    out: str = ""  # what stdout has to hold

    def code(self, desk: Desk, off: Off) -> str:
        home = desk.fresh()
        self.prepare(desk, home)
        argv = self.argv(home)
        before = everything(home)
        there = {k: v.replace("HOME", str(home)) if isinstance(v, str) else v for k, v in self.world.items()}
        forked = World(**there)
        done = desk.kgen(home, *argv, world=forked, off=off) if there else desk.here(home, *argv, off=off)
        said = done.says(*self.says) if done.exit not in (0, 1) else f"exit {done.exit}"
        if self.out not in done.out:
            said += ", not said"
        return said + (", changed" if self.left and everything(home) != before else "")
