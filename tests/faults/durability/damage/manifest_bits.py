from faults.durability.harness.case import Case
from faults.durability.harness.damage import Damaged
from faults.durability.harness.offs import SEALED

CASE = Case(
    what="a bit of the manifest is turned",
    of="verify, load, promote",
    must="found",
    trial=Damaged("manifest", "flipped"),
    off=SEALED,
    then="accepted",
)
