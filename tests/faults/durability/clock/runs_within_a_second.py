from faults.durability.harness.case import Case
from faults.durability.harness.odd import Latest
from faults.durability.harness.offs import LATER_NAME

CASE = Case(
    what="runs are begun within one second",
    of="propose",
    must="the newest",
    trial=Latest(),
    off=LATER_NAME,
    then="an older one",
)
