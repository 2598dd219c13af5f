from exploits.harness.off import Off
from faults.harness.building import Burden
from faults.harness.case import Case

CASE = Case(
    row=1,
    what="a candidate that does not come back for three seconds, where one is granted",
    who="compile",
    code="compile.timeout",
    attack=Burden("    time.sleep(3)\n    raise ValueError('ESCAPED')\n", wall=1.0, loose=True),
    off=Off("a deadline for a build"),
)
