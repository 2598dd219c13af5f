from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.offs import WRITTEN_OUT
from faults.durability.harness.sweeps import PARTIAL, Sweep

CASE = Case(
    what="a write takes only a part of what it was given, and is no error",
    of="promote",
    must=WHOLE,
    trial=Sweep("promote", PARTIAL, {"text": "new"}, given=("old",)),
    off=WRITTEN_OUT,
    then="damaged",
)
