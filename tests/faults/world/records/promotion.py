from faults.harness.case import Case
from faults.harness.records import HINT, Newer, kernels

CASE = Case(
    row=23,
    what="a newer kgen wrote a promotion within a manifest",
    who="kgen rollback",
    code="exit 5",
    attack=Newer("set/manifest.json", "kgen.promotion", ("rollback", "moe_shared"), kernels),
    off=HINT,
    then="exit 5, unclear",
)
