import sqlite3
from contextlib import closing
from dataclasses import dataclass

from exploits.harness.off import Off, turned
from faults.harness.case import Case
from faults.harness.desk import Desk
from faults.harness.places import MATRIX, the_run
from support.loops import OP

DAMAGES = (
    "update checkpoints set checkpoint = x'ffee', metadata = x'00ff'",
    "alter table checkpoints rename column checkpoint to other",
    "alter table writes rename column task_id to other",
)


@dataclass(frozen=True)
class Checkpoint:
    """Of a run that waits for an answer; it is a sound database whose content no LangGraph can read. Then a resume."""

    def code(self, desk: Desk, off: Off) -> str:
        ended = []
        for damage in DAMAGES:
            home = desk.fresh()
            asked = desk.here(home, "propose", "--op", OP.name, "--proposer", "mailbox", "--minutes", "0.0001", *MATRIX)
            assert asked.exit == 4
            with closing(sqlite3.connect(the_run(home).path / "graph.sqlite")) as database:
                database.execute(damage)
                database.commit()
            again = desk.here(home, "resume", "latest", "--minutes", "0.0001", off=off)
            ended.append("goes on" if "0001-answer.md" in again.line else "stops")
        return ", ".join(ended)


CASE = Case(
    row=22,
    what="the checkpoint of a run holds garbage, or is of another LangGraph",
    who="kgen resume",
    code="goes on, goes on, goes on",
    attack=Checkpoint(),
    off=turned(
        "kgen.loop.graph",
        "    except UNREADABLE:",
        "    except EOFError:",
        "a checkpoint is a convenience: what cannot be read is made anew from the run's folder",
    ),
    then="stops, stops, stops",
)
