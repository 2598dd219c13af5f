from faults.harness.case import Case
from faults.harness.records import MANIFEST_HINT, Newer, kernels

CASE = Case(
    row=23,
    what="a newer kgen wrote the manifest of a set",
    who="kgen status",
    code="exit 5",
    attack=Newer("set/manifest.json", "kgen.manifest", ("status",), kernels),
    off=MANIFEST_HINT,
    then="exit 5, unclear",
)
