from dataclasses import dataclass

from exploits.harness.off import Off, turned
from faults.harness.case import Case
from faults.harness.desk import Desk
from faults.harness.places import MATRIX, everything, the_run
from support.loops import OP


@dataclass(frozen=True)
class Folder:
    """Of a run that waits for an answer; the folder holds a file of somebody's. Then a resume."""

    def code(self, desk: Desk, off: Off) -> str:
        home = desk.fresh()
        asked = desk.here(home, "propose", "--op", OP.name, "--proposer", "mailbox", "--minutes", "0.0001", *MATRIX)
        assert asked.exit == 4
        checkpoint = the_run(home).path / "graph.sqlite"
        checkpoint.unlink()
        checkpoint.mkdir()
        (checkpoint / "notes.txt").write_text("somebody's")
        before = everything(checkpoint)
        again = desk.here(home, "resume", "latest", "--minutes", "0.0001", off=off)
        assert everything(checkpoint) == before
        return again.says(str(checkpoint), "is a folder", "move it away")


CASE = Case(
    row=22,
    what="a folder has the name of a run's checkpoint",
    who="kgen resume",
    code="exit 5",
    attack=Folder(),
    off=turned(
        "kgen.loop.graph",
        "if p.is_dir()), None)",
        "if p.is_fifo()), None)",
        "what cannot be the file that it should be is refused, by name, and left alone",
    ),
    then="exit 4, unclear",
)
