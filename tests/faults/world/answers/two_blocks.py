from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import ANSWERS, GOOD, Endpoint
from support import openai_server as srv

CASE = Case(
    row=25,
    what="two code blocks",
    who="kgen propose",
    code="nothing, 3 requests",
    attack=Endpoint(
        (lambda: srv.ok(GOOD + GOOD),),
        says=("answer.blocks",),
    ),
    off=turned(
        ANSWERS,
        "    if len(chosen) > 1:",
        "    if False:",
        "exactly one block",
    ),
    then="refused, 1 request",
)
