"""The checkpoint database of an interrupted run is damaged: the run is taken up all the same, from its folder."""

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from exploits.harness.off import Off
from faults.durability.harness.desk import SEED, Desk
from faults.durability.harness.jobs import RUNS
from faults.durability.harness.layer import KILL, WHOLE, Order
from faults.durability.harness.loops import CHECKPOINT, RESUME, Command, lasting
from faults.durability.harness.state import differing

from kgen.store import Runs

Spoil = Callable[[Path, random.Random], None]


def bits(path: Path, drawn: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(drawn.choice((1, 8, 64))):
        data[drawn.randrange(len(data))] ^= 1 << drawn.randrange(8)
    path.write_bytes(data)


def noise(path: Path, drawn: random.Random) -> None:
    """500 bytes somewhere behind the header: SQLite's own check may not find them."""
    data = bytearray(path.read_bytes())
    at = drawn.randrange(100, len(data) - 500)
    data[at : at + 500] = drawn.randbytes(500)
    path.write_bytes(data)


def short(path: Path, drawn: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: drawn.randrange(path.stat().st_size)])


def another(path: Path, drawn: random.Random) -> None:
    """Something else, with journals of no sense beside it, as a killed process may leave some."""
    path.write_bytes(drawn.randbytes(drawn.choice((10, 5000))))
    for end in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + end).write_bytes(drawn.randbytes(4096))


SPOILS: dict[str, Spoil] = {f.__name__: f for f in (bits, noise, short, another)}


def _file(root: Path, gathered: bool) -> Path:
    """The database, with all that it holds in it; or the log beside it, where a killed process leaves most of it."""
    (run,) = Runs(root / RUNS).list()
    path = run.path / CHECKPOINT
    log = path.with_name(f"{CHECKPOINT}-wal")
    if not gathered and log.exists() and log.stat().st_size:
        return log
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma wal_checkpoint(truncate)")
    return path


@dataclass(frozen=True)
class Checkpoint:
    """`spoil`: one of SPOILS, done `times` times with other places, each to a copy of one interrupted run."""

    spoil: str
    times: int = 8

    def seen(self, desk: Desk, off: Off) -> str:
        stage = desk.stage(off, WHOLE)
        template, orders = Command("propose", ())._template(desk)
        whole = desk.copy(template)
        total = stage.run(Order("commands", whole, orders)).count
        end, start = lasting(whole), desk.copy(template)
        assert stage.run(Order("commands", start, orders, how=KILL, at=total * 2 // 3)).killed
        for n in range(self.times if desk.every else 3):
            root = desk.copy(start)
            SPOILS[self.spoil](_file(root, n % 2 == 0), random.Random(f"{SEED} {self.spoil} {n}"))
            again = stage.run(Order("commands", root, {"argvs": (RESUME,)}))
            desk.tried[f"checkpoint {self.spoil}"] += 1
            if again.status or again.value != [1]:
                return f"stuck: {again.value} {again.said[-400:]} ({self.spoil} {n})"
            if lasting(root) != end:
                return f"other end: {differing(lasting(root), end)} ({self.spoil} {n})"
            shutil.rmtree(root)
        return "whole"
