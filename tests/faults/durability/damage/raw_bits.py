from faults.durability.harness.case import Case
from faults.durability.harness.damage import Damaged
from faults.durability.harness.offs import HASHED

CASE = Case(
    what="a bit of its raw samples is turned",
    of="verify, load",
    must="found",
    trial=Damaged("raw", "flipped"),
    off=HASHED,
    then="accepted",
)
