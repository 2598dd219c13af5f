from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.places import PROPOSE, Command, judged

CASE = Case(
    row=28,
    what="a run is looked at where its folder is mounted read-only",
    who="kgen runs show",
    code="exit 0",
    attack=Command(
        lambda home: ("runs", "show"),
        prepare=judged,
        world={"read_only": "HOME/runs"},
        left=True,
        out="report: not written",
    ),
    off=turned(
        PROPOSE,
        "    except StoreError as error:  # the run is what it is, also where it can only be read",
        "    except KeyError as error:",
        "a report that cannot be written is said, and stops nothing",
    ),
    then="exit 4, not said",
)
