from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.checkpoints import Checkpoint
from faults.durability.harness.offs import PUT_ASIDE

CASE = Case(
    what="500 bytes of an interrupted run's checkpoint are noise",
    of="resume",
    must=WHOLE,
    trial=Checkpoint("noise"),
    off=PUT_ASIDE,
    then="stuck",
    deep=True,
)
