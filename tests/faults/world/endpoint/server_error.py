from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import CHAT, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="500, again and again",
    who="kgen propose",
    code="exit 4, 4 requests, waits 10.5 s",
    attack=Endpoint(
        (lambda: srv.status(500),),
        says=("500",),
        again=True,
    ),
    off=turned(
        CHAT,
        "            if result.fatal:",
        "            if True:",
        "what may pass is tried again",
    ),
    then="exit 3, 1 request",
)
