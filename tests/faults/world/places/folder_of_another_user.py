from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.desk import NOBODY
from faults.harness.places import ERRORS, Command, judged, propose

CASE = Case(
    row=28,
    what="a run is started by a user who may not write to runs/",
    who="kgen propose",
    code="exit 4",
    attack=Command(
        propose,
        ("runs", "Permission denied", "choose a place that you may write to"),
        prepare=judged,
        world={"uid": NOBODY},
        left=True,
    ),
    off=turned(
        ERRORS,
        '    errno.EACCES: "choose a place that you may write to (--set, --runs, KGEN_CACHE)",\n',
        "",
        "what the file system refuses is said with the path and the way on",
    ),
    then="exit 4, unclear",
    deep=True,
)
