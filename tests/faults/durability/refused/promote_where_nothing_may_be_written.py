from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.offs import PATH_NAMED
from faults.durability.harness.sweeps import SHUT, Sweep

CASE = Case(
    what="the file system turns read-only at one change of a promotion, or one change is forbidden",
    of="promote",
    must=WHOLE,
    trial=Sweep("promote", SHUT, {"text": "new"}, given=("old",)),
    off=PATH_NAMED,
    then="message",
)
