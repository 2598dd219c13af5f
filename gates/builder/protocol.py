"""What the judge and the build server say to each other. Standard library only: both sides import it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

SOURCE, OBJECT, PTX, CUBIN, RESULT = "candidate.py", "kernel.o", "kernel.ptx", "kernel.cubin", "result.json"
FUNCTION = "kgen_entry"  # name of the exported tvm-ffi function
MODULE = "candidate"  # part of every kernel's name, so the same for every candidate

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")  # colour codes: the compiler writes them to files too


class Layout(TypedDict):
    """What of a tensor is known at run time only: `free`, dimension -> symbol (equal symbols are equal sizes), and
    `pitched`, whether the first stride is free (a multiple of 16 bytes)."""

    free: dict[str, str]
    pitched: bool


@dataclass(frozen=True)
class Signature:
    """Arguments of the op for one problem: data only, so that the builder needs nothing of kgen's ops.

    `tensors`: (dtype attribute of cutlass, shape) in documented order; `scalars`: ("i32" or "f32", traced value);
    `names`: of the tensors, then the scalars; `first_out`: index of the first output tensor; `dims`: what the
    candidate's functions get; `layouts`: tensors that are not wholly static, by index.
    """

    dims: Mapping[str, int | str]
    tokens: int
    arch: str
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    scalars: tuple[tuple[str, float], ...]
    names: tuple[str, ...]
    first_out: int
    dtypes: Mapping[str, str] = field(default_factory=dict)  # what workspaces may be: contract dtype -> of cutlass
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    ranks: int = 0  # of an op of several: the candidate's symmetric() adds arguments behind the tensors

    def to_json(self) -> dict[str, Any]:
        return {
            "dims": dict(self.dims),
            "tokens": self.tokens,
            "arch": self.arch,
            "tensors": [[dtype, list(shape)] for dtype, shape in self.tensors],
            "scalars": [list(s) for s in self.scalars],
            "names": list(self.names),
            "first_out": self.first_out,
            "dtypes": dict(self.dtypes),
            "layouts": dict(self.layouts),
            "ranks": self.ranks,
        }


@dataclass(frozen=True)
class JobEnd:
    """How a forked job ended, as the server saw it. `returncode` is negative for a signal."""

    returncode: int
    timed_out: bool
    flooded: bool  # killed for printing too much, or for filling its folder
    seconds: float
    fenced: bool
    output: str
