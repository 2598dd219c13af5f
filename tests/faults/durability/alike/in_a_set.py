from faults.durability.harness.case import Case
from faults.durability.harness.odd import Odd
from faults.durability.harness.offs import NAMES_FREE

CASE = Case(
    what="two kernels whose ids begin alike are promoted into one set",
    of="promote",
    must="both",
    trial=Odd("alike in a set"),
    off=NAMES_FREE,
    then="damaged",
)
