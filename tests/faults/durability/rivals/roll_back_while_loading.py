from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.offs import BESIDE
from faults.durability.harness.rivals import Rivals

CASE = Case(
    what="a set is loaded on and on while a process rolls back and promotes again",
    of="rollback, load",
    must=WHOLE,
    trial=Rivals(turners=1, readers=2, delays=(8000, 0)),
    off=BESIDE,
    then="reader",
)
