from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.offs import AT_ONCE
from faults.durability.harness.sweeps import KILLS, Sweep

CASE = Case(
    what="kill -9 at every change to a run's folder",
    of="the store of a run",
    must=WHOLE,
    trial=Sweep("fill run", KILLS, few=10),
    off=AT_ONCE,
    then="damaged",
)
