"""Real builds: one builder for all tests that only want something built, and the objects of the sample candidates.

Tests of the builder itself, of its faults and limits, make their own.
"""

import atexit
from pathlib import Path

from kgen.gates.audit.recorder import Argument
from kgen.gates.builder.outcome import Built
from kgen.gates.builder.pool import Builder
from kgen.gates.builder.protocol import Signature

CANDIDATES = Path(__file__).parent.parent / "candidates"
ARGUMENTS = [
    Argument("a", "bf16", (64, 64)),
    Argument("y", "bf16", (64,)),
    Argument("scale", "f32", None, 2.0),
    Argument("count", "i32", None, 5),
]

_MADE: list[Builder] = []


def shared() -> Builder:
    """The builder of this process, whose servers have imported the compiler already; it ends with the process."""
    if not _MADE or _MADE[-1]._closed:  # a gate that gives up at once closes it
        _MADE.append(Builder())
        atexit.register(_MADE[-1].close)
    return _MADE[-1]


def launch_signature(kind: str, arch: str = "sm_90a") -> Signature:
    return Signature(
        dims={"kind": kind},
        tokens=1,
        arch=arch,
        tensors=(("BFloat16", (64, 64)), ("BFloat16", (64,))),
        scalars=(("f32", 1.0), ("i32", 1)),
        names=("a", "y", "scale", "count"),
        first_out=1,
    )


def build_launch(builder: Builder, kind: str, arch: str = "sm_90a") -> Built:
    """Object of tests/candidates/launches.py of one kind."""
    got = builder.build((CANDIDATES / "launches.py").read_text(), launch_signature(kind, arch))
    assert isinstance(got, Built), got
    return got
