from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.loops import Command
from faults.durability.harness.offs import AT_ONCE
from faults.durability.harness.sweeps import KILLS

CASE = Case(
    what="kill -9 at every change that a whole run makes, its checkpoint included",
    of="propose, resume",
    must=WHOLE,
    trial=Command("propose", KILLS[:1]),
    off=AT_ONCE,
    then="damaged",
    deep=True,
)
