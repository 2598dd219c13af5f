"""Registers that wgmma uses: which ones are in flight, and which a thread wrote since the last wgmma.fence.

An accumulator, and a register with a fragment of A, is in flight until wgmma.wait_group covers its group: threads may
not touch it. Before a wgmma uses a register that a thread wrote (or that a wgmma of another shape uses), and before a
warp's first wgmma, wgmma.fence is needed. A plain move is no access of its own: compilers place copies and constants
where they like, so what is true of its source becomes true of its result.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx.syntax import Entry, Imm, Instruction, Reg, Vector

Array = npt.NDArray[Any]


def _multiplies(i: Instruction) -> bool:
    return i.opcode == "wgmma" and i.modifiers[0] == "mma_async"


def moves(i: Instruction) -> bool:
    """A copy of one register, or of a number, into another register."""
    return i.opcode == "mov" and isinstance(i.operands[0], Reg) and isinstance(i.operands[1], Reg | Imm)


def watched(entry: Entry) -> frozenset[str]:
    """Registers that a wgmma of the entry uses, and those that copies connect with them."""
    vectors = [o for i in entry.instructions if _multiplies(i) for o in i.operands[:2] if isinstance(o, Vector)]
    found = {o.name for v in vectors for o in v.items if isinstance(o, Reg)}
    copies: dict[str, list[str]] = {}
    for i in entry.instructions if found else ():
        if moves(i) and isinstance(a := i.operands[0], Reg) and isinstance(b := i.operands[1], Reg):
            copies.setdefault(a.name, []).append(b.name)
            copies.setdefault(b.name, []).append(a.name)
    left = list(found)
    while left:
        new = [name for name in copies.get(left.pop(), ()) if name not in found]
        found.update(new)
        left += new
    return frozenset(found)


class InFlight:
    """Of all warps (rows) of a wave. Groups and fences are counted from 1 by each warp."""

    def __init__(self, rows: int) -> None:
        self.commits = np.zeros(rows, np.int64)  # groups that are closed
        self.done = np.zeros(rows, np.int64)  # groups that were waited for
        self.fences = np.zeros(rows, np.int64)
        self._none = np.zeros(rows, np.int64)
        self._group: dict[int, Array] = {}  # register -> last group that uses it
        self._form: dict[int, Array] = {}  # ... and the shape of its wgmma
        self._written: dict[int, Array] = {}  # register -> fences before a thread's last write, plus 1; 0: never

    def _set(self, table: dict[int, Array], number: int, rows: Array, value: Array | int) -> None:
        if number not in table:
            table[number] = np.zeros(len(self._none), np.int64)
        table[number][rows] = value

    def used(self, numbers: Iterable[int], rows: Array, form: int) -> None:
        """A wgmma of the open group uses the registers."""
        for number in numbers:
            self._set(self._group, number, rows, self.commits[rows] + 1)
            self._set(self._form, number, rows, form * 2**32 + self.fences[rows])
            if number in self._written:
                self._set(self._written, number, rows, 0)

    def wrote(self, numbers: Iterable[int], rows: Array) -> None:
        """The threads of the warps write the registers."""
        for number in numbers:
            self._set(self._written, number, rows, self.fences[rows] + 1)

    def moved(self, to: int, source: int, rows: Array) -> None:
        """`source` -1: a number."""
        for table in (self._group, self._form, self._written):
            if source in table or to in table:
                self._set(table, to, rows, table.get(source, self._none)[rows])

    def touched(self, numbers: Sequence[int], rows: Array) -> Array:
        """Warps for which one of the registers is in flight."""
        late = np.zeros(len(rows), np.bool_)
        for number in numbers:
            if (group := self._group.get(number)) is not None:
                late |= group[rows] > self.done[rows]
        found: Array = rows[late]
        return found

    def unfenced(self, numbers: Sequence[int], rows: Array, form: int) -> Mapping[str, Array]:
        """Why a wgmma that uses the registers needs a wgmma.fence before it -> warps."""
        written, other = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
        now = self.fences[rows]
        for number in numbers:
            if (last := self._written.get(number)) is not None:
                written |= last[rows] > now
            if (last := self._form.get(number)) is not None:
                other |= (last[rows] % 2**32 == now) & (last[rows] // 2**32 != form) & (last[rows] > 0)
        found = {
            "the warp has executed no wgmma.fence before its first wgmma": rows[now == 0],
            "wgmma uses a register that a thread wrote after the last wgmma.fence": rows[written & (now > 0)],
            "wgmma uses an accumulator of a wgmma of another shape, without wgmma.fence between": rows[
                other & (now > 0)
            ],
        }
        return {text: some for text, some in found.items() if len(some)}
