from faults.harness.case import Case
from faults.harness.places import MATRIX
from faults.harness.signals import MARKED, Interrupted

CASE = Case(
    row=28,
    what="SIGINT while numbers are checked in the interpreter",
    who="kgen propose",
    code="exit 130, interrupted",
    attack=Interrupted(
        lambda run, server: any(run.path.glob("0*/compile.json")), builds=True, matrix=MATRIX[:-1], signals=1
    ),
    off=MARKED,
    then="exit 130, not marked",
    deep=True,
)
