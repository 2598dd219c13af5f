from faults.harness.case import Case
from faults.harness.signals import ASK, MARKED, Interrupted

CASE = Case(
    row=28,
    what="SIGINT while the model's endpoint is waited for",
    who="kgen propose",
    code="exit 130, interrupted",
    attack=Interrupted(lambda run, server: bool(server.seen), ASK),
    off=MARKED,
    then="exit 130, not marked",
)
