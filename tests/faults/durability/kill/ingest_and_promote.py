from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.loops import Command
from faults.durability.harness.offs import MANIFEST_LAST
from faults.durability.harness.sweeps import KILLS

CASE = Case(
    what="kill -9 at every change while evidence is taken in and the kernel is promoted",
    of="ingest, promote",
    must=WHOLE,
    trial=Command("take", KILLS),
    off=MANIFEST_LAST,
    then="half promoted",
    deep=True,
)
