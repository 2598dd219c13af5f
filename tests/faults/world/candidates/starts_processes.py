from exploits.harness.off import Off
from faults.harness.building import Burden
from faults.harness.case import Case

FORKS = """
    started = 0
    for _ in range(20):
        try:
            if os.fork() == 0:
                time.sleep(1)
                os._exit(0)
            started += 1
        except OSError:
            pass
    raise ValueError(f"ESCAPED: {started}" if started else "refused")
"""

CASE = Case(
    row=2,
    what="starts as many processes as it can, here twenty",
    who="compile",
    code="compile.build",
    attack=Burden(FORKS, bare=True),
    off=Off("a build starts no process"),
)
