"""Kernels of the real compiler in the PTX interpreter: right numbers and no finding, and each planted fault found."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builds import CANDIDATES
from support.ptx import execute, kinds, launch

from kgen.gates.ptx import Result
from kgen.gates.ptx.matrix.tma import TensorMap

RNG = np.random.default_rng(3)
# whole numbers below 8 in bf16: products and their sums are exact in float32
SMALL = {n: RNG.integers(-7, 8, n).astype(np.float32) for n in (16 * 16, 8 * 16, 64 * 64)}


def bf16(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def floats(*shape: int) -> np.ndarray:
    return RNG.integers(0, 100, shape).astype(np.float32)


X4, X8 = floats(4, 128), floats(8, 512)
BOX = np.arange(128 * 64, dtype=np.uint16).reshape(128, 64)
I4 = np.arange(128, dtype=np.int32).reshape(4, 32)
A16, B8, A64 = SMALL[256].reshape(16, 16), SMALL[128].reshape(8, 16), SMALL[4096].reshape(64, 64)
TILE = TensorMap("bf16", 0, (64, 128), (128,), (64, 64), (1, 1), 128)
SQUARE = replace(TILE, sizes=(64, 64))

# kernel -> arguments by name ("": none), arrays, grid, block, cluster, dynamic shared bytes, maps, wanted outputs
CASES: dict[str, tuple[Any, ...]] = {
    "RowSum": (("x", "y"), {"x": ("in", X4), "y": ("out", X4[:, 0])}, 4, 128, 1, 32, {}, {"y": X4.sum(axis=1)}),
    "Pipeline": (("x", "y"), {"x": ("in", X8), "y": ("out", X8 * 0)}, 1, 128, 1, 4096, {}, {"y": X8}),
    "Box": (("x", "y"), {"x": ("in", BOX), "y": ("out", BOX * 0)}, 2, 128, 1, 9216, {(0, 0): TILE}, {"y": BOX}),
    "Warpgroup": (
        ("", "a", "b", "y"),
        {"a": ("in", bf16(A64)), "b": ("in", bf16(A64.T.copy())), "y": ("out", A64 * 0)},
        1,
        128,
        1,
        17408,
        {(0, 1): SQUARE, (0, 2): SQUARE},
        {"y": A64 @ A64},
    ),
    "WarpMma": (
        ("a", "b", "y"),
        {"a": ("in", bf16(A16)), "b": ("in", bf16(B8)), "y": ("out", floats(16, 8))},
        1,
        64,
        1,
        512,
        {},
        {"y": A16 @ B8.T},
    ),
    "Peers": (("x", "y"), {"x": ("in", I4), "y": ("out", I4 * 0)}, 4, 32, 4, 256, {}, {"y": np.roll(I4, 1, axis=0)}),
    "GridSum": (
        ("x", "work", "count", "y"),
        {
            "x": ("in", X4),
            "work": ("workspace", np.zeros(4, np.float32)),
            "count": ("workspace", np.zeros(1, np.int32)),
            "y": ("out", np.zeros(4, np.float32)),
        },
        4,
        128,
        1,
        0,
        {},
        {"y": np.full(4, X4.sum())},
    ),
}
FAULTS = {
    "RowSum.no_barrier": {"race"},
    "RowSum.off_by_one": {"out-of-bounds"},
    "RowSum.uninitialised": {"uninitialised"},
    "RowSum.shuffle_in_branch": {"barrier-participation"},
    "Pipeline.no_wait": {"async-not-waited"},
    "Pipeline.no_barrier": {"async-not-waited", "race"},
    "Pipeline.stale_buffer": {"race"},
    "Box.no_wait": {"async-not-waited"},
    "Box.wrong_phase": {"async-not-waited", "deadlock"},
    "Box.short_bytes": {"deadlock"},
    "Warpgroup.no_wait": {"async-not-waited"},
    "WarpMma.no_barrier": {"race"},
    "Peers.no_wait": {"async-not-waited", "uninitialised"},
    "GridSum.relaxed": {"race"},
    "GridSum.one_too_many": {"deadlock"},
    "GridSum.plain_counter": {"race", "deadlock"},
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the PTX of all kernels, right and wrong."""
    folder = tmp_path_factory.mktemp("ptx")
    command = [sys.executable, str(CANDIDATES / "ptx_kernels.py"), str(folder)]
    done = subprocess.run(
        command, env={**os.environ, "CUTE_DSL_ARCH": "sm_90a"}, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def go(compiled: Path, name: str, seed: int) -> tuple[Result, dict[str, np.ndarray]]:
    names, arrays, grid, block, cluster, shared, maps, _ = CASES[name.partition(".")[0]]
    text = (compiled / f"{name}.ptx").read_text()
    entry = re.search(r"\.entry (\w+)", text)
    assert entry
    return execute(text, [launch(names, grid, block, cluster, entry[1], shared)], arrays, seed, maps)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", CASES)
def test_a_right_kernel_gives_right_numbers_and_no_finding(compiled: Path, name: str, seed: int) -> None:
    result, out = go(compiled, f"{name}.right", seed)
    assert result.whole, (result.skipped, result.stopped)
    assert not result.findings, [str(f) for f in result.findings]
    for key, want in CASES[name][-1].items():
        assert np.array_equal(out[key], want.astype(out[key].dtype)), key


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_under_every_schedule(compiled: Path, name: str, seed: int) -> None:
    result, _ = go(compiled, name, seed)
    assert kinds(result), name
    assert kinds(result) & FAULTS[name], [str(f) for f in result.findings]
