from faults.durability.harness.case import Case
from faults.durability.harness.damage import Damaged
from faults.durability.harness.offs import HASHED

CASE = Case(
    what="a bit of a promoted kernel's source is turned",
    of="verify, load",
    must="found",
    trial=Damaged("source", "flipped"),
    off=HASHED,
    then="accepted",
)
