"""ldmatrix, stmatrix and movmatrix against the figure of the PTX ISA, element by element."""

import numpy as np
import pytest

from kgen.gates.ptx.matrix.warp import FORMS, MatrixCopy, ldmatrix, movmatrix, stmatrix

KINDS = [MatrixCopy(count, trans) for count in (1, 2, 4) for trans in (False, True)]


def rows_of(rng: np.random.Generator, warps: int) -> np.ndarray:
    """Distinct row addresses, 16-byte aligned, in no order; lanes that are not read point nowhere."""
    return np.stack([rng.permutation(256)[:32] * 16 for _ in range(warps)])


def element(memory: np.ndarray, rows: np.ndarray, matrix: int, row: int, column: int) -> int:
    at = int(rows[8 * matrix + row]) + 2 * column
    return int(memory[at]) | int(memory[at + 1]) << 8


@pytest.mark.parametrize("form", KINDS, ids=str)
def test_a_load_gives_each_lane_the_elements_of_the_figure(form: MatrixCopy) -> None:
    rng = np.random.default_rng(1)
    memory, rows = rng.integers(0, 256, 4096).astype(np.uint8), rows_of(rng, 2)
    rows[:, form.lanes :] = 1 << 40
    taken = memory[rows[:, : form.lanes, None] + np.arange(16)].view("<u4")
    registers = form.load(taken)
    addresses = form.addresses(rows)
    assert len(registers) == form.count and addresses.shape == (form.count, 2, 32, 2)
    for warp in range(2):
        for j in range(form.count):
            for lane in range(32):
                for half in (0, 1):
                    row, column = lane // 4, 2 * (lane % 4) + half
                    if form.trans:
                        row, column = column, row
                    want = element(memory, rows[warp], j, row, column)
                    assert int(registers[j][warp, lane]) >> 16 * half & 0xFFFF == want
                    at = int(addresses[j, warp, lane, half])
                    assert int(memory[at]) | int(memory[at + 1]) << 8 == want


@pytest.mark.parametrize("form", KINDS, ids=str)
def test_a_store_undoes_a_load(form: MatrixCopy) -> None:
    rng = np.random.default_rng(2)
    registers = [rng.integers(0, 1 << 32, (3, 32), dtype=np.uint64).astype(np.uint32) for _ in range(form.count)]
    words = form.store(registers)
    assert words.shape == (3, form.lanes, 4)
    for made, given in zip(form.load(words), registers, strict=True):
        np.testing.assert_array_equal(made, given)


def test_a_store_writes_row_two_from_lanes_8_to_11_and_its_transpose_from_columns() -> None:
    lanes = np.arange(32, dtype=np.uint32)
    register = [(lanes | (lanes + 100) << 16).astype(np.uint32)[None]]
    plain = MatrixCopy(1, False).store(register)[0].view("<u2")
    assert plain[2].tolist() == [8, 108, 9, 109, 10, 110, 11, 111]
    turned = MatrixCopy(1, True).store(register)[0].view("<u2")
    assert turned[2].tolist() == [1, 5, 9, 13, 17, 21, 25, 29]  # column 2 of the matrix: lower halves of lanes 4 g + 1
    assert turned[3].tolist() == [101, 105, 109, 113, 117, 121, 125, 129]


def test_movmatrix_transposes() -> None:
    lanes = np.arange(32, dtype=np.uint32)
    register = (lanes * 2 | (lanes * 2 + 1) << 16).astype(np.uint32)[None]  # element (r, c) is 8 r + c
    made = movmatrix(register)[0]
    assert [(int(x) & 0xFFFF, int(x) >> 16) for x in made[:4]] == [(0, 8), (16, 24), (32, 40), (48, 56)]
    assert (int(made[31]) & 0xFFFF, int(made[31]) >> 16) == (8 * 6 + 7, 8 * 7 + 7)
    np.testing.assert_array_equal(movmatrix(movmatrix(register)), register)


def test_lookup_knows_twelve_forms_and_guesses_none() -> None:
    assert len(FORMS) == 12
    assert ldmatrix(("sync", "aligned", "m8n8", "x4", "trans", "shared", "b16")) == MatrixCopy(4, True)
    assert stmatrix(("sync", "aligned", "m8n8", "x2", "shared::cta", "b16")) == MatrixCopy(2, False)
    for text in ("m16n16.x1.trans.shared.b8", "m8n8.x3.shared.b16", "m8n16.x1.shared.b8x16.b6x16_p32", "m8n8.x1.b16"):
        assert ldmatrix(("sync", "aligned", *text.split("."))) is None
        assert stmatrix(("sync", "aligned", *text.split("."))) is None
