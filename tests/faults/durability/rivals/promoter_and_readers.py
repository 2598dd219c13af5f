from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.offs import MANIFEST_LAST
from faults.durability.harness.rivals import Rivals

CASE = Case(
    what="a set is loaded on and on while a process promotes into it",
    of="promote, load",
    must=WHOLE,
    trial=Rivals(promoters=1, readers=2),
    off=MANIFEST_LAST,
    then="reader",
)
