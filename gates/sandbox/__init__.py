"""Fences for untrusted code, strongest first: which of them work here, and running a command inside one."""

from kgen.gates.sandbox.fence import FenceError, Limits
from kgen.gates.sandbox.levels import LEVELS, NONE, Box, Level, NoSandboxError, available, choose
from kgen.gates.sandbox.process import Finished, run

__all__ = [
    "LEVELS",
    "NONE",
    "Box",
    "FenceError",
    "Finished",
    "Level",
    "Limits",
    "NoSandboxError",
    "available",
    "choose",
    "run",
]
