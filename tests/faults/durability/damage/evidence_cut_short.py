from faults.durability.harness.case import Case
from faults.durability.harness.damage import Damaged
from faults.durability.harness.offs import ONE_LINE

CASE = Case(
    what="evidence is cut short",
    of="verify, load",
    must="found",
    trial=Damaged("evidence", "cut short"),
    off=ONE_LINE,
    then="message",
)
