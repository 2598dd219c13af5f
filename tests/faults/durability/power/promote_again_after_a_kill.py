from faults.durability.harness.case import WHOLE, Case
from faults.durability.harness.cuts import Cut
from faults.durability.harness.offs import SETTLED

CASE = Case(
    what="a promoter was killed, another one went on, and the power is cut at any moment of that or right after it",
    of="promote",
    must=WHOLE,
    trial=Cut("promote", {"text": "new"}, killed=True),
    off=SETTLED,
    then="lost",
)
