from faults.durability.harness.case import Case
from faults.durability.harness.damage import Damaged
from faults.durability.harness.offs import OBJECT_HASHED

CASE = Case(
    what="an object is exchanged for another whole one",
    of="verify, load",
    must="found",
    trial=Damaged("object", "exchanged"),
    off=OBJECT_HASHED,
    then="accepted",
)
