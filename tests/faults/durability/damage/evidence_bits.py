from faults.durability.harness.case import Case
from faults.durability.harness.damage import Damaged
from faults.durability.harness.offs import HASHED

CASE = Case(
    what="a bit of its evidence is turned",
    of="verify, load",
    must="found",
    trial=Damaged("evidence", "flipped"),
    off=HASHED,
    then="accepted",
)
