from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.cuts import Cut
from faults.durability.harness.offs import FOLDER_SYNC

CASE = Case(
    what="the power is cut at any moment of a first promotion, or right after it",
    of="promote",
    must=WHOLE,
    trial=Cut("promote", {"text": "new"}),
    off=FOLDER_SYNC,
    then="lost",
)
