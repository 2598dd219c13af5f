from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.offs import BESIDE
from faults.durability.harness.sweeps import KILLS, Sweep

CASE = Case(
    what="kill -9 at every change that a rollback makes",
    of="rollback",
    must=WHOLE,
    trial=Sweep("rollback", KILLS, given=("old", "new"), once=True),
    off=BESIDE,
    then="damaged",
)
