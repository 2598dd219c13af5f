from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.cuts import Cut
from faults.durability.harness.offs import FILE_SYNC

CASE = Case(
    what="the power is cut at any moment of a promotion where another kernel serves, or right after it",
    of="promote",
    must=WHOLE,
    trial=Cut("promote", {"text": "new"}, given=("old",)),
    off=FILE_SYNC,
    then="damaged",
)
