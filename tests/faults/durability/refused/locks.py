import errno

from faults.durability.harness.case import Case
from faults.durability.harness.odd import Quirk
from faults.durability.harness.offs import LOCK_NEEDED

CASE = Case(
    what="a file system that has no locks",
    of="promote",
    must="exit 4",
    trial=Quirk(lock=errno.ENOLCK),
    off=LOCK_NEEDED,
    then="promoted",
)
