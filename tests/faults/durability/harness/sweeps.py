"""A job is disturbed at every change that it makes to its folder: killed there, or refused by the file system.

The points are those that the file layer counts in an undisturbed run of the job; nobody lists them.
"""

import errno
from dataclasses import dataclass, field
from typing import Any

from exploits.harness.off import Off
from faults.durability.harness.desk import BETWEEN, Desk
from faults.durability.harness.layer import HALF, KILL, ON, ONCE, SHORT, TORN, Order, Outcome, Stage
from faults.durability.harness.state import State, differing, orphans, state, unlike

KILLS = ((KILL, 0), (TORN, 0))
FULL = ((ON, errno.ENOSPC), (SHORT, errno.ENOSPC), (ON, errno.EDQUOT))
BROKEN = ((ONCE, errno.EIO), (ON, errno.EIO), (ONCE, errno.ENOSPC))
SHUT = ((ON, errno.EROFS), (ONCE, errno.EACCES))
PARTIAL = ((HALF, 0),)  # a write that takes half, as a write may
REMOTE = ((ONCE, errno.ESTALE), (ONCE, errno.ETIMEDOUT))  # a server that is gone or slow

Ways = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Sweep:
    """`job` on a set that holds `given`, disturbed in these ways at each point.

    After it the set is whole and the manifest is the one before or the one after; the job, done again undisturbed,
    comes to the same end as one that never was disturbed. `once`: a job that is not to be repeated once it is done.
    `few`: points between the ends, where not all are tried.
    """

    job: str
    ways: Ways
    args: dict[str, Any] = field(default_factory=dict, hash=False)
    given: tuple[str, ...] = ()
    once: bool = False
    few: int = BETWEEN

    def seen(self, desk: Desk, off: Off) -> str:
        stage, template = desk.stage(off), desk.template(*self.given)
        whole = desk.copy(template)
        ends = state(whole), (total := stage.run(Order(self.job, whole, self.args)).count) and state(whole)
        desk.drop(whole)
        assert total > 5, "the layer saw nothing"
        if not off.changes:
            desk.changes[f"{self.job} {' '.join(self.given)}".strip()] = total
        for at, way in desk.points(f"{self.job} {self.given} {self.ways}", total, len(self.ways), self.few):
            how, number = self.ways[way]
            root = desk.copy(template)
            order = Order(self.job, root, self.args, how=how, at=at, errno=number)
            if breach := self._breach(stage, order, stage.run(order), ends):
                return f"{breach} (point {at} of {total}, way {how}, errno {number})"
            desk.drop(root)
        return "whole"

    def _breach(self, stage: Stage, order: Order, got: Outcome, ends: tuple[State, State]) -> str:
        if order.how in (KILL, TORN):
            if not got.killed:
                return f"alive: {got}"
        elif breach := complaint(order, got):
            return breach
        if breach := unlike(order.root, ends):
            return breach
        if got.status == 0 and got.code == 0 and state(order.root) != ends[1]:
            return "said done, and was not"
        if not (self.once and state(order.root) == ends[1]):
            again = stage.run(Order(self.job, order.root, self.args))
            if again.status or again.code:
                return f"stuck: {again.line or again.said or again.status}"
        if state(order.root) != ends[1]:
            return f"other end: {differing(state(order.root), ends[1])}"
        return ""


def complaint(order: Order, got: Outcome) -> str:
    """What is wrong with how a refusal of the file system was told."""
    if got.status:
        return f"died: {got.status}"
    if got.code == 0:
        return ""  # it did without what was refused
    if got.code != 4:
        return f"exit code: {got.code} {got.line}"
    if "\n" in got.line or str(order.root) not in got.line or "unexpected" in got.line:
        return f"message: {got.line}"
    if order.errno not in (errno.EROFS, errno.EIO) and orphans(order.root):
        return f"litter: {orphans(order.root)[0]}"
    return ""
