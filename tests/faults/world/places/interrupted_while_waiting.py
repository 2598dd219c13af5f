import signal

from faults.harness.case import Case
from faults.harness.signals import MARKED, WAIT, Interrupted

CASE = Case(
    row=28,
    what="SIGTERM while a person's answer is waited for",
    who="kgen propose",
    code="exit 130, interrupted",
    attack=Interrupted(lambda run, server: any(run.path.glob("mailbox/*-prompt.md")), WAIT, number=signal.SIGTERM),
    off=MARKED,
    then="exit 130, not marked",
    deep=True,
)
