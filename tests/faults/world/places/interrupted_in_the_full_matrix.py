from faults.harness.case import Case
from faults.harness.signals import MARKED, Interrupted

CASE = Case(
    row=28,
    what="SIGINT between the first points of a finalist and its last",
    who="kgen propose",
    code="exit 130, interrupted",
    attack=Interrupted(lambda run, server: any(run.path.glob("0*/quick.json")), builds=True),
    off=MARKED,
    then="exit 130, not marked",
    deep=True,
)
