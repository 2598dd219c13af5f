from faults.durability.harness.case import Case
from faults.durability.harness.odd import Latest
from faults.durability.harness.offs import LATER_NAME

CASE = Case(
    what="runs are begun while the clock goes back an hour each time",
    of="propose",
    must="the newest",
    trial=Latest(3600),
    off=LATER_NAME,
    then="an older one",
)
