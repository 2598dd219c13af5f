from dataclasses import dataclass

from exploits.harness.off import Off, turned
from faults.harness.case import Case
from faults.harness.desk import Desk
from faults.harness.endpoint import begun
from faults.harness.swapped import without
from support.loops import OP, ListProposer

from kgen.loop import session
from kgen.loop.settings import read_settings
from kgen.records import Candidate, Origin

# The sha256 of both ids begins with 1d5381ba9a3a, which is all that a folder's name holds
SOURCES = ("import os  # 8563988\n", "import os  # 30916173\n")


@dataclass(frozen=True)
class Collision:
    """Both come from one proposer in one round. What is on record, and what the run says of the other one."""

    def code(self, desk: Desk, off: Off) -> str:
        ids = [Candidate(OP.name, text, Origin("test")).id for text in SOURCES]
        assert ids[0] != ids[1] and ids[0][:12] == ids[1][:12]
        run, said = begun(desk.fresh()), []
        settings = read_settings({**run.info.settings, "candidates": 2}, "")
        with without(off):
            session.work_on(
                run, OP, settings, ListProposer(SOURCES), desk.folder / "cache", lambda event: said.append(event.text)
            )
        (folder,) = run.folders()
        verdict = folder.verdict()
        assert folder.candidate().source == SOURCES[0] and verdict is not None and verdict.candidate == ids[0]
        told = any(f"{ids[1]} is not taken: another candidate of this run has its short id" in text for text in said)
        return f"the first is judged, the other {'refused' if told else 'lost'}"


CASE = Case(
    row=29,
    what="two candidates whose short ids are the same",
    who="kgen propose",
    code="the first is judged, the other refused",
    attack=Collision(),
    off=turned(
        "kgen.loop.steps",
        "        confused = [c for c, f in folders.items() if f.candidate().id != c]",
        "        confused = list[str]()",
        "a folder that is there already is compared by the whole id",
    ),
    then="the first is judged, the other lost",
)
