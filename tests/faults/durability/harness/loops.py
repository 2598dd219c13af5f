"""A whole `kgen propose`, or `kgen ingest` and `kgen promote`, disturbed at every change that the process makes.

The checkpoint database, the report and the caches are among what is written. What follows is what a person would do:
`kgen resume`, or the same command again.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exploits.harness.off import NOTHING, Off
from faults.durability.harness.desk import Desk
from faults.durability.harness.jobs import RUNS, SET
from faults.durability.harness.layer import KILL, TORN, WHOLE, Order, Outcome, Stage
from faults.durability.harness.state import State, differing, manifest, run_lost, state
from faults.durability.harness.sweeps import Ways

from kgen.store import KernelSet, Runs

SEARCH = ("--arch", "sm_90a", "--dims", "nano", "--tokens", "1", "--no-interpret")
RESUME = ("resume", "latest")
TAKE = (("ingest", "evidence/evidence.json"), ("promote", "latest"))
SAMPLE = 40  # points between, where not all are tried
CHECKPOINT = "graph.sqlite"


def lasting(root: Path) -> State:
    """Without what is made again: caches."""
    return {k: v for k, v in state(root).items() if k.split("/")[0] in (RUNS, SET)}


@dataclass(frozen=True)
class Command:
    """`what`: "propose" or "take" (ingest and promote)."""

    what: str
    ways: Ways
    step: int = 1  # of the points, where all are tried
    expected: dict[str, list[int]] = field(default_factory=lambda: {"propose": [1], "take": [0, 0]}, hash=False)

    def seen(self, desk: Desk, off: Off) -> str:
        stage = desk.stage(off, WHOLE)
        template, orders = self._template(desk)
        whole = desk.copy(template)
        got = stage.run(Order("commands", whole, orders))
        assert got.status == 0 and got.value == self.expected[self.what], got
        end = lasting(whole)
        name = f"kgen {self.what} {self.ways}"
        for at, way in desk.points(name, got.count, len(self.ways), SAMPLE, self.step):
            how, number = self.ways[way]
            root = desk.copy(template)
            order = Order("commands", root, orders, how=how, at=at, errno=number)
            if breach := self._breach(stage, order, stage.run(order), end):
                return f"{breach} (point {at} of {got.count}, way {how}, errno {number})"
            desk.drop(root)
        return "whole"

    def _template(self, desk: Desk) -> tuple[Path, dict[str, Any]]:
        """A folder to start from, with the caches filled; made by the store as it is."""
        stage, root = desk.stage(NOTHING, WHOLE), desk.fresh()
        made = stage.run(Order("record" if self.what == "propose" else "prove", root))
        assert made.status == 0 and made.code == 0, made
        if self.what == "take":
            return root, {"argvs": TAKE}
        argv = ("propose", "--op", "moe_shared", "--proposer", "replay", "--replay", made.value, *SEARCH)
        stage.run(Order("command", root, {"argv": argv}))
        shutil.rmtree(root / RUNS)
        return root, {"argvs": (argv,)}

    def _breach(self, stage: Stage, order: Order, got: Outcome, end: State) -> str:
        if order.how in (KILL, TORN):
            if not got.killed and got.value != self.expected[self.what]:
                return f"alive: {got}"
        elif breach := told(order, got, self.expected[self.what]):
            return breach
        if breach := run_lost(order.root, []) or self._half(order.root, end):
            return breach
        began = bool(Runs(order.root / RUNS).list())
        argvs = (RESUME,) if self.what == "propose" and began else order.args["argvs"]
        again = stage.run(Order("commands", order.root, {"argvs": argvs}))
        if again.status or again.value != self.expected[self.what]:
            return f"stuck: {again.value} {again.said[-600:]}"
        now = lasting(order.root)
        return "" if now == end else f"other end: {differing(now, end)}"

    def _half(self, root: Path, end: State) -> str:
        """A set with a manifest is as it will be: every part that it names is there."""
        if self.what == "take" and KernelSet(root / SET).exists():
            if manifest(root / SET).seq != 1:
                return "half promoted"
            now = lasting(root)
            return next((f"half promoted: {k}" for k, v in end.items() if k.startswith(SET) and now.get(k) != v), "")
        return ""


def told(order: Order, got: Outcome, expected: list[int]) -> str:
    """What is wrong with how a refusal of the file system was told by a command."""
    if got.status:
        return f"died: {got.status}"
    if got.value == expected:
        return ""  # it did without what was refused
    if got.value[-1] != 4:
        return f"exit code: {got.value} {got.said[-300:]}"
    lines = [line for line in got.said.splitlines() if line.startswith("kgen: ")]
    if len(lines) != 1 or str(order.root) not in lines[0] or "unexpected" in lines[0] or "Traceback" in got.said:
        return f"message: {lines or got.said[-300:]}"
    return ""
