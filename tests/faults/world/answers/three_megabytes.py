from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import ANSWERS, Endpoint
from support import openai_server as srv
from support.loops import FORBIDDEN

CASE = Case(
    row=25,
    what="three megabytes",
    who="kgen propose",
    code="nothing, 3 requests",
    attack=Endpoint(
        (lambda: srv.ok(srv.answer(FORBIDDEN + "#" * 3_000_000 + "\n")),),
        says=("answer.size",),
    ),
    off=turned(
        ANSWERS,
        "        if len(raw) > limit:",
        "        if False:",
        "a ceiling of bytes",
    ),
    then="refused, 1 request",
    deep=True,
)
