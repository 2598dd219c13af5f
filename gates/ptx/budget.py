"""What all launches of a run share, its limits, and how it ends early."""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from kgen.gates.ptx.findings import Log
from kgen.gates.ptx.memory import Space
from kgen.gates.ptx.syntax import Instruction

Array = npt.NDArray[Any]


class UnsupportedError(Exception):
    """An instruction that the interpreter does not know: the run is skipped, and this names it."""

    def __init__(self, instruction: Instruction, why: str = "") -> None:
        super().__init__(f"{instruction.name}{f' ({why})' if why else ''} at PTX line {instruction.line}")


class StoppedError(Exception):
    """A limit of the run is used up: one line."""


@dataclass(frozen=True)
class Limits:
    """Of one run: warp instructions, wall seconds, bytes of memory beside the caller's arrays."""

    instructions: int = 2_000_000_000
    seconds: float = 600.0
    bytes: int = 4 << 30


@dataclass
class Run:
    """What all launches of a run share."""

    space: Space
    log: Log
    limits: Limits
    seed: int
    started: float = field(default_factory=time.monotonic)
    warps: int = 0  # warp instructions so far
    lanes: int = 0  # thread instructions so far

    def check(self) -> None:
        if self.warps > self.limits.instructions:
            raise StoppedError(f"the budget of {self.limits.instructions} warp instructions is used up")
        if time.monotonic() - self.started > self.limits.seconds:
            raise StoppedError(f"the deadline of {self.limits.seconds:g} s has passed")


@dataclass
class Before:
    """What earlier launches touched that may still run: bytes by tensor name."""

    needs_wait: dict[str, Array] = field(default_factory=dict)  # griddepcontrol.wait orders it
    beyond: dict[str, Array] = field(default_factory=dict)  # not even that: the launch between did not wait
