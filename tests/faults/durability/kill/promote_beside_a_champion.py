from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.offs import BESIDE
from faults.durability.harness.sweeps import KILLS, Sweep

CASE = Case(
    what="kill -9 at every change that a promotion makes where another kernel serves",
    of="promote",
    must=WHOLE,
    trial=Sweep("promote", KILLS, {"text": "new"}, given=("old",)),
    off=BESIDE,
    then="damaged",
)
