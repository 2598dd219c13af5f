from exploits.harness.off import Off
from faults.harness.building import Burden
from faults.harness.case import Case

CASE = Case(
    row=3,
    what="takes two gigabytes, where one and a half are granted",
    who="compile",
    code="compile.memory",
    attack=Burden("    bytearray(2 << 30)\n    raise ValueError('ESCAPED')\n", loose=True),
    off=Off("a ceiling of memory"),
)
