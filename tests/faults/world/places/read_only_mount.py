from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.places import ERRORS, Command, judged, propose

CASE = Case(
    row=28,
    what="a run is started where runs/ is mounted read-only",
    who="kgen propose",
    code="exit 4",
    attack=Command(
        propose,
        ("runs", "Read-only file system", "choose a writable place (--set, --runs, KGEN_CACHE)"),
        prepare=judged,
        world={"read_only": "HOME/runs"},
        left=True,
    ),
    off=turned(
        ERRORS,
        '    errno.EROFS: "choose a writable place (--set, --runs, KGEN_CACHE)",\n',
        "",
        "what the file system refuses is said with the path and the way on",
    ),
    then="exit 4, unclear",
    deep=True,
)
