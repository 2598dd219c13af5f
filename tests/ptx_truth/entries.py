"""What is run on both sides: a kernel's source, its arguments as bytes, its calls, and what may differ and why."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.builder.protocol import Signature

Array = npt.NDArray[Any]
ARCH = "sm_90a"
POISON = 0xC5  # bytes of an output before the first call, on both sides
NUMPY: Mapping[str, Any] = {"bf16": np.uint16, "f32": np.float32, "i32": np.int32, "u8": np.uint8}
CUTLASS = {"bf16": "BFloat16", "f32": "Float32", "i32": "Int32", "u8": "Uint8"}
DTYPES = {np.dtype(kind): name for name, kind in NUMPY.items()}


@dataclass(frozen=True)
class Tensor:
    """Contents before the first call; uint16 holds bf16. `role`: in, weight, out, state or workspace."""

    role: str
    array: Array

    @property
    def dtype(self) -> str:
        return DTYPES[self.array.dtype]


@dataclass(frozen=True)
class Scalar:
    name: str
    dtype: str
    value: float


@dataclass(frozen=True)
class Bound:
    """`interval`: inputs by name (numbers, not bits) -> lowest and highest right value of each element of the output.

    Both sides must lie in it where their bits differ; where it is a single number they must not differ.
    """

    why: str
    interval: Callable[[Mapping[str, Array]], tuple[Array, Array]]


@dataclass(frozen=True)
class Case:
    """`tensors`: in the order of the arguments. `calls`: the scalars of each call. `outputs`: what is compared.

    An output without a bound must have the same bits on both sides.
    """

    key: str
    kind: str
    source: str
    signature: Signature
    tensors: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    calls: tuple[tuple[Scalar, ...], ...] = ((),)
    bounds: Mapping[str, Bound] = field(default_factory=dict)

    @property
    def source_sha256(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def inputs_sha256(self) -> str:
        """Of all that goes in: contents, scalars, number of calls."""
        said = {
            "tensors": [
                [n, t.role, t.dtype, list(t.array.shape), hashlib.sha256(t.array.tobytes()).hexdigest()]
                for n, t in self.tensors.items()
            ],
            "calls": [[[s.name, s.dtype, s.value] for s in call] for call in self.calls],
        }
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def numbers(self) -> dict[str, Array]:
        return {name: numbers(t.dtype, t.array) for name, t in self.tensors.items()}


def poisoned(dtype: str, shape: tuple[int, ...]) -> Array:
    size = int(np.prod(shape)) * np.dtype(NUMPY[dtype]).itemsize
    array: Array = np.full(size, POISON, np.uint8).view(NUMPY[dtype]).reshape(shape)
    return array


def numbers(dtype: str, array: Array) -> Array:
    """Values in float64, exact for every dtype here."""
    if dtype != "bf16":
        return array.astype(np.float64)
    with np.errstate(invalid="ignore"):  # signalling NaN
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def bf16(values: Array) -> Array:
    """Bits of the nearest bf16, ties to even; finite values."""
    raw = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    bits: Array = ((raw + 0x7FFF + (raw >> 16 & 1)) >> 16).astype(np.uint16)
    return bits
