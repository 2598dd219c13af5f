from dataclasses import dataclass

from exploits.harness.off import Off, turned
from faults.harness.case import Case
from faults.harness.desk import Desk, World, until
from faults.harness.places import DURABLE, propose, the_run

from kgen.store import IntegrityError, Run, Runs


@dataclass(frozen=True)
class Slow:
    """Every open, write, fsync and rename takes 40 ms, as on a file system far away; a reader looks on all the time."""

    def code(self, desk: Desk, off: Off) -> str:
        home, torn = desk.fresh(), []

        def look(pid: int) -> None:
            def judged() -> bool:
                for run in Runs(home / "runs").list():
                    try:
                        return all([_whole(run), any(run.path.glob("0*/verdict.json"))])
                    except IntegrityError as error:
                        torn.append(str(error))
                return False

            until(judged)

        done = desk.kgen(home, *propose(home), world=World(slow=40, place=str(home / "runs")), off=off, meanwhile=look)
        return f"exit {done.exit}, {the_run(home).state}, {'torn' if torn else 'whole'} for a reader"


def _whole(run: Run) -> bool:
    return all(folder.candidate() for folder in run.folders())


CASE = Case(
    row=30,
    what="a file system on which everything takes its time",
    who="kgen propose",
    code="exit 1, finished, whole for a reader",
    attack=Slow(),
    off=turned(
        DURABLE,
        "                temp.mkdir()\n",
        "                temp = path\n                temp.mkdir()\n",
        "a folder appears whole, or not at all",
    ),
    then="exit 1, finished, torn for a reader",
    deep=True,
)
