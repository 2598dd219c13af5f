from faults.harness.case import Case
from faults.harness.signals import MARKED, Interrupted

CASE = Case(
    row=28,
    what="SIGINT while a candidate is built",
    who="kgen propose",
    code="exit 130, interrupted",
    attack=Interrupted(lambda run, server: any(run.path.glob("rounds/*.json")), builds=True),
    off=MARKED,
    then="exit 130, not marked",
)
