from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.cuts import Cut
from faults.durability.harness.offs import FINISHED_SYNCED

CASE = Case(
    what="a run was killed at its last change; another process says that it has ended, and the power is cut",
    of="the store of a run",
    must=WHOLE,
    trial=Cut("end run", killed=True),
    off=FINISHED_SYNCED,
    then="lost",
)
