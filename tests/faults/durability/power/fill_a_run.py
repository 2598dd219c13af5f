from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.cuts import Cut
from faults.durability.harness.offs import FOLDER_SYNC

CASE = Case(
    what="the power is cut at any moment while a run's folder is filled, or right after it",
    of="the store of a run",
    must=WHOLE,
    trial=Cut("fill run"),
    off=FOLDER_SYNC,
    then="lost",
)
