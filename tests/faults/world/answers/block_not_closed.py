from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import ANSWERS, GOOD, Endpoint
from support import openai_server as srv

CASE = Case(
    row=25,
    what="a code block that is not closed",
    who="kgen propose",
    code="nothing, 3 requests",
    attack=Endpoint(
        (lambda: srv.ok(GOOD.strip().removesuffix("```")),),
        says=("answer.unclosed",),
    ),
    off=turned(
        ANSWERS,
        "    if not chosen[0].closed:",
        "    if False:",
        "a block that is not closed was cut",
    ),
    then="refused, 1 request",
    deep=True,
)
