import json
from dataclasses import dataclass

from exploits.harness.off import Off, turned
from faults.harness.case import Case
from faults.harness.desk import Desk
from faults.harness.places import OUTPUT, judged


@dataclass(frozen=True)
class Shown:
    """The table, the page and the document of a run, as a terminal gets them that knows no more than ASCII."""

    def code(self, desk: Desk, off: Off) -> str:
        home = desk.fresh()
        judged(desk, home)
        said = []
        for argv in (("runs", "show"), ("report",), ("report", "--json"), ("runs", "show", "--candidate", "1")):
            done = desk.here(home, *argv, off=off, encoding="ascii")
            if "--json" in argv:
                json.loads(done.out)
            said.append(f"exit {done.exit}")
        return ", ".join(said)


CASE = Case(
    row=28,
    what="the locale is C, and the output holds more than ASCII",
    who="kgen",
    code="exit 0, exit 0, exit 0, exit 0",
    attack=Shown(),
    off=turned(
        OUTPUT,
        '            stream.reconfigure(errors="backslashreplace")',
        "            pass",
        "what a terminal cannot show is written as an escape",
    ),
    then="exit 4, exit 4, exit 0, exit 0",
)
