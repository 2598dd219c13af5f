from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.cuts import Cut
from faults.durability.harness.offs import SETTLED

CASE = Case(
    what="a run was killed, another process went on, and the power is cut at any moment of that or right after it",
    of="the store of a run",
    must=WHOLE,
    trial=Cut("fill run", killed=True),
    off=SETTLED,
    then="lost",
)
