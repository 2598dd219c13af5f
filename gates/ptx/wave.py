"""State of the CTAs that run together: registers over all their lanes, groups of lanes that stand at one instruction.

A register is one array over all lanes of the wave and is never written in place, so that a move costs nothing. A group
of all live lanes computes on whole arrays; a small one on its own lanes only.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx.geometry import WARP

Array = npt.NDArray[Any]
KINDS: dict[str, Any] = {
    "pred": np.bool_,
    "b8": np.uint8,
    "b16": np.uint16,
    "b32": np.uint32,
    "b64": np.uint64,
    "b128": np.uint64,
}
SPARSE = 8  # a group of less than 1/SPARSE of the lanes computes on these only


class Lanes:
    """Lanes of a wave: how many there are, which exist and which have not exited."""

    def __init__(self, ctas: int, warps: int, threads: int) -> None:
        self.ctas, self.warps, self.rows = ctas, warps, ctas * warps
        self.count = self.rows * WARP
        self.exists = np.tile(np.arange(warps * WARP) < threads, ctas)
        self.born = int(self.exists.sum())
        self.live = self.exists.copy()
        self.all = np.arange(self.count)
        self.row = np.repeat(np.arange(self.rows), WARP)
        self.cta = np.repeat(np.arange(ctas), warps * WARP)
        self.lane = np.tile(np.arange(WARP), self.rows)
        self.alive = self.born  # live lanes, counted when they change

    def exit(self, mask: Array) -> None:
        self.live = self.live & ~mask
        self.alive = int(self.live.sum())


class Group:
    """Lanes at one instruction. `mask` over all lanes of the wave; None: every one of them."""

    __slots__ = ("_index", "_rows", "count", "covers", "mask", "of", "sparse")

    def __init__(self, of: Lanes, mask: Array | None) -> None:
        self.of = of
        count = of.count if mask is None else int(np.count_nonzero(mask))
        self.mask = None if count == of.count else mask
        self.count = count
        self.covers = self.mask is None or count == of.alive
        self.sparse = count * SPARSE < of.count
        self._index: Array | None = None
        self._rows: Array | None = None

    @property
    def index(self) -> Array:
        """Flat numbers of the lanes."""
        if self.mask is None:
            return self.of.all
        if self._index is None:
            self._index = np.flatnonzero(self.mask)
        return self._index

    @property
    def dense(self) -> Array:
        """The mask as an array."""
        return np.ones(self.of.count, np.bool_) if self.mask is None else self.mask

    @property
    def rows(self) -> Array:
        """Warps with a lane in the group."""
        if self._rows is None:
            if self.mask is None:
                self._rows = np.arange(self.of.rows)
            else:
                self._rows = np.flatnonzero(self.mask.reshape(-1, WARP).any(axis=1))
        return self._rows

    def read(self, register: Array) -> Array:
        """For computing: values of the group's lanes, or of all lanes of the wave."""
        return register[self.index] if self.sparse else register

    def write(self, old: Array, value: Array) -> Array:
        """The register after the result of a computation on `read` values."""
        if self.sparse:
            return self.put(old, value)
        if value.shape != old.shape:
            value = np.array(np.broadcast_to(value, old.shape))
        if self.covers:
            return value
        mask = self.dense
        return np.where(mask if value.ndim == 1 else mask[:, None], value, old)

    def pick(self, register: Array) -> Array:
        """Values of the group's lanes alone, in the order of `index`."""
        if register.shape[0] == 1:
            return np.repeat(register, self.count, axis=0)
        return register if self.mask is None else register[self.index]

    def put(self, old: Array, value: Array) -> Array:
        """The register after a result for the group's lanes alone."""
        if self.mask is None and value.shape == old.shape:
            return value
        new = old.copy()
        new[self.index] = value
        return new

    def narrowed(self, predicate: Array, wanted: bool) -> "Group | None":
        """The lanes where a predicate register is as wanted; None without any."""
        keep = predicate if wanted else ~predicate
        if self.mask is not None:
            keep = keep & self.mask
        found = Group(self.of, keep)
        return self if found.count == self.count else found if found.count else None


def blank(lanes: int, kind: str) -> Array:
    """A register's first value."""
    return np.zeros((lanes, 2) if kind == "b128" else lanes, KINDS[kind])
