from faults.harness.case import Case
from faults.harness.records import HINT, Newer, run

CASE = Case(
    row=23,
    what="a newer kgen wrote a verdict",
    who="kgen promote",
    code="exit 5",
    attack=Newer("runs/*/0001-*/verdict.json", "kgen.verdict", ("promote", "latest"), run),
    off=HINT,
    then="exit 5, unclear",
    deep=True,
)
