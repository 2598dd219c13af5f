import errno

from faults.durability.harness.case import Case
from faults.durability.harness.odd import Quirk
from faults.durability.harness.offs import NO_FOLDER_SYNC_HERE

CASE = Case(
    what="a file system that cannot sync a folder",
    of="promote",
    must="promoted",
    trial=Quirk(folder_sync=errno.EINVAL),
    off=NO_FOLDER_SYNC_HERE,
    then="exit 4",
)
