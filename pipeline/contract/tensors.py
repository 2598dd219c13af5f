"""Tensor and scalar arguments of an op, symbolically. No torch here: the builder reads these too."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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


ROWS = ("tokens", "requests")  # dim symbols of which a batch has one for each row


class Role(enum.StrEnum):
    IN = "in"
    WEIGHT = "weight"
    STATE = "state"  # read and written in place
    OUT = "out"


@dataclass(frozen=True)
class TensorSpec:
    """One tensor argument. `shape` holds dim symbols or integers; row-major and contiguous unless `strided` says so.

    `only` restricts the argument to some values of one axis, e.g. ("variant", ("delta", "final")). `rule` (of
    contract.rules) judges an output; without one it is `exact`, or relative L2 with the op's floor. `pitched`: the
    stride of the first dimension is free at run time, a multiple of 16 bytes and at least one compact entry.
    `padding`: what a padding row of an integer argument holds, so that it touches no state.
    """

    name: str
    dtype: str
    shape: tuple[str | int, ...]
    role: Role
    doc: str
    exact: bool = False  # must equal the rounded reference bit for bit
    only: tuple[str, tuple[str, ...]] | None = None
    # not in repr: a contract's hash holds these only where they are used
    rule: Any = field(default=None, repr=False)
    pitched: bool = field(default=False, repr=False)
    padding: int | None = field(default=None, repr=False)

    def present(self, axes: Mapping[str, str]) -> bool:
        return self.only is None or axes.get(self.only[0]) in self.only[1]

    @property
    def token_dim(self) -> int | None:
        """The dimension that counts tokens or requests, None without one."""
        return next((i for i, symbol in enumerate(self.shape) if symbol in ROWS), None)

    @property
    def by_token(self) -> bool:
        """Whether its first dimension is a row for each token."""
        return bool(self.shape) and self.shape[0] == "tokens"

    def extra(self) -> dict[str, str]:
        """What a contract's hash says of it beyond its repr."""
        found = {"rule": self.rule, "pitched": self.pitched or None, "padding": self.padding}
        return {k: repr(v) for k, v in found.items() if v is not None}

    def sizes(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(dims[s] if isinstance(s, str) else s for s in self.shape)


@dataclass(frozen=True)
class ScalarSpec:
    """One run-time scalar argument, "i32" or "f32"; `sample` is what the builder traces with.

    `other` is a value that must change the outputs of the first family: the self-test tries it.
    """

    name: str
    dtype: str
    doc: str
    sample: float = 0
    other: float | None = field(default=None, repr=False)
