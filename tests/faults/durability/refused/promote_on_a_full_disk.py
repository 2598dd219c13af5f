from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.offs import SWEPT_UP
from faults.durability.harness.sweeps import FULL, Sweep

CASE = Case(
    what="the disk or the quota is full from one change of a promotion on, also in the middle of a write",
    of="promote",
    must=WHOLE,
    trial=Sweep("promote", FULL, {"text": "new"}, given=("old",)),
    off=SWEPT_UP,
    then="litter",
)
