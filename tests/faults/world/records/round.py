from faults.harness.case import Case
from faults.harness.records import HINT, Newer, run

CASE = Case(
    row=23,
    what="a newer kgen wrote a round of a run",
    who="kgen resume",
    code="exit 5",
    attack=Newer("runs/*/rounds/0001.json", "kgen.round", ("resume", "latest"), run),
    off=HINT,
    then="exit 5, unclear",
    deep=True,
)
