from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.clock import DAY, Jump

BY_THE_WALL = """import time as clocks


class time:
    sleep = staticmethod(clocks.sleep)
    monotonic = staticmethod(clocks.time)


"""

CASE = Case(
    row=28,
    what="the clock jumps back by a day while an answer is waited for",
    who="kgen propose",
    code="exit 4, interrupted",
    attack=Jump(-DAY),
    off=turned("kgen.proposers.mailbox", "import time\n", BY_THE_WALL, "deadlines are kept by the monotonic clock"),
    then="exit 130, interrupted",
)
