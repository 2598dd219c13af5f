from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.loops import Command
from faults.durability.harness.offs import PATH_NAMED
from faults.durability.harness.sweeps import BROKEN, FULL, REMOTE, SHUT

CASE = Case(
    what="any refusal of the file system while evidence is taken in and the kernel is promoted",
    of="ingest, promote",
    must=WHOLE,
    trial=Command("take", FULL + BROKEN + SHUT + REMOTE, step=3),
    off=PATH_NAMED,
    then="message",
    deep=True,
)
