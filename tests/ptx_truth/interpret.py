"""The interpreter's side: a case's calls on its inputs, under one schedule."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from ptx_truth.build import Made
from ptx_truth.entries import NUMPY, Array, Case, Tensor

from kgen.gates.ptx import Buffer, run


@dataclass(frozen=True)
class Interpreted:
    """`outputs`: bits of each compared output. `complaint`: what was found, or why they mean nothing; else ""."""

    outputs: dict[str, Array]
    complaint: str


def interpret(case: Case, made: Made, seed: int) -> Interpreted:
    buffers = {n: Buffer.of(t.array.copy(), t.dtype, t.role) for n, t in case.tensors.items()}
    for number, (dtype, shape) in enumerate(made.workspaces):
        buffers[f"workspace{number}"] = Buffer.of(np.zeros(shape, NUMPY[dtype]), dtype, "workspace")
    result = run(made.ptx, made.launches, buffers, seed)
    said = [result.skipped, result.stopped, *(str(f) for f in result.findings)]
    outputs = {n: bits(case.tensors[n], result.outputs[n].tobytes()) for n in case.outputs}
    return Interpreted(outputs, next((s for s in said if s), ""))


def bits(tensor: Tensor, data: bytes) -> Array:
    """Bytes as the tensor's array. Raises ValueError for another number of bytes."""
    array: Any = np.frombuffer(data, tensor.array.dtype).reshape(tensor.array.shape)
    found: Array = array
    return found
