from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.cuts import Cut
from faults.durability.harness.offs import FILE_SYNC

CASE = Case(
    what="the power is cut at any moment of a rollback, or right after it",
    of="rollback",
    must=WHOLE,
    trial=Cut("rollback", given=("old", "new"), once=True),
    off=FILE_SYNC,
    then="damaged",
)
