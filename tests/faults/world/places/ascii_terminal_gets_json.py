import json
from dataclasses import dataclass

from exploits.harness.off import Off, turned
from faults.harness.case import Case
from faults.harness.desk import Desk
from faults.harness.places import MATRIX, OUTPUT
from support.loops import FORBIDDEN, OP, recording

TEXT = FORBIDDEN + "# Übergröße, 2 µs\n"


@dataclass(frozen=True)
class Document:
    """A source with letters of all kinds, in a JSON document that is read back."""

    def code(self, desk: Desk, off: Off) -> str:
        home = desk.fresh()
        assert desk.here(home, "propose", "--op", OP.name, "--replay", str(recording(home / "r", [TEXT])), *MATRIX).exit
        done = desk.here(home, "runs", "show", "--candidate", "1", "--json", off=off, encoding="ascii")
        try:
            return "the same text" if json.loads(done.out)["source"] == TEXT else "another text"
        except ValueError:
            return "no JSON"


CASE = Case(
    row=28,
    what="the locale is C, and a JSON document holds more than ASCII",
    who="kgen runs show --json",
    code="the same text",
    attack=Document(),
    off=turned(OUTPUT, "ensure_ascii=plain", "ensure_ascii=False", "JSON is escaped by its own rules"),
    then="no JSON",
    deep=True,
)
