from faults.durability.harness.case import Case
from faults.durability.harness.odd import Odd
from faults.durability.harness.offs import SCHEMA_CHECKED

CASE = Case(
    what="each record of a run as a newer kgen would have written it",
    of="resume, report",
    must="refused",
    trial=Odd("newer run"),
    off=SCHEMA_CHECKED,
    then="accepted",
)
