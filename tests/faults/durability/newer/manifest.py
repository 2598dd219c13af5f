from faults.durability.harness.case import Case
from faults.durability.harness.odd import Odd
from faults.durability.harness.offs import OWN_SCHEMA

CASE = Case(
    what="a manifest of a newer schema",
    of="load, promote, rollback",
    must="refused",
    trial=Odd("newer manifest", ("old", "new")),
    off=OWN_SCHEMA,
    then="accepted",
)
