from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import CHAT, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="429 without Retry-After, again and again",
    who="kgen propose",
    code="exit 4, 4 requests, waits 10.5 s",
    attack=Endpoint(
        (lambda: srv.status(429),),
        says=("429", "attempt 4"),
    ),
    off=turned(
        CHAT,
        "BACKOFF_S = (0.5, 2.0, 8.0)",
        "BACKOFF_S = (0.0, 0.0, 0.0)",
        "pauses that grow, where the server asks for none",
    ),
    then="exit 4, 4 requests, waits 0.0 s",
)
