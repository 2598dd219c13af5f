from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.loops import Command
from faults.durability.harness.offs import PATH_NAMED
from faults.durability.harness.sweeps import BROKEN, FULL

CASE = Case(
    what="the disk is full from one change of a run on, or fails there",
    of="propose, resume",
    must=WHOLE,
    trial=Command("propose", FULL[:1] + BROKEN[:1], step=3),
    off=PATH_NAMED,
    then="message",
    deep=True,
)
