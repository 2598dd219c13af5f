from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.offs import PATIENT
from faults.durability.harness.rivals import Rivals

CASE = Case(
    what="two processes promote, one of them over a slow file server",
    of="promote",
    must=WHOLE,
    trial=Rivals(promoters=2, delays=(3000, 0)),
    off=PATIENT,
    then="refused",
    deep=True,
)
