"""Inputs of the corpus' kernels and what must come out, worked out with NumPy; all numbers are whole and small."""

import numpy as np
from ptx_corpus.entries import Case

RNG = np.random.default_rng(11)


def f32(*shape: int) -> np.ndarray:
    return RNG.integers(-50, 50, shape).astype(np.float32)


def i32(*shape: int, below: int = 100) -> np.ndarray:
    return RNG.integers(0, below, shape).astype(np.int32)


def bf16(values: np.ndarray) -> np.ndarray:
    """Bits of values that bf16 holds exactly."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def simple(x: np.ndarray, y: np.ndarray, calls: int = 1) -> Case:
    """One input x, one output y."""
    return Case({"x": ("in", x), "y": ("out", np.zeros_like(y))}, {"y": y}, calls)


ROWS, LINE, WIDE, TILE, RING, BULK = f32(2, 128), f32(100), f32(4, 40), f32(32, 32), f32(5, 256), f32(4, 64)
PARTS, VALUES = i32(4, 32), i32(256, below=32)

CASES = {
    "row_sum": simple(ROWS, ROWS.sum(axis=1)),
    "scale": simple(LINE, LINE * 2),
    "rows": simple(WIDE, WIDE[:, :32].copy()),
    "transpose": simple(TILE, TILE.T.copy()),
    "ring": simple(RING, RING),
    "bulk": simple(BULK, BULK),
    "global_sum": simple(PARTS, PARTS.sum().reshape(1).astype(np.int32), calls=2),
    "histogram": simple(VALUES, np.bincount(VALUES, minlength=32).astype(np.int32)),
}
