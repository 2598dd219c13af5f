from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.offs import PATH_NAMED
from faults.durability.harness.sweeps import BROKEN, Sweep

CASE = Case(
    what="an input/output error at one change of a promotion, or from it on",
    of="promote",
    must=WHOLE,
    trial=Sweep("promote", BROKEN, {"text": "new"}, given=("old",)),
    off=PATH_NAMED,
    then="message",
)
