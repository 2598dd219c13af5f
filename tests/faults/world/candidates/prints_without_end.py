from exploits.harness.off import turned
from faults.harness.building import OUTCOME, Burden
from faults.harness.case import Case

CASE = Case(
    row=8,
    what="prints a hundred megabytes",
    who="compile",
    code="compile.output",
    attack=Burden(
        "    for _ in range(1000):\n        print('x' * 100_000, flush=True)\n    raise ValueError('ESCAPED')\n"
    ),
    off=turned(OUTCOME, "    if end.flooded:", "    if False:", "who says too much is told so"),
    then="compile.crash.SIGKILL",
)
