from faults.durability.harness.case import Case
from faults.durability.harness.odd import Odd
from faults.durability.harness.offs import SCHEMA_CHECKED

CASE = Case(
    what="evidence of a newer schema in a set",
    of="verify",
    must="refused",
    trial=Odd("newer evidence", ("old", "new")),
    off=SCHEMA_CHECKED,
    then="accepted",
)
