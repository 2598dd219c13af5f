from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.odd import Odd
from faults.durability.harness.offs import COUNTED

CASE = Case(
    what="the clock is twenty years back when a kernel is promoted and rolled back",
    of="promote, rollback",
    must=WHOLE,
    trial=Odd("promote at", ("old", "new"), clock=-20 * 365 * 86400),
    off=COUNTED,
    then="damaged",
)
