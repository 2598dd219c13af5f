from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.places import DURABLE, Command, propose

CASE = Case(
    row=21,
    what="the disk is full when a run is made",
    who="kgen propose",
    code="exit 4",
    attack=Command(
        propose,
        ("runs", "No space left on device", "free some space"),
        world={"full": True, "place": "HOME/runs"},
        left=True,
    ),
    off=turned(
        DURABLE,
        "                shutil.rmtree(temp, ignore_errors=True)\n                raise\n",
        "                raise\n",
        "a folder appears whole, or not at all",
    ),
    then="exit 4, changed",
)
