from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.offs import MANIFEST_LAST
from faults.durability.harness.sweeps import KILLS, Sweep

CASE = Case(
    what="kill -9 at every change that a first promotion makes",
    of="promote",
    must=WHOLE,
    trial=Sweep("promote", KILLS, {"text": "new"}),
    off=MANIFEST_LAST,
    then="damaged",
)
