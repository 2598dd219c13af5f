from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.offs import PATH_NAMED
from faults.durability.harness.sweeps import REMOTE, Sweep

CASE = Case(
    what="a file server answers one change of a promotion with a stale handle or a time-out",
    of="promote",
    must=WHOLE,
    trial=Sweep("promote", REMOTE, {"text": "new"}, given=("old",)),
    off=PATH_NAMED,
    then="message",
    deep=True,
)
