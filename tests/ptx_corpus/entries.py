"""What the corpus consists of: right kernels, and one-line changes of them that are broken or just as right.

A kernel is a candidate of its own file in `kernels/`. A change replaces text that stands there exactly once, so that
the defect of a broken kernel is that line and nothing else.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

KERNELS = Path(__file__).with_name("kernels")
NUMBERS = "wrong-numbers"  # no finding of the interpreter, but the numeric comparison fails
# what may be seen besides: who does not wait may also come before anything was written
FOLLOWS = {"race": ("uninitialised",), "async-not-waited": ("race", "uninitialised")}
SEEDS = (0, 1, 2, 3, 4)
DTYPES = {"f": "f32", "i": "i32"}
CUTLASS = {"f32": "Float32", "i32": "Int32", "bf16": "BFloat16", "u8": "Uint8"}


@dataclass(frozen=True)
class Case:
    """Arrays of a kernel by name, in the order of its arguments: (role, array), uint16 standing for bf16.

    `want`: what every written array must hold after `calls` calls.
    """

    tensors: Mapping[str, tuple[str, np.ndarray]]
    want: Mapping[str, np.ndarray]
    calls: int = 1

    def dtype(self, name: str) -> str:
        array = self.tensors[name][1]
        return {"uint16": "bf16", "uint8": "u8"}.get(array.dtype.name) or DTYPES[array.dtype.kind]

    def wrong(self, got: Mapping[str, Any]) -> tuple[str, ...]:
        """Names of the arrays (bytes by name) that are not as wanted, bit for bit."""
        kinds = {n: self.tensors[n][1].dtype for n in self.want}
        return tuple(n for n, w in self.want.items() if got[n].tobytes() != w.astype(kinds[n]).tobytes())


@dataclass(frozen=True)
class Change:
    """`line` of the kernel becomes `instead`. A broken one: `finding` on `tensor` ("": on any or none) must come.

    `bug`: what kind of mistake it is, or what a right variant does otherwise. `also`: kinds that may come as well;
    `otherwise`: the kind that some schedules give in place of `finding`; `unseen`: seeds whose schedule does not come
    to the fault, as hardware often would not.
    """

    kernel: str
    name: str
    bug: str
    line: str
    instead: str
    finding: str = ""
    tensor: str = ""
    also: tuple[str, ...] = ()
    otherwise: str = ""
    unseen: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.kernel}.{self.name}"

    def source(self) -> str:
        text = (KERNELS / f"{self.kernel}.py").read_text(encoding="utf-8")
        if (count := text.count(self.line)) != 1:
            raise ValueError(f"{self.key}: {self.line!r} stands {count} times in {self.kernel}.py")
        return text.replace(self.line, self.instead)


def right(kernel: str) -> Change:
    """The kernel as it is, as a change that changes nothing."""
    text = (KERNELS / f"{kernel}.py").read_text(encoding="utf-8")
    return Change(kernel, "right", "", text, text)


def sha256(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()
