from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.places import BOUNDARY
from faults.harness.signals import ASK, Interrupted

CASE = Case(
    row=28,
    what="SIGINT again and again, until the command is gone",
    who="kgen propose",
    code="exit 130, interrupted",
    attack=Interrupted(lambda run, server: bool(server.seen), ASK, signals=100, slow=30),
    off=turned(
        BOUNDARY,
        "SAME_WISH_S = 3.0",
        "SAME_WISH_S = 0.0",
        "a second signal does not break off what the first one began",
    ),
    then="not marked",
)
