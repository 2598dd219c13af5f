from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.cuts import Cut
from faults.durability.harness.offs import KNOWN_SYNCED

CASE = Case(
    what="a promoter was killed at its last change; another one says that it is promoted, and the power is cut",
    of="promote",
    must=WHOLE,
    trial=Cut("promote", {"text": "new"}, given=("old",), killed=True),
    off=KNOWN_SYNCED,
    then="lost",
)
