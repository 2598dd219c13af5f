from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.checkpoints import Checkpoint
from faults.durability.harness.offs import PUT_ASIDE

CASE = Case(
    what="an interrupted run's checkpoint is no database",
    of="resume",
    must=WHOLE,
    trial=Checkpoint("another"),
    off=PUT_ASIDE,
    then="stuck",
    deep=True,
)
