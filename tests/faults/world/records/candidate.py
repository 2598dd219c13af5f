from faults.harness.case import Case
from faults.harness.records import HINT, Newer, run

CASE = Case(
    row=23,
    what="a newer kgen wrote where a candidate came from",
    who="kgen report",
    code="exit 5",
    attack=Newer("runs/*/0001-*/origin.json", "kgen.origin", ("report", "latest"), run),
    off=HINT,
    then="exit 5, unclear",
    deep=True,
)
