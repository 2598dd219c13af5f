"""The power is cut at every moment of a job, and after it; each disk that may be left is looked at."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exploits.harness.off import Off
from faults.durability.harness.desk import SEED, Desk
from faults.durability.harness.jobs import SET
from faults.durability.harness.layer import KILL, Order, Stage
from faults.durability.harness.power import Disk, Image, lines, loaded, made
from faults.durability.harness.state import State, differing, run_lost, state, unlike

Look = Callable[[Path, list[str]], str]  # what is wrong with a disk, given what had been told
SAMPLE, MANY, TAIL = 10, 80, 6  # disks of one case, and after one of many kills; the last ones are among them
RUN_JOBS = ("fill run", "end run")
GOES_ON = 7  # every so many disks the job is done again


@dataclass(frozen=True)
class Cut:
    """`job` on a set that holds `given`. `killed`: an earlier process was killed there, at each of its points.

    What the job had told must be there after the cut. The rest is as before or as after.
    """

    job: str
    args: dict[str, Any] = field(default_factory=dict, hash=False)
    given: tuple[str, ...] = ()
    killed: bool = False
    once: bool = False

    def seen(self, desk: Desk, off: Off) -> str:
        stage = desk.stage(off)
        whole = desk.copy(desk.template(*self.given))
        before = state(whole)
        total = stage.run(Order(self.job, whole, self.args, log=str(whole.parent / "log"))).count
        ends = before, state(whole)
        name = f"{self.job} {self.given} power"
        for start in self._starts(desk, whole.parent / "log", total) if self.killed else [None]:
            if breach := self._one(desk, stage, start, ends, name):
                return breach + (f" (after a kill at {start})" if self.killed else "")
        return "whole"

    def _starts(self, desk: Desk, log: Path, total: int) -> list[int]:
        """Where the earlier process is killed: after each change of a name and at each fourth of all; or at a few."""
        named = [line.after for line in lines(log) if line.kind in ("mkdir", "rename")]
        if desk.every:
            return sorted({*named, *range(0, total, 4)})
        return [named[0], named[len(named) // 2], named[-1]]

    def _one(self, desk: Desk, stage: Stage, start: int | None, ends: tuple[State, State], name: str) -> str:
        root = desk.copy(desk.template(*self.given))
        disk, log = Disk(str(root), loaded(root)), root.parent / "log"
        if start is not None:
            stage.run(Order(self.job, root, self.args, how=KILL, at=start, log=str(log)))
        first = len(list(lines(log))) if start is not None else 0
        got = stage.run(Order(self.job, root, self.args, log=str(log)))
        assert got.code == 0 and got.status == 0, got
        disks = dict.fromkeys(self._disks(disk, log, first, name))
        chosen, most = list(disks), SAMPLE
        if desk.every:
            most = len(disks) if start is None else MANY
        if len(chosen) > most:
            chosen = chosen[: -TAIL : -(-len(chosen) // most)] + chosen[-TAIL:]
        desk.tried[name] += len(chosen)
        for number, (told, image) in enumerate(chosen):
            again = (desk.every and number % GOES_ON == 0) or number % (3 * GOES_ON) == 0
            if breach := self._look(desk, stage, dict(image), list(told), ends, again):
                return f"{breach}; told: {told[-1:]}"
        return ""

    def _disks(self, disk: Disk, log: Path, first: int, name: str) -> "list[tuple[tuple[str, ...], tuple[Any, ...]]]":
        """Every disk that may be left, with what had been told by then; of two alike the one that was told more."""
        found: dict[tuple[Any, ...], tuple[str, ...]] = {}
        told: tuple[str, ...] = ()
        for number, line in enumerate(lines(log)):
            if line.kind == "note":
                told = (*told, line.path)
            else:
                disk.apply(line)
            if number >= first:
                for image in disk.images(f"{SEED} {name} {number}"):
                    found[tuple(sorted(image.items()))] = told
        return [(told, image) for image, told in found.items()]

    def _look(
        self, desk: Desk, stage: Stage, image: Image, told: list[str], ends: tuple[State, State], again: bool
    ) -> str:
        root = desk.fresh()
        made(image, root)
        breach = unlike(root, ends) if self.job not in RUN_JOBS else run_lost(root, told)
        now = state(root)
        if (
            not breach
            and self.job not in RUN_JOBS
            and told
            and now.get(f"{SET}/manifest.json") != ends[1].get(f"{SET}/manifest.json")
        ):
            breach = "lost: what had been told is not there"
        if (
            not breach
            and again
            and not (self.once and now.get(f"{SET}/manifest.json") == ends[1].get(f"{SET}/manifest.json"))
        ):
            got = stage.run(Order(self.job, root, self.args))
            if got.code or got.status:
                breach = f"stuck: {got.line or got.status}"
            elif state(root) != ends[1]:
                breach = f"other end: {differing(state(root), ends[1])}"
        if not breach:
            desk.drop(root)
        return breach
