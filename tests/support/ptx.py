"""Hand-written PTX for the interpreter's tests: a kernel around a body, and its run on named arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kgen.gates.ptx import Buffer, Limits, Maps, Result, run
from kgen.records import Launch, LaunchArg

DTYPES = {"f": "f32", "i": "i32", "u": "i32"}
HEADER = ".version 8.8\n.target sm_90a\n.address_size 64\n"
REGISTERS = """.reg .pred %p<20>;
.reg .b16 %h<20>;
.reg .b32 %r<60>;
.reg .b64 %d<40>;
"""


def kernel(body: str, params: int = 2, name: str = "k", shared: int = 0, head: str = "") -> str:
    """An entry with `params` pointers, loaded into %d0, %d1, ...; `shared` bytes at the variable `s` (`%r0`)."""
    given = ", ".join(f".param .b64 p{i}" for i in range(params))
    loads = "".join(f"ld.param.b64 %d{i}, [p{i}];\n" for i in range(params))
    variable = f".shared .align 16 .b8 s[{shared}];\nmov.b32 %r0, s;\n" if shared else ""
    start = "mov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\n"
    return f"{head}.visible .entry {name}({given})\n{{\n{REGISTERS}{variable}{loads}{start}{body}\nret;\n}}\n"


def module(*entries: str) -> str:
    return HEADER + "".join(entries)


def launch(
    tensors: tuple[str, ...],
    grid: int = 1,
    block: int = 32,
    cluster: int = 1,
    name: str = "k",
    shared: int = 0,
    pdl: bool = False,
) -> Launch:
    args = tuple(LaunchArg(t, 0, "00" * 8) for t in tensors)
    return Launch(name, (grid, 1, 1), (block, 1, 1), (cluster, 1, 1), shared, {"pdl": 1} if pdl else {}, args)


def buffers(arrays: Mapping[str, tuple[str, Any]]) -> dict[str, Buffer]:
    """name -> (role, array), of f32, i32 or u8."""
    found = {}
    for name, (role, array) in arrays.items():
        dtype = "u8" if array.dtype == np.uint8 else "bf16" if array.dtype == np.uint16 else DTYPES[array.dtype.kind]
        found[name] = Buffer.of(array, dtype, role)
    return found


def execute(
    ptx: str,
    launches: list[Launch],
    arrays: Mapping[str, tuple[str, Any]],
    seed: int = 0,
    maps: Maps | None = None,
    limits: Limits | None = None,
) -> tuple[Result, dict[str, Any]]:
    """The result, and the written arrays in the element type that they were given in."""
    result = run(ptx, launches, buffers(arrays), seed, maps, limits)
    return result, {n: result.outputs[n].view(arrays[n][1].dtype).reshape(arrays[n][1].shape) for n in result.outputs}


def kinds(result: Result) -> set[str]:
    return {f.kind.value for f in result.findings}
