from faults.durability.harness.case import Case
from faults.durability.harness.odd import Odd
from faults.durability.harness.offs import WHOLE_ID

CASE = Case(
    what="the source of a judged candidate is exchanged for one whose id begins alike",
    of="promote",
    must="refused",
    trial=Odd("alike in a run"),
    off=WHOLE_ID,
    then="accepted",
)
