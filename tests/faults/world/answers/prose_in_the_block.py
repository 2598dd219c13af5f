from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import ANSWERS, Endpoint
from support import openai_server as srv
from support.loops import FORBIDDEN

CASE = Case(
    row=25,
    what="prose inside of the block",
    who="kgen propose",
    code="nothing, 3 requests",
    attack=Endpoint(
        (lambda: srv.ok(srv.answer(FORBIDDEN + "This is the kernel you asked for\n")),),
        says=("answer.prose",),
    ),
    off=turned(
        ANSWERS,
        "    if prose is not None:",
        "    if False:",
        "a sentence at which the parser stops is not compiled",
    ),
    then="refused, 1 request",
)
