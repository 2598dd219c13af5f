from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.offs import PATH_NAMED
from faults.durability.harness.sweeps import BROKEN, FULL, REMOTE, SHUT, Sweep

CASE = Case(
    what="any refusal of the file system at any change to a run's folder",
    of="the store of a run",
    must=WHOLE,
    trial=Sweep("fill run", FULL[:1] + BROKEN[1:2] + SHUT[:1] + REMOTE[:1]),
    off=PATH_NAMED,
    then="message",
)
