"""Which lanes run next. Lanes that stand at one instruction are one mask over the wave.

The block that comes first in reverse postorder runs first, so that lanes which took different ways meet again; lanes
that spin are late: they run when nobody else can. With a seed the warps are dealt into classes, one of which, drawn at
random, runs until it stops: other seeds give other orders of warps between two barriers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kgen.gates.ptx.geometry import WARP
from kgen.gates.ptx.wave import Lanes

Array = npt.NDArray[Any]
FAIR = 4096  # every so many turns the lanes that wait longest run
CLASSES = 3


def classes(lanes: Lanes, seed: int) -> list[Array]:
    """Masks of the lanes that are scheduled apart; one of all lanes for seed 0."""
    if not seed:
        return [np.ones(lanes.count, np.bool_)]
    rng = np.random.default_rng(seed)
    drawn = np.repeat(rng.integers(0, CLASSES, lanes.rows), WARP)
    return [mask for i in range(CLASSES) if (mask := drawn == i).any()]


class Ready:
    def __init__(self, lanes: Lanes, ranks: Sequence[int], seed: int) -> None:
        self._ranks = ranks
        self._masks = classes(lanes, seed)
        self._rng = np.random.default_rng(seed)
        self._now: list[dict[int, Array]] = [{} for _ in self._masks]
        self._late: dict[tuple[int, int], Array] = {}
        self.stalled: dict[int, Array] = {}  # lanes that wait at an instruction for others of their warp
        self._met: dict[int, Array] = {}  # lanes that stalled, with those who came
        self._turns = 0
        self._running = 0  # the class that runs until all its lanes stop

    def add(self, pc: int, mask: Array, late: bool = False) -> None:
        if (stopped := self.stalled.pop(pc, None)) is not None:  # they go on together, whatever their classes
            self._met[pc] = mask | stopped | self._met.get(pc, False)
            return
        for number, members in enumerate(self._masks):
            mine = mask if len(self._masks) == 1 else mask & members
            if len(self._masks) > 1 and not mine.any():
                continue
            if late and pc not in self._now[number]:
                before = self._late.get((number, pc))
                self._late[number, pc] = mine if before is None else before | mine
                continue
            if (spun := self._late.pop((number, pc), None)) is not None:
                mine = mine | spun
            before = self._now[number].get(pc)
            self._now[number][pc] = mine if before is None else before | mine

    def stall(self, pc: int, mask: Array) -> None:
        """Until other lanes come to `pc`; those that wait there already try again with these."""
        before = self.stalled.pop(pc, None)
        if before is None:
            self.stalled[pc] = mask
        else:
            self._met[pc] = before | mask | self._met.get(pc, False)

    def unstall(self) -> None:
        """All that waited look again: a lane that they waited for has exited."""
        stopped, self.stalled = self.stalled, {}
        for pc, mask in stopped.items():
            self.add(pc, mask)

    @property
    def others(self) -> bool:
        """Whether lanes that are not late wait for their turn."""
        return bool(self._met) or any(self._now)

    @property
    def only_late(self) -> bool:
        return bool(self._late) and not self.others

    def pick(self) -> tuple[int, Array] | None:
        """None when no lane can run."""
        self._turns += 1
        if self._met:
            return self._met.popitem()
        able = [i for i, d in enumerate(self._now) if d]
        if not able:
            if not self._late:
                return None
            (number, pc), mask = next(iter(self._late.items()))
            del self._late[number, pc]
            return pc, mask
        if self._running not in able or self._turns % FAIR == 0:
            self._running = able[int(self._rng.integers(len(able)))] if len(able) > 1 else able[0]
        number = self._running
        waiting = self._now[number]
        if self._turns % FAIR == 0:
            if self._late and self._turns % (2 * FAIR) == 0:
                key = next(iter(self._late))
                return key[1], self._late.pop(key)
            pc = next(iter(waiting))
        else:
            pc = min(waiting, key=self._ranks.__getitem__)
        return pc, waiting.pop(pc)
