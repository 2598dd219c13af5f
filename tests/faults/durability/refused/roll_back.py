from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.offs import BESIDE
from faults.durability.harness.sweeps import BROKEN, FULL, REMOTE, SHUT, Sweep

CASE = Case(
    what="any refusal of the file system at any change of a rollback",
    of="rollback",
    must=WHOLE,
    trial=Sweep("rollback", FULL + BROKEN + SHUT + REMOTE, given=("old", "new"), once=True),
    off=BESIDE,
    then="neither before nor after",
)
