from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import CHAT, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="429 that asks for ten minutes, with twenty seconds left",
    who="kgen propose",
    code="exit 4, 1 request",
    attack=Endpoint(
        (lambda: srv.status(429, retry_after="600"),),
        says=("asks to wait 600 s",),
    ),
    off=turned(
        CHAT,
        " or pause >= left:",
        ":",
        "no pause goes beyond the deadline",
    ),
    then="exit 4, 4 requests, waits 1800.0 s",
    deep=True,
)
