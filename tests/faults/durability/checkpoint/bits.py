from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.checkpoints import Checkpoint
from faults.durability.harness.offs import PUT_ASIDE

CASE = Case(
    what="bits of an interrupted run's checkpoint are turned",
    of="resume",
    must=WHOLE,
    trial=Checkpoint("bits"),
    off=PUT_ASIDE,
    then="stuck",
    deep=True,
)
