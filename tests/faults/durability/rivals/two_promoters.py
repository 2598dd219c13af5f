from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.offs import LOCKED
from faults.durability.harness.rivals import Rivals

CASE = Case(
    what="two processes promote into one set at the same time",
    of="promote",
    must=WHOLE,
    trial=Rivals(promoters=2),
    off=LOCKED,
    then="same number twice",
)
