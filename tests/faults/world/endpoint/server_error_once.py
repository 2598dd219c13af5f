from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import CHAT, GOOD, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="503 once",
    who="kgen propose",
    code="refused, 2 requests, waits 0.5 s",
    attack=Endpoint(
        (lambda: srv.status(503), lambda: srv.ok(GOOD)),
    ),
    off=turned(
        CHAT,
        "            if result.fatal:",
        "            if True:",
        "what may pass is tried again",
    ),
    then="exit 3, 1 request",
    deep=True,
)
