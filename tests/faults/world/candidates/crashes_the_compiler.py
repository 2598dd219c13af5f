from exploits.harness.off import turned
from faults.harness.building import OUTCOME, Burden
from faults.harness.case import Case

CASE = Case(
    row=7,
    what="the compiler's process dies by a bad address",
    who="compile",
    code="compile.crash.SIGSEGV",
    attack=Burden("    os.kill(os.getpid(), 11)\n"),
    off=turned(OUTCOME, "    if end.returncode >= 0:", "    if True:", "a death is told from an end, by its signal"),
    then="compile.output",
)
