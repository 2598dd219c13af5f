from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.places import BOUNDARY, Command, propose

CASE = Case(
    row=28,
    what="a path that is not UTF-8",
    who="kgen propose",
    code="exit 2",
    attack=Command(
        lambda home: (*propose(home), "--runs", f"{home}/r\udcff"),
        ("r\\udcff", "not UTF-8", "give that path another name"),
        world={"encoding": "utf-8"},
        left=True,
    ),
    off=turned(
        BOUNDARY,
        '    return not any("\\ud800" <= c <= "\\udfff" for c in argument)',
        "    return True",
        "what no record can hold is refused at once",
    ),
    then="exit 4, unclear",
)
