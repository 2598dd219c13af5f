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


def given(want: dict[str, np.ndarray], calls: int = 1, **tensors: tuple[str, np.ndarray]) -> Case:
    return Case(tensors, want, calls)


def words(values: np.ndarray) -> np.ndarray:
    """Rows of bf16 numbers as 32-bit words of two."""
    return bf16(values).view(np.uint32).view(np.int32)


def far() -> np.ndarray:
    """More than 2^31 numbers; only the pages that are written take memory."""
    array = np.zeros((2200, 1 << 20), np.uint8)
    for row in FAR_ROWS.tolist():
        array[row, :32] = RNG.integers(1, 255, 32)
    return array


ROWS, LINE, WIDE, TILE, RING, BULK = f32(2, 128), f32(100), f32(4, 40), f32(32, 32), f32(5, 256), f32(4, 64)
PARTS, VALUES, SHORT, PIPE = i32(4, 32), i32(256, below=32), i32(48), f32(6, 32)
TOTAL = PARTS.sum().reshape(1).astype(np.int32)
LANES = np.arange(64)
TABLE, CACHE = np.array([-1, 2, 0, 3], np.int32), f32(4, 32)
SLOT, SLOTS, UPDATE = np.array([2, 0, 4], np.int32), f32(5, 32), f32(3, 32)
FAR_ROWS = np.array([2, 2150], np.int32)
FAR = far()
A16, B8, A64, B64 = f32(16, 16), f32(8, 16), f32(64, 64), f32(64, 64)
BOXES = (np.arange(128 * 64) % 251).astype(np.uint16).reshape(128, 64)
STATE, STEP = f32(2, 32), f32(2, 32)
SUMMED, ADDED = f32(60), f32(2, 60)
SCATTERED = SLOTS.copy()
SCATTERED[SLOT] += 2 * UPDATE
ZERO1 = np.zeros(1, np.int32)
HALF, COUNTED = i32(32), i32(64)

CASES = {
    "row_sum": simple(ROWS, ROWS.sum(axis=1)),
    "tree_sum": simple(ROWS[0].copy(), ROWS[0].sum().reshape(1)),
    "tail_sum": simple(SHORT, SHORT.sum().reshape(1).astype(np.int32)),
    "scale": simple(LINE, LINE * 2),
    "rows": simple(WIDE, WIDE[:, :32].copy()),
    "vector": simple(LINE[:68].copy(), LINE[4:68].copy()),
    "transpose": simple(TILE, TILE.T.copy()),
    "swizzle": simple(TILE, TILE.T.copy()),
    "ring": simple(RING, RING),
    "bulk": simple(BULK, BULK),
    "store_bulk": simple(BULK[:3].copy(), BULK[:3] + 1),
    "box": simple(BOXES, BOXES),
    "staged": given(
        {"y": BULK[0][::-1] + 1},
        x=("in", BULK[0]),
        work=("workspace", np.zeros(64, np.float32)),
        y=("out", np.zeros(64, np.float32)),
    ),
    "bounce": given(
        {"y": BULK[0][::-1] + 1},
        x=("in", BULK[0]),
        work=("workspace", np.zeros(64, np.float32)),
        y=("out", np.zeros(64, np.float32)),
    ),
    "half": simple(HALF, np.where(LANES[:32] < 16, HALF, 7).astype(np.int32)),
    "count": simple(COUNTED, np.full(64, (COUNTED > 49).sum(), np.int32)),
    "pipeline": simple(PIPE, PIPE[:, ::-1].copy()),
    "producer": simple(LINE[:32].copy(), LINE[31::-1] + 1),
    "warp_exchange": simple(BULK[0].copy(), BULK[0][LANES ^ 3]),
    "scan": simple(PARTS[0].copy(), np.cumsum(PARTS[0]).astype(np.int32)),
    "histogram": simple(VALUES, np.bincount(VALUES, minlength=32).astype(np.int32)),
    "global_sum": simple(PARTS, TOTAL, calls=2),
    "two_outputs": given(
        {"parts": PARTS.sum(axis=1).astype(np.int32), "y": TOTAL},
        x=("in", PARTS),
        parts=("out", np.zeros(4, np.int32)),
        y=("out", ZERO1),
    ),
    "chain": given(
        {"y": (PARTS[:2].reshape(64) + 1) * 2},
        2,
        x=("in", PARTS[:2].reshape(64).copy()),
        mid=("workspace", np.zeros(64, np.int32)),
        y=("out", np.zeros(64, np.int32)),
    ),
    "flag": given(
        {"y": PARTS[:2].reshape(64) + 1},
        x=("in", PARTS[:2].reshape(64).copy()),
        work=("workspace", np.zeros(64, np.int32)),
        flag=("workspace", ZERO1),
        y=("out", np.zeros(64, np.int32)),
    ),
    "grid_barrier": given(
        {"y": np.repeat(TOTAL, 4)},
        2,
        x=("in", PARTS),
        work=("workspace", np.zeros(4, np.int32)),
        count=("workspace", ZERO1),
        y=("out", np.zeros(4, np.int32)),
    ),
    "ticket": given(
        {"y": 2 * TOTAL + 5, "count": ZERO1},
        2,
        x=("in", PARTS),
        work=("workspace", np.zeros(4, np.int32)),
        count=("workspace", ZERO1),
        y=("state", ZERO1 + 5),
    ),
    "lock": given({"y": ZERO1 + 63, "lock": ZERO1}, lock=("workspace", ZERO1), y=("state", ZERO1 + 3)),
    "red_vector": given({"y": SUMMED + ADDED.sum(axis=0)}, x=("in", ADDED), y=("state", SUMMED)),
    "state": given({"s": 2 * (2 * STATE + STEP) + STEP}, 2, x=("in", STEP), s=("state", STATE)),
    "shift": given({"s": np.append(BULK[0][1:], BULK[0][63])}, s=("state", BULK[0])),
    "scatter": given({"s": SCATTERED}, slot=("in", SLOT), x=("in", UPDATE), s=("state", SLOTS)),
    "gather": given(
        {"y": np.where(TABLE[:, None] < 0, 0, CACHE[TABLE])},
        table=("in", TABLE),
        cache=("in", CACHE),
        y=("out", np.zeros((4, 32), np.float32)),
    ),
    "far": given(
        {"y": FAR[FAR_ROWS, :32]}, rows=("in", FAR_ROWS), x=("in", FAR), y=("out", np.zeros((2, 32), np.uint8))
    ),
    "cluster_read": simple(ROWS[:, :32].copy(), ROWS[::-1, :32].copy()),
    "peers": simple(PARTS, np.roll(PARTS, 1, axis=0)),
    "mma": given(
        {"y": A16 @ B8.T}, a=("in", words(A16)), b=("in", words(B8)), y=("out", np.zeros((16, 8), np.float32))
    ),
    "wgmma": given(
        {"y": A64 @ B64.T}, a=("in", bf16(A64)), b=("in", bf16(B64)), y=("out", np.zeros((64, 64), np.float32))
    ),
    "wgmma_loop": given(
        {"y": A64 @ B64.T}, a=("in", bf16(A64)), b=("in", bf16(B64)), y=("out", np.zeros((64, 64), np.float32))
    ),
    "wgmma_registers": given(
        {"y": 2 * A64 @ B64.T}, a=("in", bf16(A64)), b=("in", bf16(B64)), y=("out", np.zeros((64, 64), np.float32))
    ),
}
