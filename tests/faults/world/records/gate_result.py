from faults.harness.case import Case
from faults.harness.records import HINT, Newer, run

CASE = Case(
    row=23,
    what="a newer kgen wrote what a gate said",
    who="kgen resume",
    code="exit 5",
    attack=Newer("runs/*/0001-*/compile.json", "kgen.gate-result", ("resume", "latest"), run),
    off=HINT,
    then="exit 5, unclear",
    deep=True,
)
