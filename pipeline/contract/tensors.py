"""Tensor and scalar arguments of an op, symbolically. No torch here: the builder reads these too."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    name: str
    bytes: int
    torch: str  # attribute of torch
    cutlass: str  # attribute of cutlass


DTYPES: Mapping[str, DType] = {
    d.name: d
    for d in (
        DType("bf16", 2, "bfloat16", "BFloat16"),
        DType("f16", 2, "float16", "Float16"),
        DType("f32", 4, "float32", "Float32"),
        DType("i32", 4, "int32", "Int32"),
        DType("i64", 8, "int64", "Int64"),
        DType("u8", 1, "uint8", "Uint8"),
        DType("e4m3", 1, "float8_e4m3fn", "Float8E4M3FN"),
    )
}


class Role(enum.StrEnum):
    IN = "in"
    WEIGHT = "weight"
    STATE = "state"  # read and written in place
    OUT = "out"


@dataclass(frozen=True)
class TensorSpec:
    """One tensor argument. `shape` holds dim symbols or integers; row-major and contiguous unless `strided` says so.

    `only` restricts the argument to some values of one axis, e.g. ("variant", ("delta", "final")).
    """

    name: str
    dtype: str
    shape: tuple[str | int, ...]
    role: Role
    doc: str
    exact: bool = False  # must equal the rounded reference bit for bit
    only: tuple[str, tuple[str, ...]] | None = None

    def present(self, axes: Mapping[str, str]) -> bool:
        return self.only is None or axes.get(self.only[0]) in self.only[1]

    @property
    def by_token(self) -> bool:
        """Whether it has a row for each token."""
        return bool(self.shape) and self.shape[0] == "tokens"

    def sizes(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(dims[s] if isinstance(s, str) else s for s in self.shape)


@dataclass(frozen=True)
class ScalarSpec:
    """One run-time scalar argument, "i32" or "f32"; `sample` is what the builder traces with."""

    name: str
    dtype: str
    doc: str
    sample: float = 0
