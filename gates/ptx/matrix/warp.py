"""ldmatrix, stmatrix and movmatrix: 8 x 8 matrices of 16-bit elements between shared memory and a warp's registers.

Lane l of register j holds row l / 4, columns 2 (l % 4) and the next, of matrix j (with .trans: of its transpose). Row r
of matrix j is the 16 bytes that lane 8 j + r points at; the pointers of lanes past 8 x matrices are not read.
Not covered (looked up as None): the b8 and the unpacking shapes, which sm_90a does not have.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kgen.gates.ptx.matrix import fragments
from kgen.gates.ptx.matrix.formats import U32
from kgen.gates.ptx.matrix.fragments import Registers

ROW_BYTES = 16
_LANES = np.arange(32)


@dataclass(frozen=True)
class MatrixCopy:
    """One form of ldmatrix or stmatrix. `count`: matrices and registers (1, 2, 4); `trans`: each matrix transposed."""

    count: int
    trans: bool

    @property
    def lanes(self) -> int:
        """Lanes whose row address is used: the first 8 x count."""
        return 8 * self.count

    def addresses(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row addresses (warps, 32) -> byte address of every 16-bit element, (count, warps, 32, 2).

        The last axis: lower and upper half of the register.
        """
        half, group, rest = np.arange(2), _LANES[:, None] // 4, _LANES[:, None] % 4
        row, column = (2 * rest + half, group + 0 * half) if self.trans else (group + 0 * half, 2 * rest + half)
        source = 8 * np.arange(self.count)[:, None, None] + row  # the lane that points at the element's row
        return np.moveaxis(np.asarray(rows)[:, source] + 2 * column, 0, 1)

    def load(self, rows: U32) -> list[U32]:
        """Words (warps, lanes, 4) that lanes 0, 1, ... point at -> registers (warps, 32). For ldmatrix."""
        words = np.ascontiguousarray(rows[:, : self.lanes], dtype="<u4")
        matrices = words.view("<u2").reshape(len(words), self.count, 8, 8)
        if self.trans:
            matrices = matrices.swapaxes(2, 3)
        packed = np.ascontiguousarray(matrices).view("<u4").reshape(len(words), self.count, 32)
        return [packed[:, j] for j in range(self.count)]

    def store(self, registers: Registers) -> U32:
        """Registers (warps, 32) -> words (warps, lanes, 4) to write where the lanes point. For stmatrix.

        ValueError when the number of registers is not `count`.
        """
        words = fragments.stack(registers, self.count, "matrices").transpose(1, 0, 2)
        matrices = np.ascontiguousarray(words, dtype="<u4").view("<u2").reshape(len(words), self.count, 8, 8)
        if self.trans:
            matrices = matrices.swapaxes(2, 3)
        return np.ascontiguousarray(matrices).view("<u4").reshape(len(words), self.lanes, 4)


def movmatrix(register: U32) -> U32:
    """The register (warps, 32) of an 8 x 8 matrix of 16-bit elements -> that of its transpose."""
    return MatrixCopy(1, True).load(MatrixCopy(1, False).store([register]))[0]


MOVMATRIX = ("sync", "aligned", "m8n8", "trans", "b16")


def _forms(spaces: tuple[str, ...]) -> dict[tuple[str, ...], MatrixCopy]:
    known = {}
    for count in (1, 2, 4):
        for trans in ((), ("trans",)):
            for space in spaces:
                known["sync", "aligned", "m8n8", f"x{count}", *trans, space, "b16"] = MatrixCopy(count, bool(trans))
    return known


FORMS = _forms(("shared", "shared::cta"))


def ldmatrix(modifiers: tuple[str, ...]) -> MatrixCopy | None:
    """The form of ldmatrix with these modifiers ("sync", "aligned", "m8n8", "x4", "shared", "b16"), or None."""
    return FORMS.get(modifiers)


def stmatrix(modifiers: tuple[str, ...]) -> MatrixCopy | None:
    """The form of stmatrix with these modifiers, or None."""
    return FORMS.get(modifiers)
