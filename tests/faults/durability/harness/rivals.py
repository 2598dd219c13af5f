"""Several processes at one set at the same time: promoters, one who rolls back, readers."""

from dataclasses import dataclass
from pathlib import Path

from exploits.harness.off import Off
from faults.durability.harness.desk import Desk
from faults.durability.harness.jobs import SET
from faults.durability.harness.layer import Order, Outcome
from faults.durability.harness.state import damage, manifest

COUNT = 5


@dataclass(frozen=True)
class Rivals:
    """`promoters` that each promote some kernels, `turners` that roll back and promote again, and `readers`.

    `delays`: microseconds before each change that the first of them makes, and the others.
    """

    promoters: int = 0
    turners: int = 0
    readers: int = 0
    delays: tuple[int, int] = (300, 300)

    def seen(self, desk: Desk, off: Off) -> str:
        count = COUNT * (5 if desk.every else 1)
        root = desk.copy(desk.template("old", "new"))
        first = manifest(root / SET).seq
        orders = [Order("promote many", root, {"name": f"of {n}", "count": count}) for n in range(self.promoters)]
        orders += [Order("turn", root, {"text": "new", "count": count})] * self.turners
        orders = [
            Order(o.job, o.root, o.args, delay=self.delays[0] if n == 0 else self.delays[1])
            for n, o in enumerate(orders)
        ]
        writers = len(orders)
        got = desk.stage(off).together(*orders, *[Order("read", root)] * self.readers)
        desk.tried[f"rivals {self}"] += sum(len(o.value or ()) for o in got[:writers])
        return self._breach(got[:writers], got[writers:], first) or _whole(got[:writers], root / SET, first)

    def _breach(self, writers: list[Outcome], readers: list[Outcome], first: int) -> str:
        for got in writers:
            if got.status or got.code:
                return f"refused: {got.line or got.status}"
        for got in readers:
            if got.status or got.value["wrong"]:
                return f"reader: {got.value['wrong'] if got.value else got.status}"
            if not got.value["good"]:
                return "reader: read nothing"
        numbers = [n for got in writers for n in got.value]
        if len(set(numbers)) != len(numbers):
            return "same number twice"
        if any(got.value != sorted(got.value) for got in writers) or min(numbers) <= first:
            return "numbers went back"
        return ""


def _whole(writers: list[Outcome], folder: Path, first: int) -> str:
    if found := damage(folder):
        return f"damaged: {found}"
    told = sum(len(got.value) for got in writers)
    now = manifest(folder)
    if now.seq != first + told or len(now.history) != now.seq:
        return f"lost: {now.seq - first} of {told} changes are in the history"
    return "whole"
