from faults.durability.harness.case import Case
from faults.durability.harness.damage import Damaged
from faults.durability.harness.offs import HASHED

CASE = Case(
    what="a bit of its build records is turned",
    of="verify, load",
    must="found",
    trial=Damaged("builds", "flipped"),
    off=HASHED,
    then="accepted",
)
