from faults.durability.harness.case import Case
from faults.durability.harness.damage import Damaged
from faults.durability.harness.offs import NOT_EMPTY

CASE = Case(
    what="the manifest is cut short",
    of="verify, load, promote",
    must="found",
    trial=Damaged("manifest", "cut short"),
    off=NOT_EMPTY,
    then="accepted",
)
